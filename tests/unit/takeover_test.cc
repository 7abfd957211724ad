// SPDX-License-Identifier: Apache-2.0
// Sessions outlive their daemon: the next one goes on with them, whether the first left in order or was killed.
#include <arpa/inet.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

#include "host_backend/command/attach/control_client.h"
#include "host_backend/command/command.h"
#include "host_backend/common/control_socket.h"
#include "host_backend/daemon/process/launcher_link.h"
#include "host_backend/daemon/takeover/record_form.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

class TakeoverTest : public DaemonFixture {
 protected:
  void Start(const std::string& more = "keep_sessions_s = 60\n", const std::string& worker_mode = "ok") {
    std::filesystem::remove(folder() + "/log");  // StartDaemon waits for a line of it
    StartDaemon(worker_mode, more + VmConfig());
  }
  // What `systemctl restart` does with the daemon that runs.
  void LeaveSessions() {
    kill(daemon_pid(), SIGUSR1);
    ASSERT_TRUE(WaitFor([&] { return Has(LogText(), "causewayd leaves "); })) << LogText();
    ASSERT_EQ(StopDaemon(), 0);
  }
  std::vector<pid_t> Workers() const {
    std::vector<pid_t> pids;
    for (const auto& session : command::JsonObjects(Status(), "sessions"))
      pids.push_back(std::atoi(command::StatusValue(session, "", "worker_pid").c_str()));
    return pids;
  }
  std::string ImagesKept() const { return command::StatusValue(Status(), "images", "kept"); }
  std::string ImagesFound() const { return command::StatusValue(Status(), "images", "found"); }
  static bool Lives(pid_t pid) { return kill(pid, 0) == 0; }
  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  void OpenLocal(LocalClient& client) const {
    ASSERT_EQ(client.RequestSession().accepted, 1u);
    client.region().Open(0, 1);
    ASSERT_TRUE(client.SendReady());
    ASSERT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing)) << client.region().refusal(0);
  }
};

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

// A remote guest's process; the fake worker sends back what it gets.
class TcpClient {
 public:
  explicit TcpClient(const std::string& address) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    inet_pton(AF_INET, address.substr(0, address.rfind(':')).c_str(), &to.sin_addr);
    to.sin_port = htons(uint16_t(std::stoul(address.substr(address.rfind(':') + 1))));
    const timeval limit{60, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }
  void Ask() const {
    const OpenBlock block = StreamOpenBlock();
    EXPECT_EQ(send(socket_.get(), &block, sizeof block, MSG_NOSIGNAL), ssize_t(sizeof block));
  }
  bool Accepted() const {
    LocalReply reply{};
    return recv(socket_.get(), &reply, sizeof reply, MSG_WAITALL) == ssize_t(sizeof reply) &&
           reply.accepted == 1;
  }
  bool Echoes(const std::string& text) const {
    std::string back(text.size(), '\0');
    return send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) == ssize_t(text.size()) &&
           recv(socket_.get(), back.data(), back.size(), MSG_WAITALL) == ssize_t(back.size()) && back == text;
  }
  bool Ended() const {
    char byte = 0;
    const ssize_t got = recv(socket_.get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }
  void Close() { socket_.reset(); }

 private:
  UniqueFd socket_;
};

// In the place of a daemon: what the launcher keeps can be looked at, and other texts put there.
class Keeper {
 public:
  struct Record {
    uint64_t key = 0;
    pid_t worker = 0;
    std::vector<UniqueFd> descriptors;
    daemon::RecordKind kind() const { return daemon::RecordKind(key >> 56); }
    std::string Text() const {
      struct stat info {};
      fstat(descriptors[0].get(), &info);
      std::string text(size_t(info.st_size), ' ');
      EXPECT_EQ(pread(descriptors[0].get(), text.data(), text.size(), 0), info.st_size);
      return text;
    }
  };

