// SPDX-License-Identifier: Apache-2.0
// Which way moves the bytes of copies over TCP best: docs/remote.md has what it found. A process whose memory is as large as a copy
// sends it to another one, which receives it in the six staging buffers that a copy has under way, as a remote guest and its worker do;
// frames, calls and a GPU are left out. The ways (ways.h) take turns in each round, there and back, over connections that stay.
//
//   payload_bench [--mib N] [--rounds N] [--limit S] [--bytes random,zeros] [--ways send,tls,...] [--json FILE]
//   payload_bench --listen PORT                      on one machine: receives from the first that comes, and ends with it
//   payload_bench --connect HOST:PORT [...]          on another machine: sends
//
// Before anything is measured each way carries the memory once, and each byte is compared. A way that the kernel has not got, or
// forbids, is named in one line and left out. Exit status: 0; 1 where a way has brought other bytes or has failed; 2 for wrong options.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include "tests/bench/payload/link.h"
#include "tests/bench/payload/receiving.h"
#include "tests/bench/payload/report.h"
#include "tests/bench/payload/sending.h"
#include "tests/bench/payload/ways.h"

namespace causeway::payload {
namespace {

struct Options {
  int mib = 256, rounds = 12, limit_s = 300, listen = 0;
  std::vector<std::string> bytes = {"random"}, ways;
  std::string json, connect;
  bool spoil = false;
};

std::string Where(const Options& options) {
  utsname names{};
  uname(&names);
  double load = 0;
  getloadavg(&load, 1);
  char text[256];
  std::snprintf(text, sizeof text, "Linux %s, %u processors, load %.1f, %s", names.release,
                std::thread::hardware_concurrency(), load,
                options.connect.empty() ? "loopback interface" : ("to " + options.connect).c_str());
  return text;
}

std::span<std::byte> MakeMemory(size_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) Fail("there is no memory for a copy of that size");
  return {static_cast<std::byte*>(mapped), bytes};
}

// The ways that work here.
std::vector<uint32_t> PrepareAll(const Options& options, Sender& sender, Run& run) {
  std::vector<uint32_t> working;
  size_t wrong = 0;
  for (uint32_t way = 0; way < kWayCount; ++way) {
    const std::string name = kWays[way].name;
    if (!options.ways.empty() &&
        std::find(options.ways.begin(), options.ways.end(), name) == options.ways.end())
      continue;
    const Outcome outcome = sender.Prepare(way);
    if (outcome.status == Status::kFailed) Fail(name + " has failed: " + outcome.text);
    if (outcome.done()) {
      working.push_back(way);
      continue;
    }
    if (outcome.status == Status::kWrong) {
      std::printf("wrong: %s: %s\n", name.c_str(), outcome.text.c_str());
      ++wrong;
      continue;
    }
    std::printf("left out: %s: %s\n", name.c_str(), outcome.text.c_str());
    run.left_out.emplace_back(name, outcome.text);
  }
  if (wrong != 0)
    Fail((working.empty() ? "all ways have" : "ways have") +
         std::string(" brought other bytes than were meant"));
  return working;
}

// Rounds until there are enough, or another one would probably end after `until`.
void Measure(int rounds, double until, const std::vector<uint32_t>& ways, Sender& sender, Table& table) {
  Notices before[kWayCount];
  for (const uint32_t way : ways) before[way] = sender.NoticesOf(way);
  std::vector<uint32_t> turns = ways;
  double longest = 0;
  for (int round = 0; round < rounds && (round == 0 || Now() + longest <= until); ++round) {
    const double began = Now();
    for (const uint32_t way : turns) {
      Sample sample;
      if (const Outcome outcome = sender.Transfer(way, false, &sample); !outcome.done())
        Fail(std::string(kWays[way].name) + " has failed: " + outcome.text);
      table.samples[way].push_back(sample);
    }
    std::reverse(turns.begin(), turns.end());
    longest = std::max(longest, Now() - began);
  }
  for (const uint32_t way : ways) {
    table.notices[way] = sender.NoticesOf(way);
    table.notices[way].told -= before[way].told;
    table.notices[way].copied -= before[way].copied;
  }
}

int RunSending(const Options& options, const std::string& host, const std::string& port) {
  constexpr unsigned kGraceS = 60;
  alarm(static_cast<unsigned>(options.limit_s) + kGraceS);  // ends this process, whatever it waits for
  const double began = Now();
  const std::span<std::byte> memory = MakeMemory(static_cast<size_t>(options.mib) * kPieceBytes);
  Pattern(0, memory);
  if (options.spoil) memory[memory.size() - kPieceBytes / 2] ^= std::byte{1};
  Sender sender(host, port, memory, static_cast<uint32_t>(options.limit_s));
  Run run{Where(options), options.mib, {}, {}};
  const std::vector<uint32_t> ways = PrepareAll(options, sender, run);
  std::printf("%s: %d MiB, rounds: %d at most\n", run.where.c_str(), options.mib, options.rounds);
  std::fflush(stdout);
  for (size_t i = 0; i < options.bytes.size(); ++i) {
    const Table empty{options.bytes[i], {}, {}};
    Table& table = run.tables.emplace_back(empty);
    table.bytes == "zeros" ? std::fill(memory.begin(), memory.end(), std::byte{0}) : Pattern(0, memory);
    const double share = static_cast<double>(i + 1) / static_cast<double>(options.bytes.size());
    Measure(options.rounds, began + share * options.limit_s, ways, sender, table);
    Print(table);
  }
  if (options.json.empty() || WriteJson(run, options.json)) return 0;
  Fail(options.json + " could not be written");
}

// Both ends on this machine. The child listens before it is a process of its own, and ends with its parent.
int RunBoth(const Options& options) {
  uint16_t port = 0;
  UniqueFd listener = Listen(true, 0, &port);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) Fail("no process could be made for the receiving end");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::exit(ServeReceiving(listener.get()));
  }
  listener.reset();
  const int status = RunSending(options, "127.0.0.1", std::to_string(port));
  int ended = 0;
  if (waitpid(child, &ended, 0) != child || ended != 0) Fail("the receiving process has failed");
  return status;
}

