// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "host_backend/common/control_socket.h"
#include "host_backend/daemon/process/config_change.h"
#include "host_backend/daemon/region/region.h"
#include "host_backend/daemon/status.h"
#include "host_backend/daemon/takeover/next_program.h"
#include "host_backend/sandbox/filter.h"

namespace causeway::daemon {
namespace {

// As many descriptors as this process and the launcher are allowed, where a shell allows 1024 unless asked: the
// kernel lets a process send no descriptor while its user's processes have more on their way than that, and a
// worker, which may have 4096, is not to bring the daemon there.
// The kernel lets a table of descriptors of a process with threads grow when every processor has come past,
// which takes tens of milliseconds where they are busy: now, while there is one thread, it costs nothing.
void MakeRoomForDescriptors() {
  constexpr rlim_t kMost = 65'536;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMost));
  setrlimit(RLIMIT_NOFILE, &limit);
  const int last = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, int(std::min(limit.rlim_cur, kMost)) - 1);
  if (last >= 0) close(last);
}

// CAUSEWAY_SANDBOX of the administrator: report and learn log calls outside of the profile instead of ending
// the worker (docs/sandbox.md).
std::string SandboxMode() {
  const char* wanted = std::getenv("CAUSEWAY_SANDBOX");
  return sandbox::NameOf(sandbox::ModeOf(wanted != nullptr ? wanted : ""));
}

}  // namespace

Daemon::Daemon(const Config& config, std::string path, char** arguments)
    : path_(std::move(path)),
      arguments_(arguments),
      program_(ProgramPath()),
      config_(config),
      workers_(config_.worker, config_.workers),
      pool_(loop_, WorkerProgram{.programs = workers_, .sandbox = SandboxMode(), .question = &question_},
            {config_.spare_workers, config_.max_spare_workers, config_.guaranteed_spares},
            config_.image_cache_mib * kMib, config_.worker_users),
      scopes_(config_),
      zeroing_(loop_),
      share_settings_(config_),
      services_{loop_,           config_,  pool_,   counters_, flights_, idle_watch_,
                doorbell_watch_, workers_, scopes_, zeroing_,  vault_,   share_settings_},
      vms_(services_),
      share_requests_(
          share_settings_, vms_, path_, [this] { return Shares(); },
          [this](const std::string& scope) {
            const auto found = scopes_.all().find(scope);
            return found == scopes_.all().end() ? scope : found->second->share();
          }) {
  share_settings_.OnChange([this] { OnSharesChanged(); });
  pool_.turns().AskForTerms([this](const std::string& scope) { return share_settings_.TermsOf(scope); });
  OnSharesChanged();
}

Daemon::~Daemon() {
  loop_.Unwatch(signal_watch_);
  LimitedLog::OnLeftOut({});
  loop_.Cancel(flush_timer_);
}

std::string Daemon::Start() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return "Signals cannot be received: " + ErrnoText() + ".";
  signal_watch_ = loop_.Watch(signals_.get(), EPOLLIN, "a signal", [this](uint32_t) { OnSignal(); });

  // The socket's lock comes first: of two daemons on one configuration, the second touches nothing.
  auto lock = LocalServer::LockSocket(config_.socket);
  if (!lock.ok()) return lock.error();
  if (const std::string problem = FindLauncher(); !problem.empty()) return problem;
  auto local = LocalServer::Start(services_, std::move(lock.value()),
                                  [this](const std::string& scope) { return StatusText(scope); });
  if (!local.ok()) return local.error();
  local_ = std::move(local.value());
  // By now, because its group may take a right to be given.
  if (!config_.state_folder.empty()) {
    auto control = ControlServer::Start(
        loop_, config_, vault_,
        [this](const ControlRequest& request, const LocalPeer& peer, const ControlServer::Answer& answer) {
          OnControl(request, peer, answer);
        });
    if (!control.ok()) return control.error();
    control_ = std::move(control.value());
  }
  if (!config_.tls.listen.empty()) {
    auto remote = RemoteServer::Start(services_);
    if (!remote.ok()) return remote.error();
    remote_ = std::move(remote.value());
  }
  if (const std::string problem = StartLauncher(); !problem.empty()) return problem;
  pool_.KeepSpares(config_.own_spares);
  pool_.HoldCaches(config_.compiled_kernels_mib * kMib);
  if (took_over_) TakeOverShares();
  if (took_over_) pool_.TakeOver();
  if (const std::string problem = vms_.Start(); !problem.empty()) return problem;
  if (took_over_) share_settings_.DropWhatCannotBeKept();
  if (!config_.tcp.address.empty()) {
    auto tcp = TcpServer::Start(services_);
    if (!tcp.ok()) return tcp.error();
    tcp_ = std::move(tcp.value());
  }
  TakeOver();
  pool_.Start();
  LimitedLog::OnLeftOut([this] { FlushLogsSoon(); });
  if (config_.allow_pageable_access) {
    LogWarning(
        "allow_pageable_access is set: where a GPU can access pageable memory (HMM, ATS), a guest's kernels "
        "read and write all "
        "memory of their worker");
  }
  LogInfo("causewayd " CAUSEWAY_VERSION " accepts sessions at " + config_.socket);
  return {};
}

