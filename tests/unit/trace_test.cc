// SPDX-License-Identifier: Apache-2.0
// From flight records to a trace: clocks are aligned, times add up, and no bytes do harm.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "host_backend/command/trace/round_trips.h"
#include "host_backend/command/trace/trace_export.h"
#include "host_backend/common/json.h"
#include "ivshmem_ring/protocol/call.h"
#include "ivshmem_ring/transport/flight_recorder.h"

namespace causeway {
namespace {

constexpr uint64_t kHostZero = 7'000'000'000;    // ticks of 0.5 ns
constexpr uint64_t kGuestZero = 90'000'000'000;  // the guest's counter began elsewhere
constexpr uint64_t kZeroNs = 50'000'000'000;

// A session whose times the test chooses, in ns after its beginning.
class Recorded {
 public:
  Recorded() {
    guest_->header = {
        kFlightVersion, sizeof(FlightRecord), {kGuestZero, 3}, {kGuestZero + 200'000'000, 100'000'003}, {}};
    host_->header = {kFlightVersion, sizeof(FlightRecord), {kHostZero, kZeroNs}, {kHostZero, kZeroNs}, {}};
  }
  void Waiting(uint64_t sequence, Op op, const uint64_t (&ns)[4], uint32_t after = 0) {
    Put(guest_->channel[2][sequence % kFlightChannelRecords], sequence, op, kGuestZero, ns[0], ns[3], 77);
    Put(host_->channel[2][sequence % kFlightChannelRecords], sequence, op, kHostZero, ns[1], ns[2], after);
  }
  void Posted(uint64_t sequence, Op op, const uint64_t (&ns)[3]) {
    Put(guest_->main[sequence % kFlightMainRecords], sequence, op, kGuestZero, ns[0], 0, 77);
    Put(host_->main[sequence % kFlightMainRecords], sequence, op, kHostZero, ns[1], ns[2], 0);
  }
  FlightImage& guest() { return *guest_; }
  FlightImage& host() { return *host_; }
  std::string Trace(bool one_clock = false) const { return ChromeTrace(Input(one_clock)); }
  // `recorded`: the guest's side, too.
  std::string RoundTrips(const std::string& step = "", bool recorded = true) const {
    TraceInput input = Input(true);
    if (!recorded) input.guest = {};
    return RoundTripText(input, step);
  }

 private:
  TraceInput Input(bool one_clock) const {
    TraceInput input;
    input.guest_name = "guest";
    input.worker_name = "worker";
    input.guest = Bytes(*guest_);
    input.host = Bytes(*host_);
    input.one_clock = one_clock;
    input.now = {kHostZero + 2'000'000'000, kZeroNs + 1'000'000'000};
    return input;
  }
  static std::string_view Bytes(const FlightImage& image) {
    return {reinterpret_cast<const char*>(&image), sizeof image};
  }
  static void Put(FlightRecord& record, uint64_t sequence, Op op, uint64_t zero, uint64_t begin, uint64_t end,
                  uint32_t who) {
    record = {zero + 2 * begin,
              end != 0 ? zero + 2 * end : 0,
              static_cast<uint32_t>(sequence) + 1,
              who,
              56,
              static_cast<uint16_t>(op),
              0};
  }
  std::unique_ptr<FlightImage> guest_ = std::make_unique<FlightImage>();
  std::unique_ptr<FlightImage> host_ = std::make_unique<FlightImage>();
};

// Those of the events that say so under the key.
std::vector<Json> EventsWith(const Json& trace, const char* key, const char* value) {
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.value(key, Json()) == value) found.push_back(event);
  }
  return found;
}

// The one event of that name in that process (1: the guest's, 2: the host's) and thread.
Json TheEvent(const Json& trace, const char* name, int process, int thread) {
  std::vector<Json> found = EventsWith(trace, "name", name);
  std::erase_if(found, [&](const Json& event) {
    return event.at("ph") != "X" || event.at("pid") != process || event.at("tid") != thread;
  });
  EXPECT_EQ(found.size(), 1u) << name << " in " << trace;
  return found.size() == 1 ? found[0] : Json();
}

