// SPDX-License-Identifier: Apache-2.0
// Runs inside the test VM against /dev/causeway, with fake_host.py on the host: module_test NAME...
#include <cstdio>
#include <cstring>

#include "tests/vm/module_device.h"

namespace {

using namespace causeway::module_test;

struct Test {
  const char* name;
  void (*run)();
};

constexpr Test kTests[] = {
    {"mappings", TestMappings},
    {"slices", TestSlices},
    {"two_processes", TestTwoProcesses},
    {"fork", TestFork},
    {"killed", TestKilledProcess},
    {"quarantine", TestQuarantine},
    {"slots", TestAllSlots},
    {"remap", TestRemap},
    {"remap_in_place", TestRemapInPlace},
    {"wipe", TestWipe},
    {"stress", TestStress},
    {"calls", TestCalls},
    {"speed", TestSpeed},
    {"unbind", TestUnbind},
    {"refusals", TestRefusals},
    {"quota", TestQuota},
    {"unbind_storm", TestUnbindStorm},
    {"user_slots", TestUserSlots},
    {"doorbell", TestDoorbell},
    {"doorbell_beside", TestDoorbellBeside},
    {"no_doorbell", TestNoDoorbell},
    {"registers", TestRegisters},
    {"unbind_asleep", TestUnbindAsleep},
    {"victim", TestVictim},
    {"attacker", TestAttacker},
};

}  // namespace

int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    const Test* found = nullptr;
    for (const Test& test : kTests)
      if (!std::strcmp(test.name, names[i])) found = &test;
    if (!found) {
      std::printf("no test %s\n", names[i]);
      return 2;
    }
    const int before = Failures();
    found->run();
    std::printf("%s %s\n", Failures() == before ? "passed" : "FAILED", found->name);
    std::fflush(stdout);
  }
  return Failures() ? 1 : 0;
}
