// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/control/control_request.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "host_backend/common/control_socket.h"
#include "host_backend/common/json.h"
#include "host_backend/common/plain_name.h"
#include "host_backend/daemon/toml/share_keys.h"
#include "host_backend/launcher/protocol.h"

namespace causeway::daemon {
namespace {

// The first sentence that fails is thrown by any reader below and caught in DecodeControlRequest.
struct Wrong {
  std::string sentence;
};

class ObjectReader {
 public:
  explicit ObjectReader(const Json& object) : object_(object) {}

  std::string Text(const char* key, size_t most_bytes) {
    const Json* value = Take(key);
    if (value == nullptr) return {};
    if (!value->is_string()) throw Wrong{std::string(key) + " must be a text."};
    auto text = value->get<std::string>();
    if (text.size() > most_bytes) throw Wrong{std::string(key) + " is too long."};
    return text;
  }

  uint64_t Number(const char* key, uint64_t least, uint64_t most) {
    const Json* value = Take(key);
    if (value == nullptr) return 0;
    const uint64_t number = value->is_number_unsigned() ? value->get<uint64_t>() : least - 1;
    if (!value->is_number_unsigned() || number < least || number > most) {
      throw Wrong{std::string(key) + " must be a whole number from " + std::to_string(least) + " to " +
                  std::to_string(most) + "."};
    }
    return number;
  }

  bool Flag(const char* key) {
    const Json* value = Take(key);
    if (value != nullptr && !value->is_boolean()) throw Wrong{std::string(key) + " must be true or false."};
    return value != nullptr && value->get<bool>();
  }

  bool Has(const char* key) const { return object_.contains(key); }

  double Real(const char* key, double least, double most) {
    const Json* value = Take(key);
    const double number = value != nullptr && value->is_number() ? value->get<double>() : std::nan("");
    if (!(number >= least && number <= most))
      throw Wrong{std::string(key) + " must be a number from " + JsonText(least) + " to " + JsonText(most) +
                  "."};
    return number;
  }

  std::vector<std::string> Gpus(const char* key) {
    std::vector<std::string> gpus;
    const Json* value = Take(key);
    if (value == nullptr) return gpus;
    if (!value->is_array() || value->empty() || value->size() > kMaxGpus)
      throw Wrong{std::string(key) + " must be a list of 1 to " + std::to_string(kMaxGpus) + " UUIDs."};
    for (const Json& each : *value) {
      const std::string uuid = each.is_string() ? each.get<std::string>() : "";
      if (!IsGpuUuid(uuid) || std::find(gpus.begin(), gpus.end(), uuid) != gpus.end()) {
        throw Wrong{
            "A GPU is named by its UUID (GPU-... or MIG-...), as nvidia-smi -L shows it, and only once."};
      }
      gpus.push_back(uuid);
    }
    return gpus;
  }

  void RefuseOthers() const {
    for (const auto& item : object_.items()) {
      if (known_.count(item.key()) == 0)
        throw Wrong{
            "This request has a field that this causewayd does not know; install command and daemon of "
            "one version."};
    }
  }

