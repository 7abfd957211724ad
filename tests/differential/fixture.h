// SPDX-License-Identifier: Apache-2.0
// What every program finds: a context, another one, code, streams, events and memory of each kind, with fixed ids.
#pragma once
#include "tests/differential/world.h"

namespace causeway::differential {

class Fixture {
 public:
  // Initialises the driver and makes everything; `error` says which step failed, and is empty otherwise.
  Fixture();
  ~Fixture();
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  World world;
  std::string error;

 private:
  bool Step(const char* what, CUresult result);
  void MakeContexts();
  void MakeCode();
  void MakeStreams();
  void MakeMemory();
  void AddObject(HandleKind kind, const void* raw, bool foreign = false, int kernel = -1,
                 bool is_kernel = false);
  void AddMemory(Place place, uint64_t base);

  std::vector<void*> pages_;
  std::vector<void*> pinned_;
};

}  // namespace causeway::differential
