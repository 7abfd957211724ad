// SPDX-License-Identifier: Apache-2.0
// `causeway trace`: the last calls of a session, with their times on both sides, as a trace for
// chrome://tracing or ui.perfetto.dev.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "host_backend/command/command.h"
#include "host_backend/command/trace/round_trips.h"
#include "host_backend/command/trace/trace_export.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/transport/flight_recorder.h"

namespace causeway::command {
namespace {

Result<std::string> Ask(const std::string& socket, uint64_t session) {
  const LocalTraceRequest request{{kLocalMagic, kAbiMajor, kAbiMinor, LocalRequestKind::kTrace}, session};
  return AskDaemon(socket, &request, sizeof(request));
}

std::string GuestName(const std::string& entry) {
  const std::string vm = StatusValue(entry, "", "vm");
  return StatusValue(entry, "", "kind") + (vm.empty() ? "" : " " + vm) + ", process " +
         StatusValue(entry, "", "pid") + " (session " + StatusValue(entry, "", "number") + ")";
}

void PrintList(const std::string& json) {
  const auto sessions = JsonObjects(json, "sessions");
  if (sessions.empty()) std::printf("no sessions\n");
  for (const std::string& session : sessions) {
    const auto value = [&](const char* key) { return StatusValue(session, "", key); };
    std::printf("%6s  %-6s %-12s pid %-8s uid %-6s worker %-8s %12s calls  %s%s%s\n", value("number").c_str(),
                value("kind").c_str(), value("vm").empty() ? "-" : value("vm").c_str(), value("pid").c_str(),
                value("uid").c_str(), value("worker_pid").c_str(), value("calls").c_str(),
                value("state").c_str(), value("end").empty() ? "" : ": its worker ", value("end").c_str());
  }
}

// A session's records, as `make` shows them.
Result<std::string> Fetch(const std::string& socket, uint64_t session,
                          const std::function<std::string(const TraceInput&)>& make) {
  auto answer = Ask(socket, session);
  if (!answer.ok()) return answer;
  const std::string& text = answer.value();
  const size_t end = text.find('\0');
  const auto entries = JsonObjects(text.substr(0, end), "sessions");
  if (end == std::string::npos || entries.size() != 1)
    return Error{"The daemon at " + socket + " stopped in the middle of its answer."};
  const std::string& entry = entries[0];
  const auto bytes = [&](const char* key) {
    return std::strtoull(StatusValue(entry, "", key).c_str(), nullptr, 10);
  };
  const std::string_view images = std::string_view(text).substr(end + 1);
  if (bytes("guest_bytes") > images.size() || bytes("host_bytes") != images.size() - bytes("guest_bytes"))
    return Error{"The daemon at " + socket + " stopped in the middle of its answer."};
  TraceInput input;
  input.guest_name = GuestName(entry);
  input.worker_name = "worker " + StatusValue(entry, "", "worker_pid");
  input.remark = StatusValue(entry, "", "end");
  input.guest = images.substr(0, bytes("guest_bytes"));
  input.host = images.substr(bytes("guest_bytes"));
  input.one_clock = StatusValue(entry, "", "kind") == "local";
  input.now = ReadFlightClock();
  return make(input);
}

}  // namespace

Result<std::string> FetchTrace(const std::string& socket, uint64_t session) {
  return Fetch(socket, session, ChromeTrace);
}

std::string WriteTrace(const std::string& trace, const std::string& file_name) {
  std::ofstream file(file_name);
  file << trace << "\n";
  file.close();
  return file ? "" : "The trace cannot be written to " + file_name + ": " + ErrnoText() + ".";
}

std::string WriteTraces(const std::string& socket, const std::string& file_name) {
  const auto answer = Ask(socket, kTraceList);
  if (!answer.ok()) return answer.error();
  const auto sessions = JsonObjects(answer.value(), "sessions");
  if (sessions.empty()) return "There is no trace: the command opened no session.";
  for (size_t i = 0; i < sessions.size(); ++i) {
    const auto trace =
        FetchTrace(socket, std::strtoull(StatusValue(sessions[i], "", "number").c_str(), nullptr, 10));
    if (!trace.ok()) return trace.error();
    std::filesystem::path name(file_name);
    if (i != 0) name.replace_extension("." + std::to_string(i + 1) + name.extension().string());
    if (std::string problem = WriteTrace(trace.value(), name.string()); !problem.empty()) return problem;
  }
  return "";
}

int RunTrace(const TraceOptions& options) {
  const auto make = [&](const TraceInput& input) {
    return options.round_trips ? RoundTripText(input, options.step) : ChromeTrace(input);
  };
  const auto answer =
      options.list ? Ask(options.socket, kTraceList) : Fetch(options.socket, options.session, make);
  std::string problem = answer.ok() ? "" : answer.error();
  if (answer.ok() && options.list) {
    PrintList(answer.value());
  } else if (answer.ok() && options.out.empty()) {
    std::printf("%s\n", answer.value().c_str());
  } else if (answer.ok()) {
    problem = WriteTrace(answer.value(), options.out);
  }
  if (problem.empty()) return 0;
  std::fprintf(stderr, "causeway: %s\n", problem.c_str());
  return 1;
}

}  // namespace causeway::command
