// SPDX-License-Identifier: Apache-2.0
// Xen's small store of keys, by Xen's own library. The library is looked for when the first domain is served, so that
// hosts without Xen need nothing of it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host_backend/common/result.h"

namespace causeway::daemon {

// A value that a domain may have written is at most this long for us; longer ones count as missing.
inline constexpr size_t kMaxXenValueBytes = 64;

class XenStore {
 public:
  // One connection. The daemon that answers is local; its end ends every call with an error.
  static Result<std::unique_ptr<XenStore>> Open();
  ~XenStore();
  XenStore(const XenStore&) = delete;
  XenStore& operator=(const XenStore&) = delete;

  // Missing, not readable, or longer than kMaxXenValueBytes: none. The bytes may be any.
  std::optional<std::string> Read(const std::string& path);
  std::vector<std::string> List(const std::string& path);
  // The number of the running domain of that name.
  std::optional<uint16_t> FindDomain(const std::string& name);
  // False once the domain is destroyed, or if the store does not answer.
  bool IsAlive(uint16_t domain);

  struct Folder {
    std::string path;
    // The first owns the folder and what is made below it, and may write there; the second may read.
    uint16_t owner = 0;
    uint16_t reader = 0;
    std::vector<std::pair<std::string, std::string>> keys;
    bool keep = false;  // leave it as it is if it is there
  };
  // Makes all of them at once; a folder that was there is made anew. errno tells why not.
  bool Replace(const std::vector<Folder>& folders);
  // A descriptor that is readable after any domain has been destroyed since TakeWatches; -1: it cannot be watched.
  int WatchDomains();
  void TakeWatches();
  bool Write(const std::string& path, const std::string& value);
  bool Remove(const std::string& path);

 private:
  struct Library;
  XenStore(const Library& library, void* connection) : library_(library), connection_(connection) {}
  bool Make(uint32_t transaction, const Folder& folder);

  const Library& library_;
  void* const connection_;
};

}  // namespace causeway::daemon
