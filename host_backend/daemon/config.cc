// SPDX-License-Identifier: Apache-2.0
// Reads the configuration; each complaint names the file and line.
#include "host_backend/daemon/config.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <toml++/toml.h>
#include <algorithm>
#include <bit>
#include <climits>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>

namespace causeway::daemon {
namespace {

constexpr size_t kMaxSocketPathBytes = 107;
constexpr uint32_t kNotConfigured = ~uint32_t{0};
// Where the configuration does not say otherwise.
constexpr uint32_t kDefaultGuarantee = 2;  // sessions of a VM
constexpr uint32_t kReservedPart = 8;      // of max_sessions: one in so many is for users and peers

struct BadValue {
  toml::source_position where;
  std::string text;
};

// Takes known keys out of one table. Errors leave by BadValue, which LoadConfig turns into the sentence.
class TableReader {
 public:
  TableReader(const toml::table& table, std::string section) : table_(table), section_(std::move(section)) {}

  std::optional<std::string> String(std::string_view key) {
    const toml::node* node = Take(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_string()) Fail(*node, key, "must be a string in quotes");
    const std::string value = node->as_string()->get();
    if (value.empty()) Fail(*node, key, "must not be empty");
    if (value.find('\0') != std::string::npos) Fail(*node, key, "must not contain a NUL byte");
    return value;
  }

  std::optional<uint64_t> Number(std::string_view key, uint64_t least, uint64_t most) {
    const toml::node* node = Take(key);
    if (node == nullptr) return std::nullopt;
    const auto* number = node->as_integer();
    const std::string range = "from " + std::to_string(least) + " to " + std::to_string(most);
    if (number == nullptr) Fail(*node, key, "must be a whole number " + range);
    if (number->get() < 0 || uint64_t(number->get()) < least || uint64_t(number->get()) > most) {
      Fail(*node, key, "is " + std::to_string(number->get()) + " but must be " + range);
    }
    return uint64_t(number->get());
  }

  std::optional<bool> Bool(std::string_view key) {
    const toml::node* node = Take(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_boolean()) Fail(*node, key, "must be true or false");
    return node->as_boolean()->get();
  }

  const toml::node* Take(std::string_view key) {
    known_.insert(std::string(key));
    return table_.get(key);
  }

  [[noreturn]] void Fail(const toml::node& node, std::string_view key, const std::string& text) const {
    throw BadValue{node.source().begin, section_ + std::string(key) + " " + text};
  }

  [[noreturn]] void Missing(std::string_view key) const {
    throw BadValue{table_.source().begin, section_ + std::string(key) + " is missing"};
  }

  void RefuseUnknownKeys() const {
    for (const auto& [key, node] : table_) {
      if (known_.count(std::string(key.str())) != 0) continue;
      std::string names;
      for (const auto& name : known_) names += (names.empty() ? "" : ", ") + name;
      throw BadValue{key.source().begin,
                     section_ + std::string(key.str()) + " is not a known key; known here are " + names};
    }
  }

