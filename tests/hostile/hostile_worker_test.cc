// SPDX-License-Identifier: Apache-2.0
// What taken workers can say to the daemon (hostile_worker.cc): each loses its own session at most. The
// daemon answers all the while, keeps no descriptor and no memory of them, and logs no more than it may; a
// session beside them goes on.
#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "host_backend/command/command.h"
#include "host_backend/daemon/loop/pace.h"
#include "host_backend/daemon/process/log.h"
#include "tests/hostile/settled.h"
#include "tests/hostile/worker_words.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

using command::StatusValue;
using daemon::WorkerPace;
using SteadyClock = std::chrono::steady_clock;

class HostileWorkerTest : public DaemonFixture {
 protected:
  void SetUp() override {
    StartDaemon("hostile", "image_cache_mib = 4\nspare_workers = 2\nmax_spare_workers = 2\n");
    {
      LocalClient first(socket());  // some of the daemon's own are made with the first session
      Open(first, Words::kNone, 0);
      ASSERT_TRUE(WaitFor([&] { return Lives(first); }));
    }
    ASSERT_TRUE(WaitForNoSession());
    ASSERT_TRUE(WaitFor([&] { return SparesAreReady(); }));
    descriptors_ = SettledDescriptors();
    victim_ = std::make_unique<LocalClient>(socket());
    Open(*victim_, Words::kNone, 0);
    ASSERT_TRUE(WaitFor([&] { return Lives(*victim_); }));
  }

  // After every case: nobody else has seen anything, and nothing is left.
  void TearDown() override {
    EXPECT_TRUE(Lives(*victim_)) << "the session beside them";
    EXPECT_NE(victim_->region().host_page().state, HostState::kStopped);
    EXPECT_TRUE(WaitFor([&] { return command::JsonObjects(Status(), "sessions").size() == 1; })) << Status();
    victim_->Close();  // what its scope shares stays as long as the scope has any session
    EXPECT_TRUE(WaitForNoSession());
    EXPECT_TRUE(WaitFor([&] { return SparesAreReady() && OpenDescriptors() == descriptors_; }))
        << descriptors_ << " descriptors before, now " << OpenDescriptors();
    EXPECT_LE(MostLinesInASecond(), daemon::LimitedLog::kLinesPerSecond);
  }

  bool SparesAreReady() const { return StatusValue(Status(), "workers", "spare_ready") == "2"; }

  // A session whose worker says that.
  void Open(LocalClient& client, Words words, uint32_t step) {
    ASSERT_TRUE(client.connected());
    const LocalReply reply = client.RequestSession();
    ASSERT_EQ(reply.accepted, 1u) << reply.text;
    PageOf(client).words = words;
    PageOf(client).step = step;
    client.region().Open(0, 1);
    ASSERT_TRUE(client.SendReady());
  }
  WordsPage& PageOf(LocalClient& client) {
    return *reinterpret_cast<WordsPage*>(client.region().base() +
                                         FirstSliceOffset(SlotCount(client.region().bytes())));
  }
  static bool Is(LocalClient& client, SlotHostState state) {
    return std::atomic_ref<uint32_t>(client.region().host_page().slot[0]).load() ==
           SlotWord(1, uint32_t(state));
  }
  bool Lives(LocalClient& client) { return Is(client, SlotHostState::kServing); }
  // Its worker was ended.
  bool Ended(LocalClient& client) { return Is(client, SlotHostState::kFatal); }

  // All steps of a case, in as many sessions as it takes; `steps_said_` counts them. How many sessions the daemon ended.
  uint32_t SayAll(Words words) {
    uint32_t ended = 0;
    for (uint32_t step = 0;;) {
      LocalClient client(socket());
      Open(client, words, step);
      if (HasFatalFailure()) return ended;
      WordsPage& page = PageOf(client);
      std::atomic_ref<uint32_t> all_said(page.ended);
      EXPECT_TRUE(WaitFor([&] { return all_said.load() != 0 || Ended(client); })) << Status();
      // The last session may find that no step is left, and then reaches none.
      steps_said_ = std::max(steps_said_, page.reached + 1);
      if (all_said.load() != 0 || HasFailure()) return ended;
      ++ended;
      EXPECT_GE(page.reached, step);
      step = page.reached + 1;
    }
  }

