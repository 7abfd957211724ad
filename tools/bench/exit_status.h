// SPDX-License-Identifier: Apache-2.0
// How causeway-bench ends.
#pragma once
#include <cstdio>
#include <fstream>
#include <string>

#include "host_backend/common/result.h"

namespace causeway::bench {

inline constexpr int kBenchFailed = 1;      // nothing could be measured, or a file not written
inline constexpr int kBenchIncomplete = 3;  // some of it could not

inline int Fail(const std::string& sentence) {
  std::fprintf(stderr, "causeway: %s\n", sentence.c_str());
  return kBenchFailed;
}

// "" or why not. Without a name nothing is written.
inline std::string WriteFile(const std::string& name, const std::string& text) {
  if (name.empty()) return {};
  std::ofstream file(name);
  file << text;
  file.close();
  return file ? "" : "The figures cannot be written to " + name + ": " + ErrnoText() + ".";
}

}  // namespace causeway::bench
