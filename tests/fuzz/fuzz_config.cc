// SPDX-License-Identifier: Apache-2.0
// causewayd.toml: any bytes are a configuration or an error of one sentence that names the file.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "host_backend/daemon/process/config.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

using daemon::Config;

void RequireSound(const Config& config) {
  Require(!config.socket.empty() && config.socket.size() <= 107 && config.socket_mode <= 0777);
  Require(config.max_sessions != 0 && config.max_sessions <= daemon::kMaxSessions);
  Require(config.spare_workers <= daemon::kMaxSpareWorkers &&
          config.image_cache_mib <= daemon::kMaxImageCacheMib);
  for (const daemon::VmConfig& vm : config.vms) {
    Require(!vm.name.empty() && vm.region_file[0] == '/');
    Require(vm.region_mib >= daemon::kMinRegionMib && vm.region_mib <= daemon::kMaxRegionMib &&
            (vm.region_mib & (vm.region_mib - 1)) == 0);
    Require(vm.share.gpus.size() <= daemon::kMaxGpus);
  }
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  static const int file = memfd_create("config", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  Require(file >= 0 && ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  const auto config = causeway::daemon::LoadConfig(path);
  if (config.ok()) {
    RequireSound(config.value());
  } else {
    Require(config.error().rfind(path, 0) == 0 || config.error().find(path) != std::string::npos);
  }
  return 0;
}
