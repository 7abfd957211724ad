// SPDX-License-Identifier: Apache-2.0
// The fuzzer gives the same bytes to two readers. LoadConfig reads them as causewayd.toml: it returns a configuration, or an error of one
// sentence that names the file. ReadKeyFile reads them as the file of a key: it returns an error, or a key. The text that KeyText writes
// of that key has to give the same key again.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "host_backend/daemon/process/config.h"
#include "ivshmem_ring/tls/key_file.h"
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

bool IsSame(const Key& one, const Key& other) {
  return one.id == other.id && one.vm == other.vm && one.created == other.created &&
         one.expires == other.expires && one.revoked == other.revoked && one.has_secret == other.has_secret &&
         one.secret == other.secret;
}

void ReadKey(const std::string& path, std::string_view text) {
  Key key, of_file;
  const bool is_key = ParseKey(text, &key).empty();
  const std::string problem = ReadKeyFile(path, &of_file);
  Require(problem.empty() == is_key && (problem.empty() || problem.find(path) != std::string::npos));
  if (!is_key) return;
  Require(IsKeyId(key.id) && IsSame(key, of_file));
  Key again;
  Require(ParseKey(KeyText(key, true), &again).empty() == key.has_secret);
  if (!key.vm.empty() && key.created != 0)
    Require(ParseKey(KeyText(key, false), &again).empty() && IsSame(key, again));
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  static const int file = memfd_create("config", 0);
  static const bool is_own = fchmod(file, 0600) == 0;  // others may write no key
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  Require(file >= 0 && is_own && ftruncate(file, 0) == 0 &&
          pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  const auto config = causeway::daemon::LoadConfig(path);
  if (config.ok()) {
    RequireSound(config.value());
  } else {
    Require(config.error().rfind(path, 0) == 0 || config.error().find(path) != std::string::npos);
  }
  if (size <= causeway::kMaxKeyFileBytes) ReadKey(path, {reinterpret_cast<const char*>(data), size});
  return 0;
}
