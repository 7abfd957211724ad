// SPDX-License-Identifier: Apache-2.0
// Runs a fuzzer without libFuzzer: seeded, so that a run can be repeated; it mutates a pool of its own
// inputs. Usage: fuzz_x [executions] [seed]. An input that ends the process is printed by its number: run
// again with the same seed and that many executions.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <vector>

#include "tests/fuzz/fuzz_input.h"

namespace {

constexpr size_t kMaxInputBytes = 2048;
constexpr unsigned kHangSeconds = 60;  // of one execution, which takes far less than a millisecond
constexpr size_t kPoolInputs = 256;
constexpr uint64_t kInteresting[] = {0,         1,    47,         48,         49,         63,
                                     64,        65,   4096,       4097,       8192,       1 << 20,
                                     80u << 10, 0xff, 0x7fffffff, 0x80000000, 0xffffffff, ~uint64_t{0}};

uint64_t random_state;
uint64_t Next() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

using Bytes = std::vector<uint8_t>;

void Mutate(Bytes& input, const Bytes& other) {
  for (uint64_t edits = 1 + Next() % 6; edits > 0; --edits) {
    const size_t at = input.empty() ? 0 : Next() % input.size();
    switch (Next() % 6) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<uint8_t>(1u << Next() % 8);
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<uint8_t>(Next());
        break;
      case 2: {  // a value that lies on some limit, at any width
        const uint64_t value = kInteresting[Next() % (sizeof kInteresting / sizeof kInteresting[0])];
        const size_t width = size_t{1} << Next() % 4;
        for (size_t i = 0; i < width && at + i < input.size(); ++i)
          input[at + i] = static_cast<uint8_t>(value >> 8 * i);
        break;
      }
      case 3: {  // insert
        Bytes more(1 + Next() % 32);
        for (uint8_t& byte : more) byte = static_cast<uint8_t>(Next());
        input.insert(input.begin() + static_cast<ptrdiff_t>(at), more.begin(), more.end());
        break;
      }
      case 4:  // cut
        if (!input.empty())
          input.erase(input.begin() + static_cast<ptrdiff_t>(at),
                      input.begin() + static_cast<ptrdiff_t>(std::min(input.size(), at + 1 + Next() % 16)));
        break;
      default:  // the rest of another input
        if (!other.empty()) {
          const size_t from = Next() % other.size();
          input.resize(at);
          input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
        }
        break;
    }
  }
  if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
}

unsigned long execution;

void Report(int signal_number) {
  char text[80];
  const int size = snprintf(text, sizeof text, "execution %lu ended the process\n", execution);
  if (write(STDERR_FILENO, text, static_cast<size_t>(size)) < 0) _exit(2);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned long executions = argc > 1 ? strtoul(argv[1], nullptr, 10) : 20'000;
  random_state = (argc > 2 ? strtoull(argv[2], nullptr, 10) : 1) * 0x9e3779b97f4a7c15 + 1;
  signal(SIGABRT, Report);
  signal(SIGALRM, Report);
  std::vector<Bytes> pool(kPoolInputs);
  for (Bytes& input : pool) {
    input.resize(Next() % 512);
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(Next());
  }
  for (execution = 1; execution <= executions; ++execution) {
    alarm(kHangSeconds);
    Bytes input = pool[Next() % kPoolInputs];
    Mutate(input, pool[Next() % kPoolInputs]);
    // A copy of the exact size: a sanitizer then sees a read beyond the input.
    const Bytes exact(input.begin(), input.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    if (Next() % 8 == 0) pool[Next() % kPoolInputs] = std::move(input);
    if (Next() % 1024 == 0) {
      Bytes& fresh = pool[Next() % kPoolInputs];
      fresh.resize(1 + Next() % 512);
      for (uint8_t& byte : fresh) byte = static_cast<uint8_t>(Next());
    }
  }
  printf("%lu executions\n", executions);
  return 0;
}