// The one that a daemon of before has left, with what it keeps. "" also where there is none.
std::string Daemon::FindLauncher() {
  auto found = LauncherLink::Find(loop_, LauncherSocketOf(config_.socket),
                                  [this](const std::string& how) { OnLauncherEnd(how); });
  if (!found.ok()) return found.error();
  if (found.value() == nullptr) return {};
  launcher_ = std::move(found.value());
  vault_.Use(launcher_.get());
  MakeRoomForDescriptors();  // of all records at once; the launcher is a process by now
  std::vector<std::string> problems;
  vault_.Load(&problems);
  for (const std::string& problem : problems) LogError(problem);
  for (Vault::Record* record : vault_.All(Vault::Kind::kFolders)) {
    folders_ = std::make_unique<WorkerFolders>(record->state, record->Take("lock"));
    pool_.AssumeUsers(record->state.at("users_problem").get<std::string>());
    question_.Use(record->Take("question"));
    const Json state = record->state;
    // An earlier release kept no question.
    vault_.Put(vault_.Adopt(*record).key, state,
               {{"lock", folders_->lock()}, {"question", question_.file()}});
    took_over_ = true;
    return {};
  }
  LogError("what the causewayd of before has left cannot be used; its sessions end");
  vault_.EndUntaken();
  vault_.Use(nullptr);
  launcher_->Leave(false);
  launcher_.reset();
  return {};
}

void Daemon::OnLauncherEnd(const std::string& how) {
  lost_ = true;
  LogError(how + "; all workers end with it, and so does causewayd");
  if (!stopping_) Stop();
}

void Daemon::TakeOver() {
  if (took_over_) local_->TakeOver();
  if (took_over_ && tcp_) tcp_->TakeOver();
  if (took_over_ && remote_) remote_->TakeOver();
  local_->KeepListener();
  if (control_) control_->KeepListener(vault_);
  if (tcp_) tcp_->KeepListener();
  if (remote_) remote_->KeepListener();
  if (!took_over_) return;
  pool_.ResumeShared();
  if (const size_t left = vault_.EndUntaken(); left != 0)
    LogWarning(std::to_string(left) +
               " records of the causewayd of before belong to nothing any more; their workers end");
  pool_.FinishTakingOver();
  launcher_->Leave(false);
  LogInfo("causewayd " CAUSEWAY_VERSION " has taken over " + std::to_string(scopes_.live_sessions()) +
          " sessions");
}

void Daemon::EndWithoutSessions() const {
  if (took_over_) _exit(1);
}

// The launcher gets what takes rights; from then on this process has none.
std::string Daemon::StartLauncher() {
  const bool users = pool_.workers_change_users();
  if (!took_over_) folders_ = std::make_unique<WorkerFolders>(config_.socket, users);
  LauncherPlan plan;
  plan.worker = config_.worker;
  plan.workers = config_.workers;
  plan.driver = config_.driver_library;
  plan.management = config_.nvml_library;
  plan.sandbox = SandboxMode();
  plan.nvml_shows_all = config_.nvml_shows_all;
  plan.allow_pageable_access = config_.allow_pageable_access;
  if (users) plan.users = config_.worker_users;
  plan.shm = folders_->shm();
  plan.links = folders_->links();
  plan.cache = folders_->cache();
  plan.groups = vms_.Groups();
  plan.keep_s = config_.keep_sessions_s;
  plan.socket = LauncherSocketOf(config_.socket);
  if (!took_over_) {
    auto started = LauncherLink::Start(loop_, ProgramFolder() + "/causeway-launcher", plan,
                                       [this](const std::string& how) { OnLauncherEnd(how); });
    if (!started.ok()) return started.error();
    launcher_ = std::move(started.value());
    vault_.Use(launcher_.get());
    Json state = folders_->State();
    state["users_problem"] = pool_.users_problem();
    question_.Use({});
    vault_.Put(vault_.NewKey(Vault::Kind::kFolders), state,
               {{"lock", folders_->lock()}, {"question", question_.file()}});
  }
  folders_->UseLauncher(launcher_.get());
  pool_.UseVault(&vault_);
  pool_.Use(launcher_.get(), folders_.get());
  // The root of the hierarchy is closed to root itself without its rights.
  if (const std::string why = pool_.UseCgroups(); !why.empty()) LogWarning(why);
  MakeRoomForDescriptors();
  Region::UseHugePages();
  // The launcher and its workers are processes by now, and stay what they are.
  EventLoop::Prefer();
  return DropCapabilities();
}