TEST(Trace, ClocksAreAlignedByRoundTrips) {
  Recorded session;
  session.Waiting(5, Op::cuStreamSynchronize, {1000, 1300, 9300, 9600});
  session.Waiting(6, Op::cuMemAlloc_v2, {20'000, 20'200, 21'000, 21'200});  // the fastest: 0.2 us each way
  const Json trace = Json::parse(session.Trace());
  EXPECT_EQ(trace["otherData"]["clock"], "the guest's clock is aligned with the host's by round trips");
  EXPECT_EQ(trace["otherData"]["clock_uncertainty_us"], 0.2);
  // The halves of the round trip of the second call are equal, so nothing is shifted.
  const Json alloc = TheEvent(trace, "cuMemAlloc_v2", 1, 1);
  EXPECT_EQ(alloc["ts"], 19.0);
  EXPECT_EQ(alloc["dur"], 1.2);
  const std::vector<Json> ways = EventsWith(trace, "name", "to the host");
  ASSERT_EQ(ways.size(), 2u) << trace;
  EXPECT_EQ(ways[0]["ts"], 0.0);
  EXPECT_EQ(ways[0]["dur"], 0.3);
  const Json wait = TheEvent(trace, "cuStreamSynchronize", 2, 3);
  EXPECT_EQ(wait["ts"], 0.3);
  EXPECT_EQ(wait["dur"], 8.0);
}

// A training step: it launches, waits once in passing, and reads its loss.
void AddStep(Recorded& session, uint64_t step) {
  const uint64_t at = 10'000 * (step + 1);
  session.Posted(step, Op::cuLaunchKernel, {at + 100, at + 200, at + 900});
  session.Waiting(2 * step, Op::cuStreamSynchronize, {at + 1000, at + 1100, at + 1900, at + 2000});
  session.Waiting(2 * step + 1, Op::cuMemcpyDtoH_v2, {at + 3000, at + 3100, at + 3900, at + 4000});
}

TEST(RoundTrips, AreCountedForEachStepAndNamed) {
  Recorded session;
  session.Waiting(0, Op::cuMemAlloc_v2, {0, 100, 200, 300});
  for (uint64_t step = 1; step <= 5; ++step) AddStep(session, step);
  // The first step is not whole: what was before it belongs to none.
  const std::string text = session.RoundTrips();
  EXPECT_NE(text.find("11 round trips are recorded whole"), std::string::npos) << text;
  EXPECT_NE(text.find("and beside them 5 calls that waited for nothing"), std::string::npos) << text;
  EXPECT_NE(text.find("2.00 a step, in 4 steps that each end with cuMemcpyDtoH_v2:"), std::string::npos)
      << text;
  EXPECT_NE(text.find("1.00  cuStreamSynchronize "), std::string::npos) << text;
  EXPECT_NE(text.find("1.00  cuMemcpyDtoH_v2 "), std::string::npos) << text;
  EXPECT_NE(text.find(" 1.0 us each"), std::string::npos) << text;
  EXPECT_EQ(text.find("cuMemAlloc_v2"), std::string::npos) << text;
  EXPECT_NE(
      session.RoundTrips("cuStreamSynchronize").find("in 4 steps that each end with cuStreamSynchronize"),
      std::string::npos);
  EXPECT_NE(session.RoundTrips("", false).find(" 0.8 us each"), std::string::npos)
      << "by the host's side alone";
}

TEST(RoundTrips, OnlyWhatIsWholeCounts) {
  Recorded session;
  for (uint64_t step = 0; step < 20; ++step) AddStep(session, step);
  const std::string text = session.RoundTrips();  // 16 calls are kept
  EXPECT_NE(text.find("16 round trips"), std::string::npos) << text;
  EXPECT_NE(text.find("2.00 a step, in 7 steps"), std::string::npos) << text;
}

TEST(RoundTrips, WithoutAStepAllAreNamed) {
  Recorded session;
  session.Waiting(0, Op::cuMemAlloc_v2, {0, 100, 200, 300});
  EXPECT_NE(session.RoundTrips().find("No call waited twice"), std::string::npos) << session.RoundTrips();
  EXPECT_NE(session.RoundTrips().find("1.00  cuMemAlloc_v2 "), std::string::npos);
  EXPECT_NE(session.RoundTrips("cuCtxSynchronize").find("cuCtxSynchronize did not wait twice"),
            std::string::npos);
  EXPECT_NE(RoundTripText({}, "").find("0 round trips"), std::string::npos);
}

