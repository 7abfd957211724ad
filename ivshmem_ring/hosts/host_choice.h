// SPDX-License-Identifier: Apache-2.0
// Which of several hosts a process uses, from what they say of themselves. No state: any thread may call.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ivshmem_ring/hosts/pool_messages.h"

namespace causeway {

struct HostAnswer {
  enum class State {
    kUp,       // it would serve a session now
    kUnknown,  // it is there, and of a release that says nothing of its load, or without figures
    kFull,     // it refuses sessions now
    kDown,     // it was not reached, or not in time
  };
  State state = State::kDown;
  std::string reason;   // of any but kUp: a sentence without its full stop
  HostFigures figures;  // of kUp
};

// How well a host can serve one session more: the free bytes of one GPU, times the part of the time in which nothing ran on it (a
// twentieth at least), divided by one and the guest's sessions there for each GPU; of that GPU for which this is most. `devices`:
// CUDA_VISIBLE_DEVICES, or empty; where it begins with a UUID, GPUs that it does not name do not count. 0: there is none.
double WorthOf(const HostFigures& figures, std::string_view devices);

// The hosts that are to be tried, best first, as their numbers in `answers`: those that are up, by what they are worth, where of hosts
// within a tenth of the best the one that is named first goes first; then those whose load is not known, as they are named. A host
// that is up and has none of the GPUs that `devices` names becomes kFull, with the reason.
std::vector<size_t> OrderHosts(std::vector<HostAnswer>& answers, std::string_view devices);

}  // namespace causeway