bool Daemon::Run() {
  loop_.Run([this] { return lost_ || (stopping_ && pool_.empty()); });
  LogInfo("causewayd has stopped");
  return !lost_;
}

// Once a minute while there is something to say, and never else: a daemon whose VMs are idle is not woken.
void Daemon::FlushLogsSoon() {
  if (flush_timer_ != 0) return;
  flush_timer_ = loop_.After(std::chrono::minutes(1), "what limited logs have left out", [this] {
    flush_timer_ = 0;
    if (scopes_.FlushLogs()) FlushLogsSoon();
  });
}

void Daemon::OnSignal() {
  signalfd_siginfo info{};
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  if (info.ssi_signo == SIGHUP) {
    static_cast<void>(Reload());  // the log has been told
    return;
  }
  if (info.ssi_signo == SIGUSR1 && launcher_->keeps()) return Leave(false);
  LogInfo("stopping on signal " + std::to_string(info.ssi_signo));
  if (!stopping_) Stop();
}

void Daemon::OnControl(const ControlRequest& request, const LocalPeer& peer,
                       const ControlServer::Answer& answer) {
  using What = ControlRequest::What;
  const bool of_vms =
      request.what == What::kAdd || request.what == What::kRemove || request.what == What::kList;
  if (of_vms) return vms_.Handle(request, peer, answer);
  if (peer.uid != 0 && peer.uid != geteuid())
    return answer({{"ok", false}, {"error", "Only root and the user of causewayd may ask for that."}});
  if (request.what == What::kSet || request.what == What::kPause || request.what == What::kResume)
    return share_requests_.Handle(request, answer);
  if (request.what == What::kDrain) return answer(Drain(request));
  if (request.what == What::kUpgrade) return Upgrade(answer);
  const auto done = Reload();
  if (!done.ok()) return answer({{"ok", false}, {"error", done.error()}});
  answer({{"ok", true}, {"text", done.value()}});
}

// All of the file or nothing of it. What came into force is said in the log and in the result.
Result<std::string> Daemon::Reload() {
  const LoopPart part("reload");
  auto read = LoadConfig(path_);
  if (!read.ok()) {
    LogError("the configuration stays as it was: " + read.error());
    return Error{read.error()};
  }
  Config& next = read.value();
  if (const std::string why = share_settings_.WhyNot(next); !why.empty()) {
    LogError("the configuration stays as it was: " + why);
    return Error{why};
  }
  std::vector<std::string> told;
  std::string names;
  for (const std::string& key : KeepUntilStart(config_, next)) names += (names.empty() ? "" : ", ") + key;
  if (!names.empty()) told.push_back("Takes effect when causewayd is stopped and started: " + names + ".");
  config_ = std::move(next);
  SetLogLevel(config_.log_level);
  scopes_.Reconfigured();
  share_settings_.Reconfigured();
  const std::vector<std::string> of_vms = vms_.Apply();
  told.insert(told.end(), of_vms.begin(), of_vms.end());
  pool_.HoldCaches(config_.compiled_kernels_mib * kMib);
  pool_.Reconfigure({config_.spare_workers, config_.max_spare_workers, config_.guaranteed_spares},
                    config_.own_spares);
  std::string text = path_ + " is in force.";
  for (const std::string& line : told) text += " " + line;
  LogInfo(text);
  return text;
}

// The old program goes on where the new one cannot start.
void Daemon::Upgrade(const ControlServer::Answer& answer) {
  const auto refuse = [answer](const std::string& sentence) { answer({{"ok", false}, {"error", sentence}}); };
  if (!launcher_->keeps()) {
    return refuse(
        "Sessions do not outlive this causewayd, because its configuration had no keep_sessions_s when it "
        "started; "
        "drain it, stop it and start the other one.");
  }
  if (leaving_ || stopping_ || trial_) return refuse("causewayd is being upgraded or stopped already.");
  trial_ = std::make_unique<Aside>(loop_);
  const auto problem = std::make_shared<std::string>();
  trial_->Do(
      [this, problem, version = launcher_->version()] { *problem = WhyNotStarted(program_, path_, version); },
      [this, problem, answer, refuse] {
        loop_.Later("the end of a trial", [this] { trial_.reset(); });
        if (!problem->empty()) {
          LogError("causewayd is not upgraded: " + *problem);
          return refuse(*problem);
        }
        answer({{"ok", true}});
        Leave(true);
      });
}