  explicit Keeper(const std::string& socket) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    const sockaddr_un address = AddressOf(socket + ".launcher");
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    launcher::Answer ready{};
    EXPECT_EQ(recv(socket_.get(), &ready, sizeof ready, 0), ssize_t(sizeof ready));
    EXPECT_EQ(ready.status, launcher::kVersion);
  }

  std::vector<Record> All() {
    std::vector<Record> all;
    for (uint32_t number = 0;; ++number) {
      launcher::Request request{};
      request.action = launcher::Action::kTake;
      request.number = number;
      const launcher::Answer answer = Ask(request, {});
      if (answer.error != 0) return all;
      all.push_back({answer.key, answer.pid, std::move(received_)});
    }
  }

  void Write(const Record& record, const std::string& text) {
    const UniqueFd file(memfd_create("record", MFD_CLOEXEC));
    ASSERT_EQ(write(file.get(), text.data(), text.size()), ssize_t(text.size()));
    std::vector<int> descriptors = {file.get()};
    for (size_t at = 1; at < record.descriptors.size(); ++at)
      descriptors.push_back(record.descriptors[at].get());
    launcher::Request request{};
    request.action = launcher::Action::kKeep;
    request.link = record.key;
    request.pid = record.worker;
    EXPECT_EQ(Ask(request, descriptors).error, 0);
  }

 private:
  launcher::Answer Ask(const launcher::Request& request, const std::vector<int>& descriptors) {
    EXPECT_TRUE(SendPacket(socket_.get(), &request, sizeof request, descriptors));
    launcher::Answer answer{};
    int numbers[launcher::kMaxKeptDescriptors];
    EXPECT_EQ(ReceivePacket(socket_.get(), &answer, sizeof answer, numbers), ssize_t(sizeof answer));
    received_.clear();
    for (const int each : numbers) {
      if (each >= 0) received_.emplace_back(each);
    }
    return answer;
  }

  UniqueFd socket_;
  std::vector<UniqueFd> received_;
};

TEST_F(TakeoverTest, SessionsGoOnWithTheirWorkers) {
  Start();
  GuestRegion guest(region_file());
  guest.Open(2, 7);
  ASSERT_TRUE(guest.WaitForHostWord(2, 7, SlotHostState::kServing)) << guest.refusal(2);
  LocalClient local(socket());
  OpenLocal(local);
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 2u);
  const uint64_t epoch = guest.superblock().host_epoch;
  for (const bool killed : {false, true, false, true}) {
    SCOPED_TRACE(killed ? "killed" : "left");
    if (killed) {
      KillDaemon();
    } else {
      LeaveSessions();
    }
    EXPECT_EQ(guest.host_page().slot[2], SlotWord(7, uint32_t(SlotHostState::kServing)));
    Start();
    EXPECT_TRUE(Has(LogText(), "has taken over 2 sessions")) << LogText();
    EXPECT_EQ(Workers(), workers);
    EXPECT_EQ(guest.superblock().host_epoch, epoch);
    EXPECT_EQ(guest.host_page().slot[2], SlotWord(7, uint32_t(SlotHostState::kServing)));
    EXPECT_EQ(guest.host_page().state, HostState::kRunning);
    const uint64_t beat = guest.host_page().beat;
    EXPECT_TRUE(WaitFor([&] { return guest.host_page().beat != beat; }));
  }
  // Both end as if nothing had been, and others begin.
  guest.SetWord(2, 7, SlotGuestState::kDying);
  EXPECT_TRUE(guest.WaitForHostWord(2, 7, SlotHostState::kClosed));
  local.Close();
  EXPECT_TRUE(WaitForNoSession());
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
  guest.Open(2, 8);
  EXPECT_TRUE(guest.WaitForHostWord(2, 8, SlotHostState::kServing)) << guest.refusal(2);
  LocalClient next(socket());
  OpenLocal(next);
}

