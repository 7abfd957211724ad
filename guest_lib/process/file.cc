// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/process/file.h"

#include <cstdio>

namespace causeway::guest {

bool ReadFile(const char* path, std::vector<std::byte>* bytes) {
  FILE* file = fopen(path, "rbe");
  if (file == nullptr) return false;
  std::byte piece[1 << 16];
  for (size_t got; (got = fread(piece, 1, sizeof piece, file)) != 0;)
    bytes->insert(bytes->end(), piece, piece + got);
  const bool complete = ferror(file) == 0;  // a folder opens, but does not read
  fclose(file);
  return complete;
}

}  // namespace causeway::guest