void Daemon::Leave(bool becomes_next) {
  if (leaving_ || stopping_) return;
  leaving_ = true;
  becomes_next_ = becomes_next;
  local_->StopTaking();
  if (control_) control_->StopTaking();
  if (tcp_) tcp_->StopTaking();
  if (remote_) remote_->StopTaking();
  LeaveWhenSettled(Clock::now());
}

// What cannot be taken over is mostly over in some microseconds; a client that is connected and asks for nothing is not
// waited for long, and a worker that hangs is ended by the next daemon.
void Daemon::LeaveWhenSettled(Clock::time_point begin) {
  constexpr std::chrono::milliseconds kAgain{1};
  constexpr std::chrono::seconds kForClients{1}, kForAll{5};
  if (stopping_) return;  // it was asked to end with its sessions meanwhile
  const auto waited = Clock::now() - begin;
  const bool settled = pool_.settled() && launcher_->idle() && vms_.quiet();
  const bool quiet = local_->quiet() && (!control_ || control_->quiet()) && (!tcp_ || tcp_->quiet()) &&
                     (!remote_ || remote_->quiet());
  if ((settled && (quiet || waited > kForClients)) || waited > kForAll) LeaveNow();
  loop_.After(kAgain, "the hand-over to the next daemon", [this, begin] { LeaveWhenSettled(begin); });
}

// Nothing is destroyed: what is destroyed ends.
void Daemon::LeaveNow() {
  LogInfo("causewayd leaves " + std::to_string(scopes_.live_sessions()) + " sessions to the next one");
  if (becomes_next_) {
    const std::string why = BecomeProgram(program_, arguments_);
    LogError("the installed causewayd cannot be executed: " + why);
    _exit(1);  // the launcher keeps the sessions for whoever is started now
  }
  _exit(0);
}

// What lives goes on; what asks to begin is told why it may not.
Json Daemon::Drain(const ControlRequest& request) {
  if (request.name.empty()) {
    scopes_.Close(request.undo
                      ? ""
                      : "The host daemon is being drained: no program can start using the GPU until its "
                        "administrator runs `causeway drain --undo`, or starts it anew.");
    LogInfo(request.undo ? "sessions may begin again" : "no session begins any more: drained");
    return {{"ok", true}, {"sessions", scopes_.live_sessions()}};
  }
  if (!vms_.Drain(request.name, request.undo))
    return {{"ok", false}, {"error", "causewayd serves no VM " + request.name + "; see `causeway list`."}};
  LogInfo("VM " + request.name +
          (request.undo ? ": sessions may begin again" : ": no session begins any more: drained"));
  return {{"ok", true}, {"sessions", vms_.SessionsOf(request.name)}};
}

void Daemon::Stop() {
  stopping_ = true;
  if (control_) control_->Stop();
  local_->Stop();
  if (tcp_) tcp_->Stop();
  if (remote_) remote_->Stop();
  vms_.Stop();
  pool_.Stop();
}

// What sessions that live have of the GPUs' time follows at once, and the next daemon goes on with it.
void Daemon::OnSharesChanged() {
  for (const auto& [name, scope] : scopes_.all()) {
    pool_.turns().Set(name, share_settings_.TermsOf(name));
    if (scope->share() != name) pool_.turns().Set(scope->share(), share_settings_.TermsOf(scope->share()));
  }
  pool_.turns().SetTurns(share_settings_.Turns());
  const Json state = share_settings_.State();
  if (state.is_null()) return vault_.Drop(shares_key_);
  if (shares_key_ == 0) shares_key_ = vault_.NewKey(Vault::Kind::kShares);
  vault_.Put(shares_key_, state, {});
}

void Daemon::TakeOverShares() {
  for (Vault::Record* record : vault_.All(Vault::Kind::kShares)) {
    const Vault::Record taken = vault_.Adopt(*record);
    shares_key_ = taken.key;
    share_settings_.Restore(taken.state);
  }
}

std::vector<ShareStatus> Daemon::Shares() const {
  return pool_.turns().Status();
}

std::string Daemon::StatusText(const std::string& scope) const {
  const LoopPart part("status text");
  StatusReport report{started_, tcp_ ? tcp_->address() : "", {}, {}, Shares()};
  vms_.AppendStatus(report.sessions, report.regions);
  local_->AppendStatus(report.sessions);
  if (tcp_) tcp_->AppendStatus(report.sessions);
  if (remote_) remote_->AppendStatus(report.sessions);
  return StatusJson(services_, report, scope);
}

}  // namespace causeway::daemon