TEST_F(TakeoverTest, WhatWasSetOfSharesGoesOn) {
  const std::string more = "keep_sessions_s = 60\nstate_folder = \"" + folder() + "/state\"\n";
  std::filesystem::create_directory(folder() + "/state");
  Start(more);
  const auto ask = [&](const Json& request) {
    EXPECT_TRUE(command::AskControl(ControlSocketOf(socket()), request).ok()) << JsonText(request);
  };
  const auto guest = [&] {
    for (const std::string& scope : command::JsonObjects(Status(), "scopes")) {
      if (command::StatusValue(scope, "", "scope") == "vm:guest") return Json::parse(scope);
    }
    return Json();
  };
  ask({{"do", "set"}, {"name", "guest"}, {"cap", 30}});
  ask({{"do", "pause"}, {"name", "guest"}});
  for (const bool killed : {false, true}) {
    if (killed) {
      KillDaemon();
    } else {
      LeaveSessions();
    }
    Start(more);
    EXPECT_EQ(guest()["cap"], 30);
    EXPECT_EQ(guest()["paused"], true);
    EXPECT_FALSE(Has(LogText(), "belong to nothing")) << LogText();
  }
  ask({{"do", "reload"}});
  ask({{"do", "resume"}, {"name", "guest"}});
  KillDaemon();
  Start(more);
  EXPECT_EQ(guest()["cap"], 100);
  EXPECT_EQ(guest()["paused"], false);
}

TEST_F(TakeoverTest, TcpSessionsGoOnAndTheirSocketStays) {
  const std::string listens = "keep_sessions_s = 60\n[tcp]\nlisten = \"127.0.0.1:0\"\n";
  Start(listens);
  const std::string address = command::StatusValue(Status(), "", "tcp");
  TcpClient client(address);
  client.Ask();
  ASSERT_TRUE(client.Accepted());
  EXPECT_TRUE(client.Echoes("before"));
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 1u);
  for (const bool killed : {false, true, false, true}) {
    SCOPED_TRACE(killed ? "killed" : "left");
    if (killed) {
      KillDaemon();
    } else {
      LeaveSessions();
    }
    EXPECT_TRUE(client.Echoes("nobody there"));
    TcpClient meanwhile(address);  // waits for the next one
    meanwhile.Ask();
    Start(listens);
    EXPECT_EQ(command::StatusValue(Status(), "", "tcp"), address);
    EXPECT_TRUE(Has(LogText(), "has taken over 1 sessions")) << LogText();
    EXPECT_TRUE(client.Echoes("after"));
    EXPECT_TRUE(meanwhile.Accepted());
    EXPECT_TRUE(meanwhile.Echoes("begun"));
    meanwhile.Close();
    EXPECT_TRUE(WaitFor([&] { return Workers() == workers; }));
  }
  EXPECT_TRUE(Has(Status(), "\"kind\":\"tcp\"")) << Status();
  client.Close();
  EXPECT_TRUE(WaitForNoSession());
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
}

// Its opening message has arrived, and no worker is there yet.
TEST_F(TakeoverTest, ATcpSessionThatWaitsForAWorkerWaitsAgain) {
  const std::string more = "keep_sessions_s = 60\nspare_workers = 0\n[tcp]\nlisten = \"127.0.0.1:0\"\n";
  StartDaemon("slow", more);
  TcpClient client(command::StatusValue(Status(), "", "tcp"));
  client.Ask();
  ASSERT_FALSE(WaitForSession("opening").empty());
  KillDaemon();
  Start(more);
  EXPECT_TRUE(client.Accepted());
  EXPECT_TRUE(client.Echoes("at last"));
}

