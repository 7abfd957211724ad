// SPDX-License-Identifier: Apache-2.0
// So many records through an open gate, for whoever counts instructions (docs/sharing.md). No test: they differ by compiler.
//   valgrind --tool=callgrind --callgrind-out-file=/dev/null build/tests/unit/gate_count RECORDS
#include <cstdio>
#include <cstdlib>

#include "host_backend/worker/gate/gate.h"

namespace {

using causeway::Grant;
using causeway::GrantWords;
using causeway::TurnWords;

// A GPU that does everything at once.
class Idle final : public causeway::host::GateSurroundings {
 public:
  explicit Idle(TurnWords& words) : words_(words) {}
  uint64_t NowNs() override { return now_ns_ += 100; }
  bool Mark(uint32_t slot, uint32_t value) override {
    words_.done[slot] = value;
    ++marks;
    return true;
  }
  void Sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t) override {}

  uint64_t marks = 0;

 private:
  TurnWords& words_;
  uint64_t now_ns_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const long records = argc > 1 ? std::atol(argv[1]) : 1000;
  GrantWords grant{};
  TurnWords words{};
  grant.grant = static_cast<uint32_t>(Grant::kOpen);
  Idle idle(words);
  causeway::host::Gate gate(grant, words, idle);
  const std::atomic<bool> stop{false};
  for (long i = 0; i < records; ++i) {
    if (!gate.Enter(stop)) return 1;
    gate.Leave(true);
    asm volatile("" ::: "memory");
  }
  std::printf("%ld records, %llu marks\n", records, static_cast<unsigned long long>(idle.marks));
  return 0;
}
