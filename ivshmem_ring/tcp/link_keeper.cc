// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/tcp/link_keeper.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "ivshmem_ring/system/own_signals.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway {
namespace {

constexpr uint64_t kFirstPauseUs = 20'000, kLongestPauseUs = 1'000'000;

std::chrono::steady_clock::time_point TimeOf(uint64_t until_us) {
  const uint64_t now_us = NowUs();
  return std::chrono::steady_clock::now() +
         std::chrono::microseconds(until_us > now_us ? until_us - now_us : 0);
}

}  // namespace

FreshSocket::~FreshSocket() {
  if (fd >= 0) close(fd);
}

LinkKeeper::~LinkKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  terms_.source->Stop();
  if (thread_.joinable()) thread_.join();
}

void LinkKeeper::Abandon() {
  if (thread_.joinable()) thread_.detach();
  thread_ = std::thread();
}

std::string LinkKeeper::Start() {
  const std::lock_guard lock(mutex_);
  if (thread_.joinable() || stopped_) return {};
  const WithoutProgramsSignals no_signals;
  std::string failure;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    failure = std::string("no thread can be started that connects again: ") + error.what();
  }
  return failure;
}

void LinkKeeper::Run() {
  const uint64_t grace_us = uint64_t{terms_.grace_s} * 1'000'000;
  for (;;) {
    uint64_t received = 0, lost_us = 0;
    const Resumption::Parked parked = connection_.AwaitLoss(grace_us, &received, &lost_us);
    if (parked == Resumption::Parked::kOver) return;
    if (parked == Resumption::Parked::kLate)
      return terms_.over(connection_.why_lost() + "; a queue has been full since, for " +
                         std::to_string(terms_.grace_s) + " s");
    if (!GoOn(received, lost_us + grace_us)) return;
    terms_.again();
  }
}

bool LinkKeeper::GoOn(uint64_t received, uint64_t until_us) {
  const std::string lost = connection_.why_lost();
  std::string why;
  for (;;) {
    FreshSocket fresh;
    const SocketSource::Got got = terms_.source->Get(received, until_us, &fresh, &why);
    if (got == SocketSource::Got::kSocket) {
      reader_.Forget();
      const bool went_on = connection_.GoOn(fresh.fd, std::move(fresh.layer), fresh.peer_received);
      if (went_on) {
        fresh.fd = -1;
        return true;
      }
      why = "the peer says that it has received what was never sent";
    }
    if (got == SocketSource::Got::kNothing && NowUs() < until_us) continue;
    if (got == SocketSource::Got::kNothing)
      why = "it could not be made again within " + std::to_string(terms_.grace_s) + " s" +
            (why.empty() ? "" : ": " + why);
    terms_.over(lost + "; " + why);
    return false;
  }
}

bool Redial::Pause(uint64_t us) {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, std::chrono::microseconds(us), [this] { return stop_; });
}

SocketSource::Got Redial::Get(uint64_t received, uint64_t until_us, FreshSocket* fresh, std::string* why) {
  for (uint64_t pause_us = kFirstPauseUs; Pause(0); pause_us = std::min(2 * pause_us, kLongestPauseUs)) {
    const Got got = dial_(++attempt_, received, fresh, why);
    const uint64_t now_us = NowUs();
    if (got != Got::kNothing || now_us >= until_us) return got;
    if (!Pause(std::min(pause_us, until_us - now_us))) break;
  }
  *why = "this side has ended it";
  return Got::kOver;
}

void Redial::Stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  stopped_.notify_all();
}

void Offers::Offer(Take take) {
  const std::lock_guard lock(mutex_);
  offered_ = std::move(take);
  changed_.notify_all();
}

SocketSource::Got Offers::Get(uint64_t received, uint64_t until_us, FreshSocket* fresh, std::string* why) {
  Take take;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, TimeOf(until_us), [this] { return stop_ || offered_ != nullptr; });
    *why = stop_ ? "this side has ended it" : "";
    if (stop_) return Got::kOver;
    take = std::exchange(offered_, nullptr);
  }
  return take != nullptr && take(received, fresh, why) ? Got::kSocket : Got::kNothing;
}

void Offers::Stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

}  // namespace causeway