// Its scope is gone, or its worker.
TEST_F(TakeoverTest, ATcpSessionEndsWithItsListenerOrWorker) {
  const std::string listens = "keep_sessions_s = 60\n[tcp]\nlisten = \"127.0.0.1:0\"\n";
  for (const bool listener : {false, true}) {
    SCOPED_TRACE(listener);
    Start(listens);
    TcpClient client(command::StatusValue(Status(), "", "tcp"));
    client.Ask();
    ASSERT_TRUE(client.Accepted());
    const std::vector<pid_t> workers = Workers();
    ASSERT_EQ(workers.size(), 1u);
    KillDaemon();
    if (!listener) kill(workers[0], SIGKILL);
    Start(listener ? "keep_sessions_s = 60\n" : listens);
    EXPECT_TRUE(client.Ended());
    EXPECT_TRUE(WaitForNoSession());
    EXPECT_TRUE(WaitFor([&] { return !Lives(workers[0]); }));
    EXPECT_EQ(StopDaemon(), 0);
  }
}

// The port that the daemon of before listened at, by another line of the configuration.
TEST_F(TakeoverTest, ATcpSocketElsewhereLeavesItsPortFree) {
  const auto listens = [](const std::string& address) {
    return "keep_sessions_s = 60\n[tcp]\nlisten = \"" + address + "\"\n";
  };
  // Not 127.0.0.1, of which other tests' connections may take the port meanwhile.
  Start(listens("127.0.0.77:0"));
  const std::string address = command::StatusValue(Status(), "", "tcp");
  KillDaemon();
  Start(listens(address));
  EXPECT_EQ(command::StatusValue(Status(), "", "tcp"), address);
  TcpClient client(address);
  client.Ask();
  EXPECT_TRUE(client.Accepted());
}

TEST_F(TakeoverTest, WhatEndsMeanwhileHasEnded) {
  Start();
  GuestRegion guest(region_file());
  for (const uint32_t slot : {0u, 1u}) {
    guest.Open(slot, 1);
    ASSERT_TRUE(guest.WaitForHostWord(slot, 1, SlotHostState::kServing)) << guest.refusal(slot);
  }
  LocalClient local(socket());
  OpenLocal(local);
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 3u);
  KillDaemon();
  kill(workers[0], SIGKILL);  // slot 0's
  guest.SetWord(1, 1, SlotGuestState::kDying);
  local.Close();
  guest.Open(3, 1);
  Start();
  EXPECT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kFatal));
  EXPECT_TRUE(Has(guest.refusal(0), "was killed by signal 9")) << guest.refusal(0);
  EXPECT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kClosed));
  EXPECT_TRUE(guest.WaitForHostWord(3, 1, SlotHostState::kServing)) << guest.refusal(3);
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
}

TEST_F(TakeoverTest, WithoutANextDaemonAllEnds) {
  Start("keep_sessions_s = 1\n");
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  const std::vector<pid_t> workers = Workers();
  KillDaemon();
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
  Start();
  EXPECT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kFatal));
  EXPECT_TRUE(Has(guest.refusal(0), "was restarted")) << guest.refusal(0);
}

TEST_F(TakeoverTest, AStopEndsAll) {
  Start();
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  const std::vector<pid_t> workers = Workers();
  LeaveSessions();
  Start();
  EXPECT_EQ(StopDaemon(), 0);
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
  EXPECT_EQ(guest.host_page().state, HostState::kStopped);
}

// A client that has asked for nothing yet is waited for, and the stop comes then: what was to go on ends with the daemon.
TEST_F(TakeoverTest, AStopWhileItLeavesIsAStop) {
  Start();
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kServing)) << guest.refusal(0);
  const std::vector<pid_t> workers = Workers();
  const LocalClient silent(socket());
  ASSERT_TRUE(silent.connected());
  Status();  // the daemon knows the client by now
  kill(daemon_pid(), SIGUSR1);
  EXPECT_EQ(StopDaemon(), 0);
  EXPECT_TRUE(Has(LogText(), "stopping on signal 15")) << LogText();
  EXPECT_FALSE(Has(LogText(), "causewayd leaves")) << LogText();
  EXPECT_EQ(guest.host_page().state, HostState::kStopped);
  for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
}