  // The session ends, with this word in the log.
  void ExpectEnded(Words words, const std::string& why) {
    LocalClient client(socket());
    Open(client, words, 0);
    if (HasFatalFailure()) return;
    EXPECT_TRUE(WaitFor([&] { return Ended(client); })) << Status();
    EXPECT_NE(LogText().find(why), std::string::npos) << LogText();
  }

  // While a worker says that without end, others are served and the daemon takes no more of it than its pace.
  void ExpectBounded(Words words, uint32_t step, uint64_t each, uint64_t underway) {
    LocalClient client(socket());
    const auto begin = SteadyClock::now();
    Open(client, words, step);
    if (HasFatalFailure()) return;
    WordsPage& page = PageOf(client);
    std::atomic_ref<uint64_t> sent(page.sent);
    ASSERT_TRUE(WaitFor([&] { return sent.load() != 0 || !Lives(client); }))
        << "refused " << page.refused << " times\n"
        << Status();
    for (int i = 0; i < 20; ++i) {
      // Those before it may not have ended: the daemon kills after its patience, and serves no more than it is set to.
      EXPECT_TRUE(WaitFor([&] { return command::JsonObjects(Status(), "sessions").size() < 20; }));
      LocalClient other(socket());
      Open(other, Words::kNone, 0);
      if (HasFatalFailure()) return;
      EXPECT_TRUE(WaitFor([&] { return Lives(other); }));
    }
    const uint64_t said = sent.load();
    const std::chrono::duration<double, std::milli> passed = SteadyClock::now() - begin;
    const double most = WorkerPace::kAtOnce + WorkerPace::kPerMs * passed.count();
    EXPECT_LE(double(said), most * double(each) + double(underway)) << "in " << passed.count() << " ms";
    std::printf("said %llu in %.0f ms, refused %llu\n", static_cast<unsigned long long>(said), passed.count(),
                static_cast<unsigned long long>(page.refused));
  }

  size_t OpenDescriptors() const {
    const std::filesystem::directory_iterator entries("/proc/" + std::to_string(daemon_pid()) + "/fd");
    return size_t(std::distance(begin(entries), end(entries)));
  }
  // Those of the first session's worker are closed by another thread, soon after.
  size_t SettledDescriptors() const {
    return Settled([this] { return OpenDescriptors(); });
  }
  uint64_t ResidentKib() const {
    std::ifstream status("/proc/" + std::to_string(daemon_pid()) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("VmRSS:", 0) == 0) return std::strtoull(line.c_str() + 6, nullptr, 10);
    }
    return 0;
  }

  // Of those that sessions cause, by the log's own times.
  size_t MostLinesInASecond() const {
    std::istringstream log(LogText());
    std::vector<double> times;
    for (std::string line; std::getline(log, line);) {
      if (line.find(" debug: ") != std::string::npos || line.size() < 23) continue;
      const double seconds = std::atof(line.substr(17, 6).c_str());
      times.push_back(3600 * std::atof(line.substr(11, 2).c_str()) +
                      60 * std::atof(line.substr(14, 2).c_str()) + seconds);
    }
    size_t most = 0;
    for (size_t first = 4, last = first; last < times.size(); ++last) {  // the first say how it was started
      while (times[last] - times[first] >= 0.95) ++first;
      most = std::max(most, last - first + 1);
    }
    return most;
  }

  std::unique_ptr<LocalClient> victim_;
  size_t descriptors_ = 0;
  uint32_t steps_said_ = 0;
};

TEST_F(HostileWorkerTest, EveryFieldAtItsExtremes) {
  EXPECT_GT(SayAll(Words::kFields), 20u);
  EXPECT_GT(steps_said_, 100u);
  EXPECT_GT(Counter("violations"), 20u);
}

TEST_F(HostileWorkerTest, EverySize) {
  EXPECT_GT(SayAll(Words::kSizes), 20u);
  EXPECT_GT(steps_said_, 100u);
}

TEST_F(HostileWorkerTest, DescriptorsOfEveryKindAndNumber) {
  // A worker says further steps until it is ended, on a busy host many: those are judged together.
  EXPECT_GT(SayAll(Words::kDescriptors), 20u);
  EXPECT_GT(steps_said_, 100u);
}

TEST_F(HostileWorkerTest, SomethingElseThanTheKernelsQuestions) {
  EXPECT_EQ(SayAll(Words::kListener), 21u);
}

