// SPDX-License-Identifier: Apache-2.0
// The daemon's control socket: any bytes are a request whose every field is in its bounds, or one sentence. What is asked for
// is written into a file as an added VM, which the daemon of after has to read as the same.
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <set>
#include <string>

#include "host_backend/common/plain_name.h"
#include "host_backend/daemon/control/control_request.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

using daemon::ControlRequest;

void RequireKept(const daemon::VmConfig& vm) {
  static const int file = memfd_create("vm", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  const std::string text = AddedVmText(vm);
  Require(file >= 0 && ftruncate(file, 0) == 0 &&
          pwrite(file, text.data(), text.size(), 0) == ssize_t(text.size()));
  const auto kept = daemon::LoadAddedVm(path);
  Require(kept.ok());
  Require(kept.value().name == vm.name && kept.value().region_file == vm.region_file &&
          kept.value().region_mib == vm.region_mib && kept.value().region_group == vm.region_group &&
          kept.value().region_user == vm.region_user && kept.value().doorbell_socket == vm.doorbell_socket &&
          kept.value().share.gpus == vm.share.gpus);
}

void RequireSound(const ControlRequest& request) {
  using What = ControlRequest::What;
  if (request.what == What::kList || request.what == What::kReload || request.what == What::kUpgrade)
    return Require(request.name.empty());
  Require(!request.undo || request.what == What::kDrain);
  if (request.what == What::kDrain && request.name.empty()) return;
  if (request.what == What::kSet || request.what == What::kPause || request.what == What::kResume) {
    Require(!request.name.empty() && request.name.find('\n') == std::string::npos);
    Require(request.what != What::kSet || request.change.empty() == request.turn_ms.has_value());
    const ShareTerms terms = request.change.On({});
    return Require(terms.weight >= 1 && terms.weight <= kMostWeight && terms.cap_percent >= 1 &&
                   terms.cap_percent <= 100 && terms.reserve_percent <= 100 &&
                   terms.pcie_mib_per_s <= kMostPcieMibPerS && request.turn_ms.value_or(1) >= 0.5 &&
                   request.turn_ms.value_or(1) <= 50);
  }
  Require(IsPlainName(request.name) && request.name.find('/') == std::string::npos);
  if (request.what != ControlRequest::What::kAdd) return;
  Require(!request.force && std::has_single_bit(request.memory_mib));
  Require(request.memory_mib >= daemon::kMinRegionMib && request.memory_mib <= daemon::kMaxRegionMib);
  Require(request.user == 0 || (request.user >= 1000 && request.group.empty()));
  Require(request.gpus.size() <= daemon::kMaxGpus);
  Require(std::set<std::string>(request.gpus.begin(), request.gpus.end()).size() == request.gpus.size());
  // The daemon takes groups that it knows alone; these are names of files and texts in quotes before that.
  if (request.group.find_first_not_of("abcdefghijklmnopqrstuvwxyz-_0123456789") == std::string::npos)
    RequireKept(AddedVm(request, "/run/causeway/causeway.sock"));
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  const auto request = causeway::daemon::DecodeControlRequest({reinterpret_cast<const char*>(data), size});
  if (request.ok()) {
    RequireSound(request.value());
  } else {
    Require(request.error().ends_with(".") && request.error().find('\n') == std::string::npos);
  }
  return 0;
}
