// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/trace/trace_export.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include "host_backend/command/trace/flight_side.h"
#include "host_backend/common/json.h"
#include "ivshmem_ring/protocol/operation.h"

namespace causeway {
namespace {

constexpr int kGuestProcess = 1,
              kHostProcess = 2;  // numbers of the trace: real ones of two kernels may be equal

struct ClockOffset {
  double ns = 0;           // to be added to the guest's times
  double uncertainty = 0;  // half of what the messages leave open; negative: nothing is known
};

// No message arrives before it was sent: each request bounds the offset from above, each reply from below.
// The fastest ones leave the least open.
ClockOffset EstimateOffset(const FlightSide& guest, const FlightSide& host) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double most = kNone, least = -kNone;
  for (const auto& [key, g] : guest.messages) {
    const auto found = host.messages.find(key);
    if (found == host.messages.end() || found->second.op != g.op) continue;
    most = std::min(most, found->second.begin - g.begin);
    if (g.end != 0 && found->second.end != 0) least = std::max(least, found->second.end - g.end);
  }
  if (most == kNone) return {0, -1};
  if (least == -kNone || least > most) return {most, -1};
  return {(least + most) / 2, (most - least) / 2};
}

class Exporter {
 public:
  explicit Exporter(const TraceInput& input) : input_(input) {}

  std::string Run() {
    guest_.Read(input_.guest);
    host_.Read(input_.host);
    Align();
    Collect();
    Names();
    for (const auto& [key, message] : guest_.messages) {
      if (message.link == kPostedLink) {
        Posted(message);
      } else {
        Waiting(message);
      }
    }
    for (const auto& [key, message] : host_.messages) Executed(message);
    return JsonText(
        {{"traceEvents", std::move(events_)}, {"displayTimeUnit", "ns"}, {"otherData", Metadata()}});
  }

 private:
  void Align() {
    double tick = host_.present ? TickLength(host_.header.first, input_.now) : 0;
    const double guest_tick = guest_.present ? TickLength(guest_.header.first, guest_.header.last) : 0;
    if (tick == 0) tick = guest_tick != 0 ? guest_tick : 1;
    const double now = double(input_.now.ns);
    const double begin = host_.present ? double(host_.header.first.ns) : now;
    const double from = std::max(0.0, std::min(begin, now) - kFlightSecond), to = now + kFlightSecond;
    constexpr double kAny = std::numeric_limits<double>::max();
    if (input_.one_clock) {
      const FlightClock zero = host_.present ? host_.header.first : input_.now;
      guest_.Convert(tick, zero, 0, from, to);
      host_.Convert(tick, zero, 0, from, to);
      return;
    }
    host_.Convert(tick, host_.header.first, 0, from, to);
    guest_.Convert(guest_tick != 0 ? guest_tick : tick, guest_.header.first, 0, -kAny, kAny);
    offset_ = EstimateOffset(guest_, host_);
    guest_.Convert(1, {}, offset_.ns, from, to);
  }

  // What the whole must know of all messages: where time begins and ends, and the threads as they appear.
  void Collect() {
    std::map<double, uint32_t> seen;
    double first = std::numeric_limits<double>::max();
    for (const FlightSide* side : {&guest_, &host_}) {
      for (const auto& [key, m] : side->messages) {
        first = std::min(first, m.begin);
        last_ = std::max({last_, m.begin, m.end});
        if (side == &guest_) seen.emplace(m.begin, m.who);
      }
    }
    origin_ = last_ > 0 ? first : 0;
    for (const auto& [when, who] : seen) threads_.emplace(who, threads_.size() + 1);
  }

