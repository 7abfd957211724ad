// SPDX-License-Identifier: Apache-2.0
// `causeway doctor`: looks at every link of the chain from a program to the GPU, in the order in which a call passes them, and
// names the broken one with what mends it.
#pragma once
#include <string>
#include <vector>

#include "tools/system/machine.h"

namespace causeway::doctor {

enum class State {
  kFine,
  kBroken,
  kSkipped,  // it cannot be looked at, because another link is broken or the system does not run
};

struct Finding {
  std::string link;
  State state = State::kFine;
  std::string sentence;  // what was found
  std::string mend;      // of a broken one: the command that mends it, or what to do
};

struct DoctorOptions {
  std::string side;    // "host", "guest", or empty: as what is installed says
  std::string root;    // of a system that does not run; empty: this one
  std::string socket;  // the daemon's
  std::string config;  // the daemon's
  bool json = false;
};

// The chain as it was found. Each link adds one finding at least.
class Chain {
 public:
  void Fine(const std::string& link, const std::string& sentence) { Add({link, State::kFine, sentence, ""}); }
  void Broken(const std::string& link, const std::string& sentence, const std::string& mend) {
    Add({link, State::kBroken, sentence, mend});
  }
  void Skip(const std::string& link, const std::string& reason) { Add({link, State::kSkipped, reason, ""}); }
  bool IsFine(const std::string& link) const;
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  void Add(Finding finding) { findings_.push_back(std::move(finding)); }
  std::vector<Finding> findings_;
};

// A host has the daemon, a guest the library; with neither, a device says that it is a guest. `side`: as of the options.
bool IsGuest(const machine::Machine& machine, const std::string& side);

void CheckHost(const machine::Machine& machine, const DoctorOptions& options, Chain* chain);
void CheckGuest(const machine::Machine& machine, Chain* chain);
// Whether what container runtimes read is what `causeway cdi` writes here. Without a container runtime it adds nothing.
void CheckContainers(const machine::Machine& machine, bool guest, const std::string& config, Chain* chain);
// Which libcuda.so.1 a program of a guest gets.
void CheckLoader(const machine::Machine& machine, Chain* chain);

// What this program does when it is called to try the guest's library, in a process of its own: initialises CUDA with the
// libcuda.so.1 that the loader finds, and prints the library's path and the devices. Exit status 0: there is a device.
int TryCuda();

// Prints the chain. Exit status: 0 every link that could be looked at is fine; 1 one is broken.
int RunDoctor(const DoctorOptions& options);

}  // namespace causeway::doctor