 private:
  const Json* Take(const char* key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  const Json& object_;
  std::set<std::string> known_;
};

constexpr size_t kMostBytes = 64;

// What `causeway set` changes: of a VM, a user or a peer, or how long turns on a GPU are.
void ReadSet(ObjectReader& reader, ControlRequest& request) {
  const auto number = [&](const char* key, uint64_t least, uint64_t most, std::optional<uint32_t>* value) {
    if (reader.Has(key)) *value = uint32_t(reader.Number(key, least, most));
  };
  ShareChange& change = request.change;
  number("weight", 1, kMostWeight, &change.weight);
  number("cap", 1, 100, &change.cap_percent);
  number("reserve", 0, 100, &change.reserve_percent);
  number("pcie_mib_per_s", 0, kMostPcieMibPerS, &change.pcie_mib_per_s);
  if (reader.Has("class")) {
    change.share_class = ShareClassNamed(reader.Text("class", kMostBytes));
    if (!change.share_class) throw Wrong{"class must be latency, normal or background."};
  }
  if (reader.Has("turn_ms")) request.turn_ms = reader.Real("turn_ms", kLeastTurnMs, kMostTurnMs);
  request.persist = reader.Flag("persist");
  if (change.empty() != request.turn_ms.has_value())
    throw Wrong{"What is set is weight, cap, reserve, class or pcie_mib_per_s of a VM, or turn_ms of a GPU."};
}

std::string ReadScopeName(ObjectReader& reader) {
  const std::string name = reader.Text("name", kMostBytes);
  const bool shown =
      std::none_of(name.begin(), name.end(), [](char c) { return uint8_t(c) < ' ' || c == 127; });
  if (name.empty() || !shown) throw Wrong{"A VM, user or peer is named as `causeway status` shows it."};
  return name;
}

ControlRequest Read(const Json& object) {
  ObjectReader reader(object);
  ControlRequest request;
  const std::string what = reader.Text("do", kMostBytes);
  if (what == "add") {
    request.what = ControlRequest::What::kAdd;
    request.memory_mib = reader.Number("memory_mib", 1, std::numeric_limits<uint32_t>::max());
    const bool fits = request.memory_mib >= kMinRegionMib && request.memory_mib <= kMaxRegionMib;
    if (!fits || !std::has_single_bit(request.memory_mib)) {
      throw Wrong{"The region's size must be a power of two, from " + std::to_string(kMinRegionMib) + " to " +
                  std::to_string(kMaxRegionMib) + " MiB; correct --memory."};
    }
    request.xen_domain = reader.Text("xen_domain", kMostBytes);
    if (!request.xen_domain.empty() && !IsPlainName(request.xen_domain))
      throw Wrong{"A Xen domain's name has the letters of a VM's name; rename the domain by `xl rename`."};
    if (!request.xen_domain.empty() && request.memory_mib > kMaxGrantedMib) {
      throw Wrong{"A Xen domain's region has at most " + std::to_string(kMaxGrantedMib) +
                  " MiB; correct --memory."};
    }
    request.group = reader.Text("group", kMostBytes);
    request.user =
        uint32_t(reader.Number("user", launcher::kFirstPerson, std::numeric_limits<int32_t>::max()));
    if (!request.xen_domain.empty() && (!request.group.empty() || request.user != 0))
      throw Wrong{"A Xen domain's region belongs to nobody but the domain."};
    if (!request.group.empty() && request.user != 0)
      throw Wrong{"A region belongs to a group or to a user, not to both."};
    request.gpus = reader.Gpus("gpus");
    request.doorbell = reader.Flag("doorbell");
    if (request.doorbell && !request.xen_domain.empty())
      throw Wrong{"A Xen domain has no doorbell of this kind: its interrupts are event channels."};
  } else if (what == "remove") {
    request.what = ControlRequest::What::kRemove;
    request.force = reader.Flag("force");
  } else if (what == "reload") {
    request.what = ControlRequest::What::kReload;
  } else if (what == "upgrade") {
    request.what = ControlRequest::What::kUpgrade;
  } else if (what == "drain") {
    request.what = ControlRequest::What::kDrain;
    request.undo = reader.Flag("undo");
  } else if (what == "set") {
    request.what = ControlRequest::What::kSet;
    request.name = ReadScopeName(reader);
    ReadSet(reader, request);
  } else if (what == "pause" || what == "resume") {
    request.what = what == "pause" ? ControlRequest::What::kPause : ControlRequest::What::kResume;
    request.name = ReadScopeName(reader);
  } else if (what != "list") {
    throw Wrong{"This causewayd knows no such request; install command and daemon of one version."};
  }
  using What = ControlRequest::What;
  const bool names_vm =
      request.what == What::kAdd || request.what == What::kRemove || request.what == What::kDrain;
  if (names_vm) {
    request.name = reader.Text("name", kMostBytes);
    const bool all = request.what == ControlRequest::What::kDrain && request.name.empty();
    if (!all && !IsPlainName(request.name)) {
      throw Wrong{
          "A VM's name has 1 to 48 letters, digits, dots, dashes and underscores, and begins with a letter, "
          "a digit or an underscore; choose one by --name."};
    }
  }
  reader.RefuseOthers();
  return request;
}

}  // namespace

Json Refused(const std::string& sentence) {
  return {{"ok", false}, {"error", sentence}};
}

VmConfig AddedVm(const ControlRequest& request, const std::string& socket) {
  VmConfig vm;
  vm.name = request.name;
  vm.xen_domain = request.xen_domain;
  if (vm.xen_domain.empty()) vm.region_file = RegionFileOf(request.name);
  vm.region_mib = request.memory_mib;
  vm.region_group = request.group;
  vm.region_user = request.user;
  vm.share.gpus = request.gpus;
  if (request.doorbell) vm.doorbell_socket = DoorbellSocketOf(socket, request.name);
  return vm;
}

Result<ControlRequest> DecodeControlRequest(std::string_view packet) {
  if (packet.size() > kControlRequestBytes) return Error{"A request has at most 4096 bytes."};
  const Json object = Json::parse(packet, nullptr, false);
  if (!object.is_object()) return Error{"This is not a request of the causeway command."};
  try {
    return Read(object);
  } catch (const Wrong& wrong) {
    return Error{wrong.sentence};
  }
}

}  // namespace causeway::daemon