TEST(Trace, RequestsWaitForPostedCalls) {
  Recorded session;
  session.Posted(0, Op::cuLaunchKernel, {500, 900, 4900});
  session.Waiting(0, Op::cuStreamSynchronize, {1000, 1300, 9300, 9600}, 1);  // after one posted record
  const Json trace = Json::parse(session.Trace());
  EXPECT_EQ(EventsWith(trace, "name", "after posted calls").size(), 2u)
      << trace;  // as the guest and as the worker saw it
  TheEvent(trace, "cuLaunchKernel", 2, 0);
  EXPECT_EQ(EventsWith(trace, "cat", "in the ring").size(), 2u);
}

TEST(Trace, WhatHasNoEndIsShown) {
  Recorded session;
  session.Waiting(0, Op::cuStreamSynchronize, {1000, 1300, 0, 0});
  session.Posted(0, Op::cuLaunchKernel, {500, 900, 0});
  const Json trace = Json::parse(session.Trace());
  TheEvent(trace, "cuStreamSynchronize (no reply)", 1, 1);
  EXPECT_EQ(EventsWith(trace, "name", "cuStreamSynchronize (not finished)").size(), 1u) << trace;
  EXPECT_EQ(EventsWith(trace, "name", "cuLaunchKernel (not finished)").size(), 1u) << trace;
}

TEST(Trace, WhatCannotBeTrueIsDropped) {
  Recorded session;
  session.Waiting(0, Op::cuMemAlloc_v2, {1000, 1300, 9300, 9600});
  session.guest().channel[2][3].number = 9;  // does not belong there
  session.guest().main[0] = {~uint64_t{0}, 0, 1, 77, 56, 40, 0};
  session.host().main[1] = {kHostZero + 100, kHostZero + 50, 2, 0, 56, 40, 0};  // ends before it begins
  const Json trace = Json::parse(session.Trace());
  EXPECT_EQ(trace["otherData"]["dropped_records"], 3) << trace;
  EXPECT_EQ(trace["otherData"]["guest_messages"], 1) << trace;
  EXPECT_EQ(trace["otherData"]["host_messages"], 1) << trace;
}

TEST(Trace, GarbageStaysJson) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    Recorded session;
    session.Waiting(5, Op::cuStreamSynchronize, {1000, 1300, 9300, 9600});
    FlightImage& image = round % 2 == 0 ? session.guest() : session.host();
    auto* bytes = reinterpret_cast<uint8_t*>(&image);
    const size_t begin = round % 3 == 0 ? 0 : offsetof(FlightHeader, first);  // with and without its version
    const size_t step = round % 5 + 1;
    for (size_t at = begin; at < sizeof image; at += step) bytes[at] = static_cast<uint8_t>(random());
    // Many of them in their places and of plausible times, so that they are looked at.
    for (uint32_t i = 0; i < kFlightMainRecords; ++i) {
      image.main[i].number = i + 1;
      if (i % 2 == 0) image.main[i].begin = kHostZero + random() % 2'000'000'000;
      if (i % 3 == 0) image.main[i].end = 0;
    }
    EXPECT_TRUE(Json::accept(session.Trace(round % 4 == 0))) << "round " << round;
  }
  TraceInput none;
  EXPECT_TRUE(Json::accept(ChromeTrace(none)));
  none.guest = "too short";
  EXPECT_TRUE(Json::accept(ChromeTrace(none)));
}

TEST(FlightRecorder, KeepsTheLastRecordsOfEachLink) {
  const auto image = std::make_unique<FlightImage>();
  FlightRecorder recorder(image.get());
  FlightMessage header{.op = 0, .bytes = 100, .sequence = 0};
  for (header.sequence = 0; header.sequence < kFlightMainRecords + 3; ++header.sequence)
    recorder.Begin(FlightRecorder::kMainLink, header, 1, 1000 + header.sequence);
  EXPECT_EQ(image->main[2].number, kFlightMainRecords + 3);
  EXPECT_EQ(image->main[3].number, 4u);
  recorder.End(FlightRecorder::kMainLink, 2, 5000);  // its place was taken
  EXPECT_EQ(image->main[2].end, 0u);
  recorder.End(FlightRecorder::kMainLink, 3, 6000);
  EXPECT_EQ(image->main[3].end, 6000u);
  header.sequence = kFlightChannelRecords + 1;
  recorder.Begin(kChannelCount - 1, header, 1, 7000);
  EXPECT_EQ(image->channel[kChannelCount - 1][1].begin, 7000u);
  FlightRecorder nowhere(nullptr);
  nowhere.Begin(0, header, 1, 1);
  nowhere.End(0, 0, 1);
}

}  // namespace
}  // namespace causeway
