// SPDX-License-Identifier: Apache-2.0
// Runs a fuzzer without libFuzzer: mutates a pool of inputs, by the fuzzer's own mutator if it has one.
// usage: fuzz_x [executions] [--seed N] [folder or file of inputs]... [--one-in N [folder or file of inputs]...]
// The seed is random unless given, and printed. Inputs that are named come first, each as it is; of those after
// --one-in N only one in N, which the seed chooses. `executions` of mutated ones follow. The input that ends the
// process is printed in base64 and left in a file.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_input.h"

extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                                                unsigned seed);
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomCrossOver(const uint8_t* first, size_t first_size,
                                                                  const uint8_t* second, size_t second_size,
                                                                  uint8_t* out, size_t most, unsigned seed);

namespace {

constexpr size_t kMaxInputBytes = 2048;
constexpr size_t kMaxScriptBytes = 16u << 10;  // for a mutator of its own
constexpr unsigned kHangSeconds = 60;          // of one execution, which takes far less than a millisecond
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

void MutateBytes(Bytes& input, const Bytes& other) {
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

void Mutate(Bytes& input, const Bytes& other) {
  if (LLVMFuzzerCustomMutator == nullptr) return MutateBytes(input, other);
  const size_t size = std::min(input.size(), kMaxScriptBytes);
  Bytes space(kMaxScriptBytes);
  std::copy_n(input.begin(), size, space.begin());
  const auto seed = static_cast<unsigned>(Next());
  if (Next() % 4 == 0 && LLVMFuzzerCustomCrossOver != nullptr) {
    input.resize(kMaxScriptBytes);
    input.resize(LLVMFuzzerCustomCrossOver(space.data(), size, other.data(), other.size(), input.data(),
                                           kMaxScriptBytes, seed));
  } else {
    space.resize(LLVMFuzzerCustomMutator(space.data(), size, kMaxScriptBytes, seed));
    input = std::move(space);
  }
}

unsigned long execution;
uint64_t seed;
const Bytes* running;

void Put(int file, const void* bytes, size_t count) {
  if (write(file, bytes, count) < 0) _exit(2);
}

// Async-signal-safe.
void Report(int signal_number) {
  char text[128];
  Put(STDERR_FILENO, text,
      static_cast<size_t>(snprintf(text, sizeof text,
                                   "seed %lu, execution %lu ended the process; the input:\n",
                                   static_cast<unsigned long>(seed), execution)));
  if (running != nullptr) {
    constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t at = 0; at < running->size(); at += 3) {
      const size_t count = std::min<size_t>(3, running->size() - at);
      uint32_t bits = 0;
      for (size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < count ? (*running)[at + i] : 0);
      char digits[4];
      for (size_t i = 0; i < 4; ++i) digits[i] = i <= count ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
      Put(STDERR_FILENO, digits, sizeof digits);
    }
    snprintf(text, sizeof text, "crash-%lu-%lu", static_cast<unsigned long>(seed), execution);
    const int file = open(text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0) Put(file, running->data(), running->size());
    Put(STDERR_FILENO, "\nalso in ", 9);
    Put(STDERR_FILENO, text, std::string::traits_type::length(text));
    Put(STDERR_FILENO, "\n", 1);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void Run(const Bytes& input) {
  alarm(kHangSeconds);
  ++execution;
  // A copy of the exact size: a sanitizer then sees a read beyond the input.
  const Bytes exact(input.begin(), input.end());
  running = &exact;
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  running = nullptr;
}

// False: there is no such file.
bool ReadFile(const std::string& path, std::vector<Bytes>* inputs) {
  FILE* file = fopen(path.c_str(), "re");
  if (file == nullptr) return false;
  Bytes bytes;
  uint8_t piece[4096];
  for (size_t got; (got = fread(piece, 1, sizeof piece, file)) > 0;)
    bytes.insert(bytes.end(), piece, piece + got);
  fclose(file);
  inputs->push_back(std::move(bytes));
  return true;
}

bool ReadInputs(const std::string& path, std::vector<Bytes>* inputs) {
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return ReadFile(path, inputs);
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') ReadFile(path + "/" + entry->d_name, inputs);
  }
  closedir(folder);
  return true;
}

Bytes RandomBytes(size_t most) {
  Bytes bytes(1 + Next() % most);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(Next());
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  unsigned long executions = 20'000;
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed) return 2;
  seed >>= 32;
  std::vector<Bytes> inputs;
  size_t all_of = ~size_t{0}, one_in = 1;  // of the first inputs all are run, of the others one in so many
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--seed" && i + 1 < argc) {
      seed = strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--one-in" && i + 1 < argc) {
      all_of = inputs.size();
      one_in = std::max(strtoul(argv[++i], nullptr, 10), 1ul);
    } else if (argument.find_first_not_of("0123456789") == std::string::npos) {
      executions = strtoul(argv[i], nullptr, 10);
    } else if (!ReadInputs(argument, &inputs)) {
      fprintf(stderr, "%s: cannot read %s\n", argv[0], argv[i]);
      return 2;
    }
  }
  printf("seed %lu, %zu inputs\n", static_cast<unsigned long>(seed), inputs.size());
  fflush(stdout);
  random_state = seed * 0x9e3779b97f4a7c15 + 1;
  for (const int number : {SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(number, Report);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i < all_of || Next() % one_in == 0) Run(inputs[i]);
  }
  const unsigned long end = execution + executions;
  std::vector<Bytes> pool(kPoolInputs);
  for (Bytes& input : pool) input = inputs.empty() ? RandomBytes(512) : inputs[Next() % inputs.size()];
  while (execution < end) {
    Bytes input = pool[Next() % kPoolInputs];
    Mutate(input, pool[Next() % kPoolInputs]);
    Run(input);
    if (Next() % 8 == 0) pool[Next() % kPoolInputs] = std::move(input);
    if (Next() % 256 == 0)
      pool[Next() % kPoolInputs] = inputs.empty() ? RandomBytes(512) : inputs[Next() % inputs.size()];
  }
  printf("%lu executions\n", execution);
  return 0;
}
