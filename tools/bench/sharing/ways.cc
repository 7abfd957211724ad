// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/sharing/ways.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "host_backend/command/attach/control_client.h"
#include "host_backend/common/control_socket.h"
#include "tools/bench/crew/driver.h"

namespace causeway::bench::sharing {
namespace {

constexpr char kTurnsVariable[] = "CAUSEWAY_TURNS";

std::string ConfigurationOf(const DaemonPlan& plan) {
  std::string text = "max_sessions = 128\n";
  if (plan.outlived) text += "keep_sessions_s = 20\n";
  for (int user = 0; user < plan.users; ++user) {
    const auto terms = plan.terms.find(user);
    text += "[[user]]\nuid = " + std::to_string(kFirstUser + user) + "\nown_spares = 1\n" +
            (terms == plan.terms.end() ? "" : terms->second + "\n");
  }
  return text;
}

// What this process has of the driver's and of Causeway's own: a session with a variable of the driver's gets a worker that
// is started for it, and none of the spares.
Environment WithoutOwn(bool native) {
  Environment environment;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view entry(*each);
    const std::string name(entry.substr(0, entry.find('=')));
    const bool chooses =
        native && name == "CUDA_VISIBLE_DEVICES";  // the daemon has it, which decides for the others
    if ((name.starts_with("CAUSEWAY") || name.starts_with("CUDA_")) && !chooses)
      environment.emplace_back(name, "");
  }
  // Where no user may write: natively no cache of compiled code is shared or kept.
  environment.emplace_back("HOME", "/nonexistent");
  return environment;
}

}  // namespace

bool HasMps() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/nvidia-cuda-mps-control").c_str(), X_OK) == 0) return true;
  }
  return false;
}

int LostOf(Crew& crew, int count) {
  int lost = 0;
  for (int i = 0; i < count; ++i) lost += crew.cell(i).state == State::kFailed || crew.Reap(i, 0) ? 1 : 0;
  return lost;
}

std::string Ground::ScopeOf(int user) {
  return "uid:" + std::to_string(kFirstUser + user);
}

Result<std::unique_ptr<Ground>> Ground::Make(Way way, const Host& host, const DaemonPlan& plan) {
  std::unique_ptr<Ground> ground(new Ground(way, host));
  if (way == kMps) {
    try {
      ground->mps_ = std::make_unique<MpsServer>();
    } catch (const Failure& failure) {
      return Error{failure.what()};
    }
  }
  if (way == kCauseway) {
    command::PrivateDaemonOptions options = host.daemon;
    options.for_all_users = true;
    options.spare_workers = plan.spares;
    options.configuration = ConfigurationOf(plan);
    if (!plan.takes_turns) setenv(kTurnsVariable, "0", 1);
    auto started = command::PrivateDaemon::Start(options);
    if (!plan.takes_turns) unsetenv(kTurnsVariable);
    if (!started.ok()) return Error{started.error()};
    ground->daemon_.reset(started.value());
    if (plan.programs) {
      if (std::string text = ground->CopyLibraries(); !text.empty()) return Error{text};
    }
  }
  return ground;
}

std::string Ground::CopyLibraries() {
  namespace fs = std::filesystem;
  const fs::path to = fs::path(daemon_->socket()).parent_path() / "libraries";
  std::error_code error;
  fs::create_directory(to, error);
  for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    const fs::path from = fs::path(daemon_->guest_library_folder()) / name;
    if (!error && fs::exists(from)) fs::copy_file(from, to / name, error);
    if (!error) fs::permissions(to, fs::perms(0755), error);
  }
  if (error) return "Causeway's libraries cannot be copied to " + to.string() + ": " + error.message() + ".";
  libraries_ = to.string();
  return {};
}

Place NativePlace(const Host& host, int user) {
  Place place{WithoutOwn(true), user, host.native};
  // For programs, which find it by its name.
  if (host.native.find('/') != std::string::npos)
    place.environment.emplace_back("LD_LIBRARY_PATH",
                                   std::filesystem::absolute(host.native).parent_path().string());
  return place;
}

Place Ground::PlaceOf(int user) const {
  if (way_ != kCauseway) {
    Place place = NativePlace(host_, way_ == kMps ? -1 : kFirstUser + user);
    if (way_ != kMps) return place;
    for (const auto& each : mps_->environment()) place.environment.push_back(each);
    return place;
  }
  Place place{WithoutOwn(false), kFirstUser + user, daemon_->guest_library_folder() + "/libcuda.so.1"};
  place.environment.emplace_back("CAUSEWAY", daemon_->address());
  place.environment.emplace_back("CAUSEWAY_LOG", "off");
  if (!libraries_.empty()) place.environment.emplace_back("LD_LIBRARY_PATH", libraries_);
  return place;
}

Result<Json> Ground::Ask(const Json& request) const {
  return command::AskControl(ControlSocketOf(daemon_->socket()), request);
}

bool Ground::AwaitSpares(double limit_s) const {
  for (const uint64_t end = NowNs() + static_cast<uint64_t>(limit_s * 1e9); NowNs() < end; usleep(5000)) {
    const Json workers = Status().value("workers", Json::object());
    const auto number = [&](const char* key) { return workers.value(key, int64_t{-1}); };
    if (number("starting") == 0 && number("spare_ready") >= number("spare_wanted")) return true;
  }
  return false;
}

Json Ground::Status() const {
  if (daemon_ == nullptr) return Json::object();
  const auto status = command::QueryStatus(daemon_->socket());
  Json json = status.ok() ? Json::parse(status.value(), nullptr, false) : Json();
  return json.is_object() ? json : Json::object();
}

}  // namespace causeway::bench::sharing