  static double Us(double ns) { return RoundedTo(ns / 1000, 3); }
  Json Event(const char* phase, std::string_view name, int process, uint64_t thread, double at) const {
    return {{"ph", phase}, {"name", name}, {"pid", process}, {"tid", thread}, {"ts", Us(at - origin_)}};
  }
  Json Slice(std::string_view name, int process, uint64_t thread, double begin, double end) const {
    Json slice = Event("X", name, process, thread, begin);
    slice["dur"] = Us(std::max(0.0, end - begin));
    return slice;
  }
  void Name(const char* what, int process, uint64_t thread, std::string_view name) {
    events_.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}});
  }
  void Names() {
    Name("process_name", kGuestProcess, 0, input_.guest_name);
    Name("process_name", kHostProcess, 0, input_.worker_name);
    for (const auto& [who, number] : threads_)
      Name("thread_name", kGuestProcess, number, "thread " + std::to_string(number));
    Name("thread_name", kHostProcess, 0, "posted calls, in order");
    uint32_t named = kChannelCount;
    for (const auto& [key, message] : host_.messages) {
      if (message.link == kPostedLink || message.link == named) continue;
      named = message.link;
      Name("thread_name", kHostProcess, named + 1, "calls that wait, channel " + std::to_string(named));
    }
  }
  void AddCall(Json slice, const FlightSeen& m) {
    Json& arguments = slice["args"] = {{"sequence", m.number - 1}, {"bytes", m.bytes}};
    if (m.link != kPostedLink) arguments["channel"] = m.link;
    events_.push_back(std::move(slice));
  }
  const FlightSeen* OnHost(const FlightSeen& guest) const {
    const auto found = host_.messages.find({guest.link, guest.number});
    return found != host_.messages.end() && found->second.op == guest.op ? &found->second : nullptr;
  }
  // When a request could begin: the posted calls before it were done.
  double Started(const FlightSeen& m) const {
    if (m.link == kPostedLink || m.who == 0) return m.begin;
    const auto before = host_.messages.find({kPostedLink, m.who});  // number is sequence + 1
    const double done = before != host_.messages.end() ? before->second.end : 0;
    return done > m.begin && (m.end == 0 || done <= m.end) ? done : m.begin;
  }

  // A call whose caller waited: what its time was spent on lies below it.
  void Waiting(const FlightSeen& m) {
    const uint64_t thread = threads_[m.who];
    const double end = m.end != 0 ? m.end : last_;
    AddCall(Slice(OpName(m.op) + std::string(m.end != 0 ? "" : " (no reply)"), kGuestProcess, thread, m.begin,
                  end),
            m);
    const FlightSeen* host = OnHost(m);
    if (host == nullptr) return;
    double at = m.begin;
    const auto part = [&](const char* name, double until) {
      const double stop = std::clamp(until, at, end);
      events_.push_back(Slice(name, kGuestProcess, thread, at, stop));
      at = stop;
    };
    part("to the host", host->begin);
    if (const double started = Started(*host); started > host->begin) part("after posted calls", started);
    part("on the host", host->end != 0 ? host->end : end);
    if (host->end != 0) part("back", end);
  }

  // A call that nobody waited for: its moment, its time in the ring, and an arrow to where it is executed.
  void Posted(const FlightSeen& m) {
    const uint64_t thread = threads_[m.who];
    AddCall(Slice(OpName(m.op), kGuestProcess, thread, m.begin, m.begin), m);
    const FlightSeen* host = OnHost(m);
    if (host == nullptr) return;
    const double arrived = std::max(m.begin, host->begin);
    const auto add = [&](Json event, const char* category) {
      event["cat"] = category;
      event["id"] = m.number;
      events_.push_back(std::move(event));
    };
    add(Event("b", OpName(m.op), kGuestProcess, thread, m.begin), "in the ring");
    add(Event("e", OpName(m.op), kGuestProcess, thread, arrived), "in the ring");
    add(Event("s", "posted", kGuestProcess, thread, m.begin), "posted");
    Json end = Event("f", "posted", kHostProcess, 0, arrived);
    end["bp"] = "e";
    add(std::move(end), "posted");
  }

  void Executed(const FlightSeen& m) {
    const uint64_t thread = m.link == kPostedLink ? 0 : m.link + 1;
    const double started = Started(m);
    if (started > m.begin)
      events_.push_back(Slice("after posted calls", kHostProcess, thread, m.begin, started));
    AddCall(Slice(OpName(m.op) + std::string(m.end != 0 ? "" : " (not finished)"), kHostProcess, thread,
                  started, m.end != 0 ? m.end : last_),
            m);
  }

  Json Metadata() const {
    std::string clock = "one clock: both sides run on the same kernel";
    if (!guest_.present) {
      clock = "the host's: the guest's side was not recorded";
    } else if (!input_.one_clock && offset_.uncertainty < 0) {
      clock =
          "the guest's clock could not be compared with the host's: its times are shifted so that nothing "
          "arrives "
          "before it was sent";
    } else if (!input_.one_clock) {
      clock = "the guest's clock is aligned with the host's by round trips";
    }
    Json data = {{"guest", input_.guest_name},
                 {"worker", input_.worker_name},
                 {"end", input_.remark},
                 {"guest_messages", guest_.messages.size()},
                 {"host_messages", host_.messages.size()},
                 {"dropped_records", guest_.dropped + host_.dropped},
                 {"begin_monotonic_s", RoundedTo(origin_ / kFlightSecond, 9)},
                 {"clock", clock}};
    if (!input_.one_clock && offset_.uncertainty >= 0) data["clock_uncertainty_us"] = Us(offset_.uncertainty);
    return data;
  }

  const TraceInput& input_;
  FlightSide guest_;
  FlightSide host_;
  ClockOffset offset_;
  double origin_ = 0;
  double last_ = 0;
  std::map<uint32_t, uint64_t> threads_;
  Json events_ = Json::array();
};

}  // namespace

std::string ChromeTrace(const TraceInput& input) {
  return Exporter(input).Run();
}

}  // namespace causeway