int RunAs(const Options& options) {
  if (options.listen != 0) {
    uint16_t port = 0;
    const UniqueFd listener = Listen(false, static_cast<uint16_t>(options.listen), &port);
    return ServeReceiving(listener.get());
  }
  if (options.connect.empty()) return RunBoth(options);
  const size_t colon = options.connect.rfind(':');
  if (colon == std::string::npos) Fail(options.connect + " is not HOST:PORT");
  return RunSending(options, options.connect.substr(0, colon), options.connect.substr(colon + 1));
}

int Main(int argc, char** argv) {
  CLI::App app{"Compares ways to move the bytes of copies over TCP."};
  Options options;
  std::vector<std::string> names;
  for (const Way& way : kWays) names.emplace_back(way.name);
  app.add_option("--mib", options.mib, "size of a copy, and of the sender's memory")
      ->check(CLI::Range(4, 16384));
  app.add_option("--rounds", options.rounds, "rounds, in each of which every way has its turn")
      ->check(CLI::Range(1, 1000));
  app.add_option("--limit", options.limit_s, "seconds after which no further round begins")
      ->check(CLI::Range(1, 3600));
  app.add_option("--bytes", options.bytes, "what is sent: random, zeros, or both in two tables")
      ->delimiter(',')
      ->check(CLI::IsMember({"random", "zeros"}));
  app.add_option("--ways", options.ways, "these alone; without send no ratio is printed")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  app.add_option("--json", options.json, "file for the figures of all rounds");
  auto* const listens =
      app.add_option("--listen", options.listen, "receive, at this port of all IPv4 addresses")
          ->check(CLI::Range(1, 65535));
  app.add_option("--connect", options.connect, "HOST:PORT: send to a program that listens there")
      ->excludes(listens);
  app.add_flag("--spoil", options.spoil, "change one byte of what is sent, to see that it is noticed");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return RunAs(options);
}

}  // namespace
}  // namespace causeway::payload

int main(int argc, char** argv) {
  try {
    return causeway::payload::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "payload_bench: %s\n", error.what());
    return 1;
  }
}
