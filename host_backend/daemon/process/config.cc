// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/process/config.h"

#include <arpa/inet.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "host_backend/common/control_socket.h"
#include "host_backend/common/key_folder.h"
#include "host_backend/common/plain_name.h"
#include "host_backend/common/remote/remote_hand_over.h"
#include "host_backend/daemon/process/worker_programs.h"
#include "host_backend/daemon/toml/share_keys.h"
#include "host_backend/daemon/toml/table_reader.h"
#include "host_backend/launcher/protocol.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::daemon {
namespace {

constexpr size_t kMaxSocketPathBytes = 107;
constexpr size_t kMaxAttachGroups = 16;
constexpr uint32_t kFirstPerson = launcher::kFirstPerson;
constexpr uint32_t kLastPerson = 0x7fffffff;
constexpr uint32_t kNotConfigured = ~uint32_t{0};
// Where the configuration does not say otherwise.
constexpr uint32_t kDefaultGuarantee = 2;  // sessions of a VM
constexpr uint32_t kReservedPart = 8;      // of max_sessions: one in so many is for users and peers

void CheckRegionMib(TableReader& reader, std::string_view key, uint64_t mib) {
  if (!std::has_single_bit(mib)) {
    reader.Fail(*reader.Take(key), key, "is " + std::to_string(mib) + " but must be a power of two");
  }
}

void CheckAbsolute(TableReader& reader, std::string_view key, const std::string& path) {
  if (path[0] != '/')
    reader.Fail(*reader.Take(key), key, "must be an absolute path, but is \"" + path + "\"");
}

void CheckSocketPath(TableReader& reader, std::string_view key, const std::string& path) {
  if (const toml::node* node = reader.Take(key)) {
    CheckAbsolute(reader, key, path);
    if (path.size() > kMaxSocketPathBytes)
      reader.Fail(*node, key, "is longer than the 107 bytes that a UNIX socket's path may have");
  }
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

// The keys `prefix`device_memory_mib, `prefix`gpus, those of HostShare and of ShareTerms.
GpuShare ReadShare(TableReader& reader, const std::string& prefix, bool may_reserve) {
  GpuShare share;
  share.terms = ReadShareTerms(reader, prefix, {}, may_reserve);
  reader.Number(prefix + "device_memory_mib", 1, kMaxDeviceMemoryMib, &share.device_memory_mib);
  reader.Number(prefix + "host_memory_mib", 64, kMaxDeviceMemoryMib, &share.host.memory_mib);
  reader.Number(prefix + "max_threads", 16, 1u << 22, &share.host.threads);
  reader.Number(prefix + "cpu_weight", 1, 10'000, &share.host.cpu_weight);
  reader.Number(prefix + "cpu_percent", 1, 1'000'000, &share.host.cpu_percent);
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
    if (!IsGpuUuid(uuid))
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

// Groups are looked up here where the default names some that this host may lack.
std::vector<std::string> ReadAttachGroups(TableReader& reader) {
  constexpr std::string_view kKey = "attach_groups";
  std::vector<std::string> groups;
  const toml::node* node = reader.Take(kKey);
  if (node == nullptr) {
    for (const char* usual : {"libvirt-qemu", "qemu"}) {
      if (getgrnam(usual) != nullptr) groups.emplace_back(usual);
    }
    return groups;
  }
  const toml::array* list = node->as_array();
  if (list == nullptr || list->size() > kMaxAttachGroups)
    reader.Fail(*node, kKey, "must be a list of at most 16 groups such as [\"libvirt-qemu\"]");
  for (const auto& item : *list) {
    const auto* text = item.as_string();
    if (text == nullptr || getgrnam(text->get().c_str()) == nullptr)
      reader.Fail(item, kKey, "must name groups of this host that QEMU runs as, each in quotes");
    groups.push_back(text->get());
  }
  return groups;
}

// The socket by which root and one group add and remove VMs.
void ReadControl(TableReader& reader, Config& config) {
  constexpr const char* kGroup = "causeway";
  config.state_folder = reader.String("state_folder").value_or("");
  if (!config.state_folder.empty()) CheckAbsolute(reader, "state_folder", config.state_folder);
  config.control_socket = reader.String("control_socket").value_or(ControlSocketOf(config.socket));
  CheckSocketPath(reader, "control_socket", config.control_socket);
  config.control_group = reader.String("control_group").value_or(getgrnam(kGroup) != nullptr ? kGroup : "");
  config.attach_groups = ReadAttachGroups(reader);
}

void CheckXenDomain(TableReader& reader, const VmConfig& vm) {
  if (vm.xen_domain.empty()) return;
  if (!IsPlainName(vm.xen_domain))
    reader.Fail(*reader.Take("xen_domain"), "xen_domain",
                "must be the name of a Xen domain as `xl list` shows it");
  if (vm.region_mib > kMaxGrantedMib) {
    reader.Fail(*reader.Take("region_mib"), "region_mib",
                "must be at most " + std::to_string(kMaxGrantedMib) +
                    " for a Xen domain, whose memory is granted page by page");
  }
}

VmConfig ReadVm(const toml::table& table) {
  TableReader reader(table, "[[vm]] ");
  VmConfig vm;
  vm.name = reader.Required("name");
  vm.xen_domain = reader.String("xen_domain").value_or("");
  if (vm.xen_domain.empty()) {
    vm.region_file = reader.Required("region_file");
    CheckAbsolute(reader, "region_file", vm.region_file);
  }
  reader.Number("region_mib", kMinRegionMib, kMaxRegionMib, &vm.region_mib);
  CheckRegionMib(reader, "region_mib", vm.region_mib);
  CheckXenDomain(reader, vm);
  vm.region_group = reader.String("region_group").value_or("");
  reader.Number("region_user", kFirstPerson, kLastPerson, &vm.region_user);
  vm.doorbell_socket = reader.String("doorbell_socket").value_or("");
  if (!vm.doorbell_socket.empty()) CheckAbsolute(reader, "doorbell_socket", vm.doorbell_socket);
  reader.Number("max_sessions", 1, kMaxSlots, &vm.max_sessions);
  vm.guaranteed_sessions = kNotConfigured;  // without the key ShareOutSessions decides
  reader.Number("guaranteed_sessions", 0, vm.max_sessions, &vm.guaranteed_sessions);
  vm.share = ReadShare(reader, "", true);
  reader.Number("own_spares", 0, kMaxSpareWorkers, &vm.own_spares);
  reader.RefuseUnknownKeys();
  return vm;
}

void ReadVms(TableReader& reader, Config& config) {
  const toml::array* list = reader.Tables("vm");
  if (list == nullptr) return;
  std::set<std::string> names;
  std::set<std::string> files;
  for (const auto& entry : *list) {
    config.vms.push_back(ReadVm(*entry.as_table()));
    const VmConfig& vm = config.vms.back();
    if (!names.insert(vm.name).second) reader.Fail(entry, "vm", "name \"" + vm.name + "\" is used twice");
    const bool granted = !vm.xen_domain.empty();
    if (!files.insert(granted ? "xen:" + vm.xen_domain : vm.region_file).second) {
      reader.Fail(entry, "vm",
                  (granted ? "xen_domain \"" + vm.xen_domain : "region_file \"" + vm.region_file) +
                      "\" is used twice; regions are never shared");
    }
    if (!vm.doorbell_socket.empty() && !files.insert(vm.doorbell_socket).second) {
      reader.Fail(entry, "vm",
                  "doorbell_socket \"" + vm.doorbell_socket + "\" is used twice; each VM has its own");
    }
  }
}

void ReadUsers(TableReader& outer, Config& config) {
  const toml::array* list = outer.Tables("user");
  if (list == nullptr) return;
  for (const auto& entry : *list) {
    TableReader reader(*entry.as_table(), "[[user]] ");
    const auto uid = reader.Number("uid", 0, std::numeric_limits<uint32_t>::max() - 1);
    if (!uid) reader.Missing("uid");
    uint32_t spares = 0;
    reader.Number("own_spares", 0, kMaxSpareWorkers, &spares);
    const std::string scope = "uid:" + std::to_string(*uid);
    config.user_terms[scope] = ReadShareTerms(reader, "", config.local_share.terms, true);
    reader.RefuseUnknownKeys();
    if (!config.own_spares.emplace(scope, spares).second)
      outer.Fail(entry, "user", "uid " + std::to_string(*uid) + " is used twice");
  }
}

// Those of scopes, which all start when the daemon does.
void AddOwnSpares(TableReader& reader, Config& config) {
  for (const VmConfig& vm : config.vms) config.own_spares["vm:" + vm.name] = vm.own_spares;
  std::erase_if(config.own_spares, [](const auto& own) { return own.second == 0; });
  uint64_t total = 0;
  for (const auto& [scope, count] : config.own_spares) total += count;
  if (total <= kMaxSpareWorkers) return;
  const toml::node* node = reader.Take("vm");
  reader.Fail(node != nullptr ? *node : *reader.Take("user"), "own_spares",
              "are " + std::to_string(total) + " together, more than " + std::to_string(kMaxSpareWorkers));
}

void ReadTurns(TableReader& outer, Config& config) {
  config.turn_ms = outer.Real("turn_ms", kLeastTurnMs, kMostTurnMs).value_or(config.turn_ms);
  const toml::array* list = outer.Tables("gpu");
  if (list == nullptr) return;
  for (const auto& entry : *list) {
    TableReader reader(*entry.as_table(), "[[gpu]] ");
    const std::string uuid = reader.Required("uuid");
    if (!IsGpuUuid(uuid) || UuidOf(uuid) == DeviceUuid{})
      reader.Fail(*reader.Take("uuid"), "uuid",
                  "must be a GPU's whole UUID (GPU-... or MIG-...), as nvidia-smi -L shows it");
    const double turn_ms = reader.Real("turn_ms", kLeastTurnMs, kMostTurnMs).value_or(config.turn_ms);
    reader.RefuseUnknownKeys();
    if (!config.gpu_turn_ms.emplace(uuid, turn_ms).second)
      outer.Fail(entry, "gpu", "uuid \"" + uuid + "\" is used twice");
  }
}

// The line that is named is that of the first reservation which is too much.
void CheckReservations(TableReader& outer, const Config& config) {
  Reservations sum;
  const auto add = [&](const char* kind, size_t index, const std::string& scope, uint32_t percent,
                       const std::vector<std::string>& gpus) {
    const std::string why = sum.Add(scope, percent, gpus);
    if (why.empty()) return;
    const toml::table& table = *outer.Tables(kind)->get(index)->as_table();
    TableReader(table, "[[" + std::string(kind) + "]] ").Fail(*table.get("reserve"), "reserve", why);
  };
  for (size_t i = 0; i < config.vms.size(); ++i) {
    const VmConfig& vm = config.vms[i];
    add("vm", i, "VM " + vm.name, vm.share.terms.reserve_percent, vm.share.gpus);
  }
  for (size_t i = 0; i < config.remotes.size(); ++i) {
    const VmConfig& vm = config.remotes[i];
    add("remote", i, "VM " + vm.name, vm.share.terms.reserve_percent, vm.share.gpus);
  }
  const toml::array* users = outer.Tables("user");
  for (size_t i = 0; users != nullptr && i < users->size(); ++i) {
    const auto uid = users->get(i)->as_table()->get("uid")->value<int64_t>();
    const std::string scope = "uid:" + std::to_string(uid.value_or(0));
    add("user", i, "user " + scope.substr(4), config.user_terms.at(scope).reserve_percent,
        config.local_share.gpus);
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

// The address and the port of one "address:port".
std::pair<std::string, uint16_t> ReadListen(const TableReader& reader, const toml::node& where,
                                            const std::string& listen, const std::string& example) {
  const size_t colon = listen.rfind(':');
  std::string address = listen.substr(0, colon);
  if (address.size() > 2 && address.front() == '[' && address.back() == ']')
    address = address.substr(1, address.size() - 2);
  const std::string port = colon == std::string::npos ? "" : listen.substr(colon + 1);
  const bool digits =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoul(port) > 65535 || !IsNumericAddress(address)) {
    reader.Fail(
        where, "listen",
        "must be a numeric address and a port such as \"" + example + "\", but is \"" + listen + "\"");
  }
  return {address, uint16_t(std::stoul(port))};
}

void ReadTcp(TableReader& outer, Config& config) {
  const toml::node* node = outer.Take("tcp");
  if (node == nullptr) return;
  if (!node->is_table()) outer.Fail(*node, "tcp", "must be a table that begins with [tcp]");
  TableReader reader(*node->as_table(), "[tcp] ");
  const std::string listen = reader.Required("listen");
  const bool allow_remote = reader.Bool("allow_plaintext_remote").value_or(false);
  const toml::node& where = *reader.Take("listen");
  const auto [address, port] = ReadListen(reader, where, listen, "127.0.0.1:7470");
  const std::string bridge = reader.String("bridge").value_or("");
  if (!IsLoopback(address) && (!allow_remote || bridge.empty())) {
    reader.Fail(
        where, "listen",
        "is not a loopback address: the connection is neither encrypted nor authenticated; use 127.0.0.1, "
        "or set allow_plaintext_remote = true and name a bridge of this host that you trust: bridge = "
        "\"br0\"");
  }
  config.tcp = {address, port,
                uint32_t(reader.Number("max_sessions", 1, kMaxSessions).value_or(config.max_sessions)),
                ReadShare(reader, "", false), bridge};
  reader.RefuseUnknownKeys();
}

void ReadTls(TableReader& outer, Config& config) {
  const toml::node* node = outer.Take("tls");
  if (node == nullptr) return;
  if (!node->is_table()) outer.Fail(*node, "tls", "must be a table that begins with [tls]");
  TableReader reader(*node->as_table(), "[tls] ");
  constexpr size_t kMostListeners = 16;
  const std::string form = "must be a list of 1 to 16 addresses such as [\"0.0.0.0:7471\", \"[::]:7471\"]";
  const toml::node* listen = reader.Take("listen");
  if (listen == nullptr) reader.Missing("listen");
  const toml::array* list = listen->as_array();
  if (list == nullptr || list->empty() || list->size() > kMostListeners) reader.Fail(*listen, "listen", form);
  for (const auto& item : *list) {
    if (!item.is_string()) reader.Fail(item, "listen", form);
    config.tls.listen.push_back(ReadListen(reader, item, item.as_string()->get(), "0.0.0.0:7471"));
  }
  config.tls.keys = reader.String("keys").value_or(kKeyFolder);
  CheckAbsolute(reader, "keys", config.tls.keys);
  config.tls.hand_over = reader.String("hand_over_socket").value_or(HandOverSocketOf(config.socket));
  CheckSocketPath(reader, "hand_over_socket", config.tls.hand_over);
  constexpr const char* kUser = "causeway-tls";
  config.tls.user = reader.String("user").value_or(getpwnam(kUser) != nullptr ? kUser : "");
  if (!config.tls.user.empty() && getpwnam(config.tls.user.c_str()) == nullptr)
    reader.Fail(*reader.Take("user"), "user", "names no user of this host; causeway-tls runs as it");
  reader.RefuseUnknownKeys();
}

void ReadRemotes(TableReader& outer, Config& config) {
  const toml::array* list = outer.Tables("remote");
  if (list == nullptr) return;
  std::set<std::string> names;
  for (const VmConfig& vm : config.vms) names.insert(vm.name);
  for (const auto& entry : *list) {
    TableReader reader(*entry.as_table(), "[[remote]] ");
    VmConfig vm;
    vm.name = reader.Required("name");
    if (!IsPlainName(vm.name))
      reader.Fail(*reader.Take("name"), "name", "has other characters than a VM's name may have");
    if (!names.insert(vm.name).second)
      outer.Fail(entry, "remote",
                 "name \"" + vm.name + "\" is used twice; a [[vm]] may come by TLS as it is");
    reader.Number("max_sessions", 1, kMaxSessions, &vm.max_sessions);
    vm.share = ReadShare(reader, "", true);
    reader.RefuseUnknownKeys();
    config.remotes.push_back(std::move(vm));
  }
}

// Every configured VM can start, whatever the others do; so what is guaranteed is at most what there is.
void ShareOutSessions(TableReader& reader, Config& config) {
  const auto reserved = reader.Number("reserved_sessions", 0, config.max_sessions);
  uint64_t demanded = 0;
  uint32_t silent = 0;
  for (const VmConfig& vm : config.vms) {
    const bool is_silent = vm.guaranteed_sessions == kNotConfigured;
    silent += is_silent ? 1 : 0;
    demanded += is_silent ? 0 : vm.guaranteed_sessions;
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
  config.local_max_sessions = config.max_sessions;
  reader.Number("local_max_sessions", 1, kMaxSessions, &config.local_max_sessions);
  config.guaranteed_spares = config.vms.size() >= 2 ? 1 : 0;
  reader.Number("guaranteed_spares", 0, kMaxSpareWorkers, &config.guaranteed_spares);
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
  CheckSocketPath(reader, "socket", config.socket);
  if (auto mode = reader.String("socket_mode")) config.socket_mode = Mode(reader, "socket_mode", *mode);
  config.container_folder = reader.String("container_folder").value_or("");
  if (!config.container_folder.empty()) CheckAbsolute(reader, "container_folder", config.container_folder);
  config.socket_group = reader.String("socket_group").value_or("");
  config.workers = reader.String("workers").value_or(ProgramFolder() + "/workers");
  CheckAbsolute(reader, "workers", config.workers);
  config.worker =
      reader.String("worker").value_or(OwnWorker(config.workers, ProgramFolder() + "/causeway-worker"));
  CheckAbsolute(reader, "worker", config.worker);
  config.driver_library = reader.String("driver_library").value_or(config.driver_library);
  config.nvml_library = reader.String("nvml_library").value_or(LibraryBeside(config.driver_library));
  config.nvml_shows_all = reader.Bool("nvml_shows_all").value_or(config.nvml_shows_all);
  config.allow_pageable_access = reader.Bool("allow_pageable_access").value_or(config.allow_pageable_access);
  reader.Number("spare_workers", 0, kMaxSpareWorkers, &config.spare_workers);
  // Who wants none wants none of a demand's either.
  config.max_spare_workers = config.spare_workers == 0 ? 0 : std::max(kUsualMostSpares, config.spare_workers);
  reader.Number("max_spare_workers", config.spare_workers, kMaxSpareWorkers, &config.max_spare_workers);
  reader.Number("local_region_mib", kMinRegionMib, kMaxRegionMib, &config.local_region_mib);
  CheckRegionMib(reader, "local_region_mib", config.local_region_mib);
  reader.Number("compiled_kernels_mib", 1, kMaxCompiledKernelsMib, &config.compiled_kernels_mib);
  reader.Number("image_cache_mib", 0, kMaxImageCacheMib, &config.image_cache_mib);
  reader.Number("max_sessions", 1, kMaxSessions, &config.max_sessions);
  config.local_share = ReadShare(reader, "local_", false);
  config.worker_users = ReadWorkerUsers(reader, config.worker_users);
  reader.Number("keep_sessions_s", 0, 3600, &config.keep_sessions_s);
  reader.Number("wait_for_guests_s", 0, 3600, &config.wait_for_guests_s);
  config.remote_compression = reader.Bool("remote_compression").value_or(config.remote_compression);
  if (auto level = reader.String("log_level")) config.log_level = Level(reader, "log_level", *level);
  config.log_file = reader.String("log_file").value_or("");
  config.admin_group = reader.String("admin_group").value_or("");
  ReadControl(reader, config);
  ReadVms(reader, config);
  ShareOutSessions(reader, config);
  ReadTcp(reader, config);
  ReadTls(reader, config);
  ReadRemotes(reader, config);
  ReadUsers(reader, config);
  AddOwnSpares(reader, config);
  ReadTurns(reader, config);
  CheckReservations(reader, config);
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

Result<VmConfig> LoadAddedVm(const std::string& path) {
  try {
    const toml::table table = toml::parse_file(path);
    TableReader reader(table, "");
    Config config;
    ReadVms(reader, config);
    reader.RefuseUnknownKeys();
    if (config.vms.size() != 1) return Error{path + ": must hold one [[vm]] table."};
    VmConfig& vm = config.vms[0];
    if (!IsPlainName(vm.name))
      return Error{path + ": the VM's name has other characters than a name may have."};
    vm.guaranteed_sessions = 0;
    return vm;
  } catch (const toml::parse_error& error) {
    return At(path, error.source().begin, "not valid TOML: " + std::string(error.description()));
  } catch (const BadValue& bad) {
    return At(path, bad.where, bad.text);
  }
}

std::string AddedVmText(const VmConfig& vm) {
  toml::table entry{{"name", vm.name}, {"region_mib", int64_t(vm.region_mib)}};
  if (vm.xen_domain.empty()) {
    entry.insert("region_file", vm.region_file);
  } else {
    entry.insert("xen_domain", vm.xen_domain);
  }
  if (!vm.region_group.empty()) entry.insert("region_group", vm.region_group);
  if (vm.region_user != 0) entry.insert("region_user", int64_t(vm.region_user));
  if (!vm.doorbell_socket.empty()) entry.insert("doorbell_socket", vm.doorbell_socket);
  toml::array gpus;
  for (const std::string& gpu : vm.share.gpus) gpus.push_back(gpu);
  if (!gpus.empty()) entry.insert("gpus", std::move(gpus));
  AddShareTerms(entry, vm.share.terms);
  std::ostringstream text;
  text << "# Added by `causeway attach`, and removed by `causeway detach`.\n"
       << toml::table{{"vm", toml::array{std::move(entry)}}} << "\n";
  return text.str();
}

uint32_t GuaranteeFor(const Config& config, const std::vector<VmConfig>& others, uint32_t max_sessions) {
  uint64_t taken = config.reserved_sessions;
  for (const VmConfig& vm : others) taken += vm.guaranteed_sessions;
  const uint64_t free = config.max_sessions - std::min<uint64_t>(taken, config.max_sessions);
  return uint32_t(std::min<uint64_t>({kDefaultGuarantee, free, max_sessions}));
}

bool IsGpuUuid(const std::string& uuid) {
  return (uuid.starts_with("GPU-") || uuid.starts_with("MIG-")) && uuid.size() < 64 &&
         uuid.find_first_not_of("-0123456789abcdefABCDEFGPUMI") == std::string::npos;
}

std::string ProgramFolder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "/usr/bin" : program.parent_path().string();
}

}  // namespace causeway::daemon
