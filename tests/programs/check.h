// SPDX-License-Identifier: Apache-2.0
// Helpers of the referee programs: checked runtime calls, a seeded generator, comparison with the CPU's
// result.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Ends the program with exit code 1 when a runtime call fails; the call is named with its place.
#define CHECK(call) check::Success((call), #call, __FILE__, __LINE__)
// Ends the program with exit code 1 when a condition of the result does not hold.
#define REQUIRE(condition) check::Holds((condition), #condition, __FILE__, __LINE__)

namespace check {

// The part behind the last '/', so that messages do not depend on the folder that the program was built in.
inline const char* FileName(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

inline void Success(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::printf("%s:%d: %s: %s (%d)\n", FileName(file), line, call, cudaGetErrorName(error), int(error));
  std::exit(1);
}

inline void Holds(bool condition, const char* text, const char* file, int line) {
  if (condition) return;
  std::printf("%s:%d: does not hold: %s\n", FileName(file), line, text);
  std::exit(1);
}

// One step of a 32-bit xorshift generator: the same numbers on every machine.
inline uint32_t Next(uint32_t& state) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}

// Folds `bytes` bytes into an FNV-1a checksum; programs print it as the short form of their result.
inline uint64_t Checksum(const void* data, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3ull;
  }
  return hash;
}

// Compares element by element, bit for bit; prints the first difference and ends the program.
template <typename T>
void Equal(const T* actual, const T* expected, size_t count, const char* what) {
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) == 0) continue;
    std::printf("%s: element %zu is %.9g, the CPU has %.9g\n", what, i, double(actual[i]),
                double(expected[i]));
    std::exit(1);
  }
}

}  // namespace check