// Each kind of record in turn, by texts that end early and by a later version's.
TEST_F(TakeoverTest, ADamagedRecordEndsWhatItTellsOfAndNothingElse) {
  using Kind = daemon::RecordKind;
  uint32_t session = 0;
  for (const auto kind :
       {Kind::kListener, Kind::kFolders, Kind::kAccount, Kind::kWorker, Kind::kConnection, Kind::kSession}) {
    SCOPED_TRACE(int(kind));
    Start();
    GuestRegion guest(region_file());
    guest.Open(2, ++session);
    ASSERT_TRUE(guest.WaitForHostWord(2, session, SlotHostState::kServing)) << guest.refusal(2);
    LocalClient local(socket());
    OpenLocal(local);
    const std::vector<pid_t> workers = Workers();
    KillDaemon();
    {
      Keeper keeper(socket());
      for (const Keeper::Record& record : keeper.All()) {
        if (record.kind() != kind) continue;
        const std::string text = record.Text();
        const bool later = record.worker == workers[0];
        const size_t version = text.find("\"version\":1");
        ASSERT_NE(version, std::string::npos) << text;
        keeper.Write(record, later ? std::string(text).replace(version, 11, "\"version\":9")
                                   : text.substr(0, text.size() / 2));
      }
    }
    Start();
    EXPECT_TRUE(Has(LogText(), "what it tells of ends.")) << LogText();
    EXPECT_EQ(Has(LogText(), "of a later version (9, this one reads 1)"), kind == Kind::kWorker) << LogText();
    if (kind == Kind::kWorker || kind == Kind::kFolders) {
      EXPECT_TRUE(WaitFor([&] { return std::none_of(workers.begin(), workers.end(), Lives); }));
    }
    guest.Open(3, ++session);
    EXPECT_TRUE(guest.WaitForHostWord(3, session, SlotHostState::kServing)) << guest.refusal(3);
    guest.SetWord(2, session - 1, SlotGuestState::kDying);
    EXPECT_TRUE(guest.WaitForHostWord(2, session - 1, SlotHostState::kClosed));
    guest.SetWord(3, session, SlotGuestState::kDying);
    EXPECT_TRUE(guest.WaitForHostWord(3, session, SlotHostState::kClosed));
    local.Close();
    EXPECT_TRUE(WaitForNoSession());
    EXPECT_EQ(StopDaemon(), 0);
    for (const pid_t worker : workers) EXPECT_TRUE(WaitFor([&] { return !Lives(worker); }));
  }
}

// They are there before a process asks, also when no session lives, and are not sent again.
TEST_F(TakeoverTest, ModuleImagesAreFoundByTheNextDaemon) {
  const std::string keep = "keep_sessions_s = 60\n";
  Start(keep, "whole");
  GuestRegion guest(region_file());
  const auto serve = [&](uint32_t slot, uint64_t session) {
    guest.Open(slot, session);
    EXPECT_TRUE(guest.WaitForHostWord(slot, session, SlotHostState::kServing)) << guest.refusal(slot);
  };
  serve(1, 1);
  ASSERT_TRUE(WaitFor([&] { return ImagesKept() == "1"; })) << Status();
  LeaveSessions();
  Start(keep, "whole");
  EXPECT_EQ(ImagesKept(), "1");
  serve(2, 1);
  EXPECT_TRUE(WaitFor([&] { return ImagesFound() == "1"; })) << Status();
  guest.SetWord(1, 1, SlotGuestState::kDying);
  guest.SetWord(2, 1, SlotGuestState::kDying);
  ASSERT_TRUE(WaitForNoSession());
  KillDaemon();
  Start(keep, "whole");
  EXPECT_EQ(ImagesKept(), "1");
  EXPECT_FALSE(Has(LogText(), "belong to nothing any more")) << LogText();
  serve(3, 1);
  EXPECT_TRUE(WaitFor([&] { return ImagesFound() == "1"; })) << Status();
  EXPECT_EQ(ImagesKept(), "1");
  KillDaemon();
  // One that keeps none takes none, and the session goes on.
  Start(keep + "image_cache_mib = 0\n", "whole");
  EXPECT_EQ(ImagesKept(), "0");
  EXPECT_EQ(Workers().size(), 1u);
}

