// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/control/share_requests.h"

#include <algorithm>

#include "host_backend/common/shares/account_page.h"
#include "host_backend/daemon/process/log.h"
#include "host_backend/daemon/toml/share_keys.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::daemon {
namespace {

constexpr std::string_view kVm = "vm:", kUser = "uid:";

std::string LinkText(const ShareTerms& terms) {
  return terms.pcie_mib_per_s == 0
             ? "no cap of its copies"
             : "a cap of its copies of " + std::to_string(terms.pcie_mib_per_s) + " MiB/s";
}

std::string ReloadAfterwards(const std::string& path) {
  return " of " + path + " and run `causeway reload`; nothing was changed.";
}

}  // namespace

void ShareRequests::Handle(const ControlRequest& request, const Answer& answer) {
  using What = ControlRequest::What;
  if (request.turn_ms) return answer(SetTurn(request));
  const auto scope = settings_.ScopeOf(request.name);
  if (!scope.ok()) return answer(Refused(scope.error()));
  if (const std::string share = share_of_(scope.value());
      request.what == What::kSet && share != scope.value()) {
    return answer(Refused(scope.value() + " has one share of the GPUs together with all of " + share +
                          "; set it for " + share + "."));
  }
  if (request.what == What::kSet) return Set(request, scope.value(), answer);
  const bool pauses = request.what == What::kPause;
  if (const std::string why = settings_.Pause(scope.value(), pauses); !why.empty())
    return answer(Refused(why));
  LogInfo(scope.value() + (pauses ? " is paused: no work of it starts" : " is paused no more"));
  answer(Done(scope.value()));
}

void ShareRequests::Set(const ControlRequest& request, const std::string& scope, const Answer& answer) {
  const auto done = [this, scope, answer, persist = request.persist](const std::string& why) {
    if (!why.empty()) return answer(Refused(why));
    const ShareTerms terms = settings_.TermsOf(scope);
    LogInfo(scope + " has weight " + std::to_string(terms.weight) + ", cap " +
            std::to_string(terms.cap_percent) + " %, reserve " + std::to_string(terms.reserve_percent) +
            " %, class " + NameOf(terms.share_class) + " and " + LinkText(terms) +
            (persist ? ", which is stored" : " until the next reload"));
    answer(Done(scope));
  };
  if (!request.persist) return done(settings_.Set(scope, request.change));
  if (const std::string why = WhyNotKept(scope, request.change); !why.empty()) return done(why);
  if (const auto checked = settings_.Checked(scope, request.change); !checked.ok())
    return done(checked.error());
  vms_.Persist(scope.substr(kVm.size()), request.change, done);
}

// A file that people write is not written by a program: what it says of a VM may stand beside comments, or come from a
// template. The sentence says what to write where.
std::string ShareRequests::WhyNotKept(const std::string& scope, const ShareChange& change) const {
  if (scope.starts_with(kVm)) {
    const std::string name = scope.substr(kVm.size());
    if (vms_.IsAdded(name)) return {};
    return "VM " + name + " is in causewayd's configuration file, which --persist does not write; write " +
           change.Keys() + " into its table" + ReloadAfterwards(path_);
  }
  const std::string number = scope.starts_with(kUser) ? scope.substr(kUser.size()) : "";
  if (!number.empty() && number.find(':') == std::string::npos) {
    return "--persist does not write causewayd's configuration file; write " + change.Keys() +
           " into a [[user]] table with `uid = " + number + "`" + ReloadAfterwards(path_);
  }
  return "Nothing is stored for " + scope + " alone; what is set for it lasts until the next reload.";
}

Json ShareRequests::SetTurn(const ControlRequest& request) {
  if (!IsKnownGpu(request.name)) {
    return Refused(
        "causewayd knows no GPU " + request.name +
        ": its configuration does not name it and no session has shared it; `nvidia-smi -L` shows UUIDs.");
  }
  const std::string turn_ms = JsonText(*request.turn_ms);
  if (request.persist) {
    return Refused("--persist does not write causewayd's configuration file; write `turn_ms = " + turn_ms +
                   "` into a [[gpu]] table with `uuid = \"" + request.name + "\"`" + ReloadAfterwards(path_));
  }
  if (const std::string why = settings_.SetTurn(request.name, *request.turn_ms); !why.empty())
    return Refused(why);
  LogInfo("turns on " + request.name + " last " + turn_ms + " ms until the next reload");
  return {{"ok", true}, {"gpu", request.name}, {"turn_ms", *request.turn_ms}};
}

bool ShareRequests::IsKnownGpu(const std::string& gpu) const {
  const DeviceUuid uuid = UuidOf(gpu);
  if (!IsGpuUuid(gpu) || uuid == DeviceUuid{}) return false;
  const auto same = [&](const std::string& other) { return UuidOf(other) == uuid; };
  const auto shares = shares_();
  const uint64_t device = DeviceHash(uuid.data());
  const auto gpus = settings_.Gpus();
  return std::any_of(gpus.begin(), gpus.end(), same) ||
         std::any_of(shares.begin(), shares.end(),
                     [&](const ShareStatus& share) { return share.device == device; });
}

Json ShareRequests::Done(const std::string& scope) const {
  const ShareTerms terms = settings_.TermsOf(scope);
  Json json = {{"ok", true},
               {"scope", scope},
               {"weight", terms.weight},
               {"cap", terms.cap_percent},
               {"reserve", terms.reserve_percent},
               {"class", NameOf(terms.share_class)},
               {"pcie_mib_per_s", terms.pcie_mib_per_s},
               {"paused", terms.paused},
               {"until_reload", settings_.is_set(scope)}};
  return json;
}

}  // namespace causeway::daemon