 private:
  const toml::table& table_;
  std::string section_;
  std::set<std::string> known_;
};

void CheckRegionMib(TableReader& reader, std::string_view key, uint64_t mib) {
  if (!std::has_single_bit(mib)) {
    reader.Fail(*reader.Take(key), key, "is " + std::to_string(mib) + " but must be a power of two");
  }
}

void CheckAbsolute(TableReader& reader, std::string_view key, const std::string& path) {
  if (path[0] != '/')
    reader.Fail(*reader.Take(key), key, "must be an absolute path, but is \"" + path + "\"");
}

uint32_t Mode(TableReader& reader, std::string_view key, const std::string& text) {
  uint32_t mode = 0;
  bool good = text.size() >= 3 && text.size() <= 4;
  for (const char c : text) {
    good = good && c >= '0' && c <= '7';
    mode = mode * 8 + uint32_t(c - '0');
  }
  if (!good || mode > 0777)
    reader.Fail(*reader.Take(key), key, "must be an octal mode in quotes such as \"0660\"");
  return mode;
}

LogLevel Level(TableReader& reader, std::string_view key, const std::string& text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  reader.Fail(*reader.Take(key), key, "must be debug, info, warning or error, but is \"" + text + "\"");
}

// The keys `prefix`device_memory_mib, `prefix`gpus and those of HostShare.
GpuShare ReadShare(TableReader& reader, const std::string& prefix) {
  GpuShare share;
  share.device_memory_mib = reader.Number(prefix + "device_memory_mib", 1, kMaxDeviceMemoryMib).value_or(0);
  HostShare& host = share.host;
  host.memory_mib = reader.Number(prefix + "host_memory_mib", 64, kMaxDeviceMemoryMib).value_or(0);
  host.threads = uint32_t(reader.Number(prefix + "max_threads", 16, 1u << 22).value_or(host.threads));
  host.cpu_weight = uint32_t(reader.Number(prefix + "cpu_weight", 1, 10'000).value_or(host.cpu_weight));
  host.cpu_percent = uint32_t(reader.Number(prefix + "cpu_percent", 1, 1'000'000).value_or(0));
  const std::string key = prefix + "gpus";
  const toml::node* node = reader.Take(key);
  if (node == nullptr) return share;
  const toml::array* list = node->as_array();
  if (list == nullptr || list->empty() || list->size() > kMaxGpus)
    reader.Fail(*node, key,
                "must be a list of 1 to 16 UUIDs such as [\"GPU-...\"], as nvidia-smi -L shows them");
  for (const auto& item : *list) {
    const auto* text = item.as_string();
    const std::string uuid = text != nullptr ? text->get() : "";
    const bool good = (uuid.rfind("GPU-", 0) == 0 || uuid.rfind("MIG-", 0) == 0) && uuid.size() < 64 &&
                      uuid.find_first_not_of("-0123456789abcdefABCDEFGPUMI") == std::string::npos;
    if (!good)
      reader.Fail(item, key,
                  "must name GPUs by their UUIDs (GPU-... or MIG-...), as nvidia-smi -L shows them");
    if (std::find(share.gpus.begin(), share.gpus.end(), uuid) != share.gpus.end())
      reader.Fail(item, key, "names " + uuid + " twice");
    share.gpus.push_back(uuid);
  }
  return share;
}

std::pair<uint32_t, uint32_t> ReadWorkerUsers(TableReader& reader, std::pair<uint32_t, uint32_t> otherwise) {
  constexpr std::string_view kKey = "worker_users";
  const toml::node* node = reader.Take(kKey);
  if (node == nullptr) return otherwise;
  const toml::array* list = node->as_array();
  const auto* first = list != nullptr && list->size() == 2 ? list->get(0)->as_integer() : nullptr;
  const auto* count = first != nullptr ? list->get(1)->as_integer() : nullptr;
  constexpr int64_t kLeast = 1000, kEnd = int64_t{1} << 31;
  if (count == nullptr || first->get() < kLeast || count->get() < 0 || count->get() > kEnd - first->get())
    reader.Fail(*node, kKey,
                "must be the first user id, from 1000, and how many, such as [2000000000, 65536]");
  return {uint32_t(first->get()), uint32_t(count->get())};
}

VmConfig ReadVm(const toml::table& table) {
  TableReader reader(table, "[[vm]] ");
  VmConfig vm;
  if (auto name = reader.String("name"))
    vm.name = *name;
  else
    reader.Missing("name");
  if (auto file = reader.String("region_file"))
    vm.region_file = *file;
  else
    reader.Missing("region_file");
  CheckAbsolute(reader, "region_file", vm.region_file);
  vm.region_mib = reader.Number("region_mib", kMinRegionMib, kMaxRegionMib).value_or(vm.region_mib);
  CheckRegionMib(reader, "region_mib", vm.region_mib);
  vm.region_group = reader.String("region_group").value_or("");
  vm.max_sessions = uint32_t(reader.Number("max_sessions", 1, kMaxSlots).value_or(vm.max_sessions));
  // Without the key ShareOutSessions decides.
  vm.guaranteed_sessions =
      uint32_t(reader.Number("guaranteed_sessions", 0, vm.max_sessions).value_or(kNotConfigured));
  vm.share = ReadShare(reader, "");
  reader.RefuseUnknownKeys();
  return vm;
}

void ReadVms(TableReader& reader, Config& config) {
  const toml::node* node = reader.Take("vm");
  if (node == nullptr) return;
  const toml::array* list = node->as_array();
  if (list == nullptr || !list->is_homogeneous<toml::table>())
    reader.Fail(*node, "vm", "must be tables that begin with [[vm]]");
  std::set<std::string> names;
  std::set<std::string> files;
  for (const auto& entry : *list) {
    config.vms.push_back(ReadVm(*entry.as_table()));
    const VmConfig& vm = config.vms.back();
    if (!names.insert(vm.name).second) reader.Fail(entry, "vm", "name \"" + vm.name + "\" is used twice");
    if (!files.insert(vm.region_file).second) {
      reader.Fail(entry, "vm",
                  "region_file \"" + vm.region_file + "\" is used twice; regions are never shared");
    }
  }
}

bool IsLoopback(const std::string& address) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsNumericAddress(const std::string& address) {
  in6_addr any{};
  return inet_pton(AF_INET, address.c_str(), &any) == 1 || inet_pton(AF_INET6, address.c_str(), &any) == 1;
}

void ReadTcp(TableReader& outer, Config& config) {
  const toml::node* node = outer.Take("tcp");
  if (node == nullptr) return;
  if (!node->is_table()) outer.Fail(*node, "tcp", "must be a table that begins with [tcp]");
  TableReader reader(*node->as_table(), "[tcp] ");
  const auto listen = reader.String("listen");
  const bool allow_remote = reader.Bool("allow_plaintext_remote").value_or(false);
  if (!listen) reader.Missing("listen");
  const toml::node& where = *reader.Take("listen");
  const size_t colon = listen->rfind(':');
  std::string address = listen->substr(0, colon);
  if (address.size() > 2 && address.front() == '[' && address.back() == ']')
    address = address.substr(1, address.size() - 2);
  const std::string port = colon == std::string::npos ? "" : listen->substr(colon + 1);
  const bool digits =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoul(port) > 65535 || !IsNumericAddress(address)) {
    reader.Fail(
        where, "listen",
        "must be a numeric address and a port such as \"127.0.0.1:7470\", but is \"" + *listen + "\"");
  }
  if (!IsLoopback(address) && !allow_remote) {
    reader.Fail(where, "listen",
                "is not a loopback address: the connection is neither encrypted nor authenticated; "
                "use 127.0.0.1, or set allow_plaintext_remote = true on a network that you trust");
  }
  config.tcp = {address, uint16_t(std::stoul(port)),
                uint32_t(reader.Number("max_sessions", 1, kMaxSessions).value_or(config.max_sessions)),
                ReadShare(reader, "")};
  reader.RefuseUnknownKeys();
}

// Every configured VM can start, whatever the others do; so what is guaranteed is at most what there is.
void ShareOutSessions(TableReader& reader, Config& config) {
  const auto reserved = reader.Number("reserved_sessions", 0, config.max_sessions);
  uint64_t demanded = 0;
  uint32_t silent = 0;
  for (const VmConfig& vm : config.vms) {
    if (vm.guaranteed_sessions == kNotConfigured) {
      ++silent;
    } else {
      demanded += vm.guaranteed_sessions;
    }
  }
  demanded += reserved.value_or(0);
  if (demanded > config.max_sessions) {
    const toml::node* node = reader.Take("vm");
    reader.Fail(node != nullptr ? *node : *reader.Take("reserved_sessions"), "guaranteed_sessions",
                "and reserved_sessions are " + std::to_string(demanded) + " together, more than the " +
                    std::to_string(config.max_sessions) + " of max_sessions; raise max_sessions");
  }
  const auto free = uint32_t(config.max_sessions - demanded);
  for (VmConfig& vm : config.vms) {
    if (vm.guaranteed_sessions == kNotConfigured)
      vm.guaranteed_sessions = std::min({kDefaultGuarantee, free / (silent + 1), vm.max_sessions});
  }
  config.reserved_sessions =
      reserved.value_or(std::min(config.max_sessions / kReservedPart, free / (silent + 1)));
  config.local_max_sessions =
      uint32_t(reader.Number("local_max_sessions", 1, kMaxSessions).value_or(config.max_sessions));
  config.guaranteed_spares = uint32_t(
      reader.Number("guaranteed_spares", 0, kMaxSpareWorkers).value_or(config.vms.size() >= 2 ? 1 : 0));
}

// A driver library that is named by its path has its management library in the same folder.
std::string LibraryBeside(const std::string& driver) {
  const std::string name = "libnvidia-ml.so.1";
  const size_t slash = driver.rfind('/');
  const std::string beside = slash == std::string::npos ? "" : driver.substr(0, slash + 1) + name;
  return !beside.empty() && access(beside.c_str(), R_OK) == 0 ? beside : name;
}

Config ReadConfig(const toml::table& table) {
  TableReader reader(table, "");
  Config config;
  config.socket = reader.String("socket").value_or(config.socket);
  CheckAbsolute(reader, "socket", config.socket);
  if (config.socket.size() > kMaxSocketPathBytes) {
    reader.Fail(*reader.Take("socket"), "socket",
                "is longer than the 107 bytes that a UNIX socket's path may have");
  }
  if (auto mode = reader.String("socket_mode")) config.socket_mode = Mode(reader, "socket_mode", *mode);
  config.socket_group = reader.String("socket_group").value_or("");
  config.worker = reader.String("worker").value_or(ProgramFolder() + "/causeway-worker");
  CheckAbsolute(reader, "worker", config.worker);
  config.driver_library = reader.String("driver_library").value_or(config.driver_library);
  config.nvml_library = reader.String("nvml_library").value_or(LibraryBeside(config.driver_library));
  config.nvml_shows_all = reader.Bool("nvml_shows_all").value_or(config.nvml_shows_all);
  config.allow_pageable_access = reader.Bool("allow_pageable_access").value_or(config.allow_pageable_access);
  config.spare_workers =
      uint32_t(reader.Number("spare_workers", 0, kMaxSpareWorkers).value_or(config.spare_workers));
  config.local_region_mib =
      reader.Number("local_region_mib", kMinRegionMib, kMaxRegionMib).value_or(config.local_region_mib);
  CheckRegionMib(reader, "local_region_mib", config.local_region_mib);
  config.image_cache_mib =
      reader.Number("image_cache_mib", 0, kMaxImageCacheMib).value_or(config.image_cache_mib);
  config.max_sessions =
      uint32_t(reader.Number("max_sessions", 1, kMaxSessions).value_or(config.max_sessions));
  config.local_share = ReadShare(reader, "local_");
  config.worker_users = ReadWorkerUsers(reader, config.worker_users);
  if (auto level = reader.String("log_level")) config.log_level = Level(reader, "log_level", *level);
  config.log_file = reader.String("log_file").value_or("");
  config.admin_group = reader.String("admin_group").value_or("");
  ReadVms(reader, config);
  ShareOutSessions(reader, config);
  ReadTcp(reader, config);
  reader.RefuseUnknownKeys();
  return config;
}

Error At(const std::string& path, const toml::source_position& where, const std::string& text) {
  return Error{path + ":" + std::to_string(where.line) + ": " + text + "."};
}

}  // namespace

Result<Config> LoadConfig(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0) {
    return Error{"The configuration file " + path + " cannot be read: " + ErrnoText() + "."};
  }
  try {
    return ReadConfig(toml::parse_file(path));
  } catch (const toml::parse_error& error) {
    return At(path, error.source().begin, "not valid TOML: " + std::string(error.description()));
  } catch (const BadValue& bad) {
    return At(path, bad.where, bad.text);
  }
}

std::string ProgramFolder() {
  char path[PATH_MAX];
  const ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path));
  if (bytes <= 0) return "/usr/bin";
  const std::string program(path, size_t(bytes));
  return program.substr(0, program.rfind('/'));
}

}  // namespace causeway::daemon
