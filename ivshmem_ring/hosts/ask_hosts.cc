// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/hosts/ask_hosts.h"

#include <dlfcn.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "ivshmem_ring/hosts/dial.h"
#include "ivshmem_ring/system/own_signals.h"

namespace causeway {
namespace {

constexpr int kStepSeconds = 3;  // of one thread; what comes after the limits above is not used

// What the asking threads and their caller share; the last of them frees it.
struct Round {
  std::vector<HostAddress> hosts;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<HostAnswer> answers;  // these two are guarded
  size_t missing = 0;
};

HostAnswer Refused(const HostAddress& host, const LocalReply& reply) {
  const std::string text(reply.text, strnlen(reply.text, sizeof reply.text));
  // As hosts of earlier releases say it (host_backend/daemon/servers/open_block.cc); earlier ones of causeway-tls leave the answer out.
  if (reply.accepted == kAnswersOnly || text.find("asks for a session of kind ") != std::string::npos)
    return {HostAnswer::State::kUnknown, "its release does not say how loaded it is", {}};
  return {HostAnswer::State::kFull, "causewayd at " + host.text + " refuses sessions: " + text, {}};
}

HostAnswer Ask(const HostAddress& host) {
  HostConnection connection;
  if (std::string problem = DialHost(host, host.encrypted ? KeyFileFor(host) : "", kStepSeconds, &connection);
      !problem.empty())
    return {HostAnswer::State::kDown, problem, {}};
  const auto open = std::make_unique<OpenBlock>();
  StateOpening(open.get(), SessionKind::kQuestion);
  LocalReply reply{};
  if (!ExchangeOpening(connection, *open, kStepSeconds, &reply))
    return {HostAnswer::State::kDown, "no answer from causewayd at " + host.text, {}};
  HostAnswer answer{HostAnswer::State::kUp, "", {}};
  std::vector<std::byte> bytes(std::min<uint64_t>(reply.region_bytes, kMaxPoolAnswerBytes));
  if (reply.accepted != kAnswersOnly || !ReceiveMore(connection, bytes, kStepSeconds))
    return Refused(host, reply);
  if (!ReadPoolAnswer(bytes, &answer.figures))
    return {HostAnswer::State::kDown, "causewayd at " + host.text + " gave an answer that is none", {}};
  if (answer.figures.gpus.empty())
    answer = {HostAnswer::State::kUnknown, "it does not know how loaded its GPUs are", answer.figures};
  return answer;
}

void Run(const std::shared_ptr<Round>& round, size_t number) {
  HostAnswer answer;
  try {
    answer = Ask(round->hosts[number]);
  } catch (const std::bad_alloc&) {
    answer.reason = "there is not enough memory to ask it";
  }
  const std::lock_guard lock(round->mutex);
  round->answers[number] = std::move(answer);
  --round->missing;
  round->changed.notify_one();
}

// For threads that may still run when the program unloads the library that they are in.
void StayLoaded() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&StayLoaded), &self) != 0 && self.dli_fname != nullptr)
    dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

}  // namespace

std::vector<HostAnswer> AskHosts(const std::vector<HostAddress>& hosts, bool patient) {
  StayLoaded();
  const auto round = std::make_shared<Round>();
  round->hosts = hosts;
  round->missing = hosts.size();
  for (const HostAddress& host : hosts)
    round->answers.push_back({HostAnswer::State::kDown, host.text + " did not answer in time", {}});
  std::optional<WithoutProgramsSignals> no_signals(std::in_place);
  for (size_t i = 0; i < hosts.size(); ++i) {
    try {
      std::thread([round, i] { Run(round, i); }).detach();
    } catch (const std::system_error& error) {
      const std::lock_guard lock(round->mutex);
      round->answers[i].reason = std::string("no thread can be started to ask it: ") + error.what();
      --round->missing;
    }
  }
  no_signals.reset();
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(round->mutex);
  const auto done = [&] { return round->missing == 0; };
  const auto one_serves = [&] {
    return done() || std::any_of(round->answers.begin(), round->answers.end(), [](const HostAnswer& answer) {
             return answer.state == HostAnswer::State::kUp;
           });
  };
  const auto limit = begin + std::chrono::milliseconds(kAskLimitMs);
  if (!patient && round->changed.wait_until(lock, limit, one_serves))
    round->changed.wait_until(lock, begin + std::chrono::milliseconds(kAskMoreMs), done);
  else
    round->changed.wait_until(lock, limit, done);
  return round->answers;
}

}  // namespace causeway