// The forms are those of the records that a daemon makes, and lack nothing of them.
TEST_F(TakeoverTest, EveryFieldOfARecordBelongsToItsForm) {
  const std::string doorbell = "[[vm]]\nname = \"rings\"\nregion_file = \"" + folder() +
                               "/other\"\nregion_mib = 64\ndoorbell_socket = \"" + folder() + "/doorbell\"\n";
  std::filesystem::create_directory(folder() + "/state");
  StartDaemon("whole", "keep_sessions_s = 60\nstate_folder = \"" + folder() + "/state\"\n" + VmConfig() +
                           doorbell + "[tcp]\nlisten = \"127.0.0.1:0\"\n");
  ASSERT_TRUE(command::AskControl(ControlSocketOf(socket()), {{"do", "pause"}, {"name", "guest"}}).ok());
  TcpClient remote(command::StatusValue(Status(), "", "tcp"));
  remote.Ask();
  ASSERT_TRUE(remote.Accepted());
  GuestRegion guest(region_file());
  guest.Open(2, 1);
  ASSERT_TRUE(guest.WaitForHostWord(2, 1, SlotHostState::kServing)) << guest.refusal(2);
  LocalClient local(socket());
  OpenLocal(local);
  ASSERT_TRUE(WaitFor([&] { return ImagesKept() == "3"; })) << Status();  // of each scope its own
  KillDaemon();
  const std::set<std::string> added_later = {"asks_again", "devices", "waits_for_guests",
                                             "compresses", "key_id",  "waits"};
  std::set<daemon::RecordKind> seen;
  {
    Keeper keeper(socket());
    for (const Keeper::Record& record : keeper.All()) {
      const Json state = Json::parse(record.Text()).at("state");
      seen.insert(record.kind());
      EXPECT_TRUE(daemon::HasForm(record.kind(), state)) << record.Text();
      for (const auto& field : state.items()) {
        Json wrong = state;
        wrong[field.key()] = {{"of", "another type"}};
        EXPECT_FALSE(daemon::HasForm(record.kind(), wrong)) << wrong;
        wrong.erase(field.key());
        EXPECT_EQ(daemon::HasForm(record.kind(), wrong), added_later.contains(field.key())) << wrong;
      }
      Json more = state;
      more["added_later"] = 1;
      EXPECT_TRUE(daemon::HasForm(record.kind(), more));
    }
  }
  seen.insert(daemon::RecordKind::kRegion);  // of a guest of Xen
  seen.insert(daemon::RecordKind::kShared);  // of guests that share something: lost_answers
  EXPECT_EQ(seen.size(), size_t(daemon::RecordKind::kShares));
  EXPECT_FALSE(daemon::HasForm(daemon::RecordKind(99), Json::object()));
  Start();
}

TEST_F(TakeoverTest, ALauncherOfAnotherVersionIsLeftAlone) {
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(socket() + ".launcher");
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  std::thread launcher([&] {
    const UniqueFd connection(accept(listener.get(), nullptr, nullptr));
    launcher::Answer ready{};
    ready.pid = getpid();
    ready.status = 99;
    send(connection.get(), &ready, sizeof ready, MSG_NOSIGNAL);
    char byte = 0;
    EXPECT_EQ(recv(connection.get(), &byte, 1, 0), 0) << "it is asked for something";
  });
  const std::string said = FailingDaemon(Config("ok", "keep_sessions_s = 60\n"));
  launcher.join();
  EXPECT_TRUE(Has(said, ", speaks version 99 of its protocol, and this causewayd, ")) << said;
}

}  // namespace
}  // namespace causeway::test
