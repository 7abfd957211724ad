// SPDX-License-Identifier: Apache-2.0
// The driver's CUdevResource structs of one session, by number.
#pragma once
#include <mutex>
#include <vector>

#include "host_backend/worker/session/session.h"

namespace causeway::host {

class DeviceResources : public SessionPart {
 public:
  static constexpr size_t kMax = 4096;
  // False: no room. Equal resources have one number.
  bool Keep(const CUdevResource& resource, uint64_t* number);
  bool Find(uint64_t number, CUdevResource* resource) const;

 private:
  mutable std::mutex mutex_;
  std::vector<CUdevResource> kept_;
};

}  // namespace causeway::host