TEST_F(HostileWorkerTest, FloodsAreTakenAtTheirPace) {
  // What lies unread in the socket's buffer.
  constexpr uint64_t kUnderway = 1024;
  for (const uint32_t kind : {0, 1, 2, 3, 4}) ExpectBounded(Words::kFlood, kind, 1, kUnderway);
}

TEST_F(HostileWorkerTest, AnswersThatNobodyReadsArePassedOver) {
  ExpectBounded(Words::kDeafFlood, 0, 1, 1024);
}

TEST_F(HostileWorkerTest, PrintingIsReadAtItsPace) {
  ExpectBounded(Words::kPrinting, 0, 4096, 1 << 20);
}

TEST_F(HostileWorkerTest, HalfAMessageAndSilence) {
  ExpectEnded(Words::kSilence, "a packet that is no message");
}

TEST_F(HostileWorkerTest, WordsAfterTheEnd) {
  ExpectEnded(Words::kHalfClosed, "did not end when asked");
}

TEST_F(HostileWorkerTest, AnEndWithoutADeath) {
  ExpectEnded(Words::kClosed, "did not end when asked");
}

TEST_F(HostileWorkerTest, DescriptorsThatNobodyReads) {
  for (int i = 0; i < 4; ++i) ExpectEnded(Words::kUnread, "");
}

TEST_F(HostileWorkerTest, AnImageUnderAnothersName) {
  ExpectEnded(Words::kFalseImage, "an image of another hash than it says");
  EXPECT_EQ(StatusValue(Status(), "images", "kept"), "0");
}

TEST_F(HostileWorkerTest, ImagesWithoutEndTakeTheirScopesPart) {
  LocalClient client(socket());
  Open(client, Words::kImages, 0);
  std::atomic_ref<uint32_t> ended(PageOf(client).ended);
  EXPECT_TRUE(WaitFor([&] { return ended.load() != 0; })) << LogText();
  EXPECT_TRUE(WaitFor([&] { return StatusValue(Status(), "images", "kept") != "0"; }));
  EXPECT_LE(std::stoull(StatusValue(Status(), "images", "bytes")), 4u << 20);
  client.Close();
  // What is kept outlives its session.
  EXPECT_TRUE(WaitFor([&] { return command::JsonObjects(Status(), "sessions").size() == 1; }));
  descriptors_ += std::stoull(StatusValue(Status(), "images", "kept"));
}

TEST_F(HostileWorkerTest, CheckpointersThatLieAreBelievedNothing) {
  LocalClient client(socket());
  Open(client, Words::kCheckpoints, uint32_t(getpid()));
  std::atomic_ref<uint32_t> ended(PageOf(client).ended);
  EXPECT_TRUE(WaitFor([&] { return ended.load() != 0; })) << LogText();
  EXPECT_EQ(PageOf(client).sent, kLastLie + 1);
  EXPECT_TRUE(Lives(client));
}

TEST_F(HostileWorkerTest, TheSharedSocketNeverMakesTheDaemonWait) {
  for (int i = 0; i < 20; ++i) {
    LocalClient client(socket());
    Open(client, Words::kBlockingClient, 0);
    ASSERT_TRUE(WaitFor([&] { return Lives(client); }));
    // Until the daemon has one of them before the worker.
    for (int bytes = 0; bytes < 200 && Lives(client); ++bytes)
      send(client.fd(), "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    EXPECT_NE(Status(), "");
  }
}

TEST_F(HostileWorkerTest, NoMemoryIsLeft) {
  const auto round = [&] {
    SayAll(Words::kListener);
    for (int i = 0; i < 4; ++i) ExpectEnded(Words::kUnread, "");
  };
  // The last of a case goes on until it is killed, which takes the daemon's patience of two seconds.
  const auto settled = [&] {
    EXPECT_TRUE(WaitFor([&] { return command::JsonObjects(Status(), "sessions").size() == 1; }));
    return ResidentKib();
  };
  // Until the daemon keeps as many flight records of ended sessions as it ever does.
  for (int i = 0; i < 3; ++i) round();
  const uint64_t before = settled();
  for (int i = 0; i < 6; ++i) round();
  const uint64_t after = settled();
  std::printf("%llu KiB after 3 rounds, %llu after 9\n", static_cast<unsigned long long>(before),
              static_cast<unsigned long long>(after));
  EXPECT_LT(after, before + 4096);
}

}  // namespace
}  // namespace causeway::test
