// SPDX-License-Identifier: Apache-2.0
// `causeway bench`: NVIDIA's library and Causeway's in turns, in one run on one machine, and the table of
// both.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>

#include "host_backend/command.h"
#include "host_backend/json_writer.h"
#include "host_backend/unique_fd.h"

namespace causeway::command {
namespace {

constexpr int kSpareLimitMs = 90'000;
constexpr char kStartup[] = "start-up to first kernel result";

enum Side { kNative, kGuest, kSides };
constexpr const char* kSideNames[kSides] = {"native", "causeway"};

struct Row {
  std::string name;
  std::string unit;
  std::vector<double> samples[kSides];
  std::string error[kSides];
};

// Rows in the order in which the probe printed them first.
struct Table {
  std::vector<Row> rows;
  Row& At(const std::string& name, const std::string& unit) {
    for (Row& row : rows) {
      if (row.name == name) return row;
    }
    rows.push_back({name, unit, {}, {}});
    return rows.back();
  }
};

struct Sides {
  std::string probe;
  std::string library[kSides];
  std::string address;  // of CAUSEWAY for the guest side; empty: as it is set
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct ProbeOutput {
  std::string text;
  double first_byte_ms = 0;  // from before fork to the first output
};

Result<ProbeOutput> RunProbe(const Sides& sides, Side side, const char* option) {
  int ends[2];
  if (pipe(ends) != 0) return Error{"No pipe for the probe: " + ErrnoText() + "."};
  UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = fork();
  if (child < 0) return Error{"The probe cannot be started: " + ErrnoText() + "."};
  if (child == 0) {
    if (side == kNative) unsetenv("CAUSEWAY");
    if (side == kGuest && !sides.address.empty()) setenv("CAUSEWAY", sides.address.c_str(), 1);
    dup2(input.get(), STDOUT_FILENO);
    output.reset();
    execl(sides.probe.c_str(), sides.probe.c_str(), sides.library[side].c_str(),
          *option != '\0' ? option : nullptr, static_cast<char*>(nullptr));
    std::fprintf(stderr, "causeway: the probe %s cannot be started: %s\n", sides.probe.c_str(),
                 ErrnoText().c_str());
    _exit(127);
  }
  input.reset();
  ProbeOutput result;
  char buffer[4096];
  ssize_t bytes = 0;
  while ((bytes = read(output.get(), buffer, sizeof(buffer))) > 0) {
    if (result.text.empty()) {
      result.first_byte_ms =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    }
    result.text.append(buffer, size_t(bytes));
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return Error{std::string("The probe failed with the ") + kSideNames[side] + " library " +
                 sides.library[side] +
                 (WIFSIGNALED(status) ? ": signal " + std::to_string(WTERMSIG(status))
                                      : ": exit status " + std::to_string(WEXITSTATUS(status))) +
                 "."};
  }
  return result;
}

// One sample of everything on one side; "" or what failed.
std::string Sample(const Sides& sides, Side side, const PrivateDaemon* daemon, bool quick, Table& table) {
  const auto wait = [&]() -> std::string {
    return side == kGuest && daemon != nullptr ? daemon->WaitForSpares(1, kSpareLimitMs) : "";
  };
  if (std::string text = wait(); !text.empty()) return text;
  auto startup = RunProbe(sides, side, "--startup");
  if (!startup.ok()) return startup.error();
  table.At(kStartup, "ms").samples[side].push_back(startup.value().first_byte_ms);
  if (std::string text = wait(); !text.empty()) return text;
  auto figures = RunProbe(sides, side, quick ? "--quick" : "");
  if (!figures.ok()) return figures.error();
  for (const std::string& figure : JsonObjects(figures.value().text, "figures")) {
    Row& row = table.At(StatusValue(figure, "", "name"), StatusValue(figure, "", "unit"));
    const std::string error = StatusValue(figure, "", "error");
    if (error != "0") {
      row.error[side] = error;
    } else {
      row.samples[side].push_back(std::strtod(StatusValue(figure, "", "value").c_str(), nullptr));
    }
  }
  return {};
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text),
                value >= 100  ? "%.0f"
                : value >= 10 ? "%.1f"
                : value >= 1  ? "%.2f"
                              : "%.3f",
                value);
  return text;
}

std::string Cell(const Row& row, Side side) {
  if (!row.error[side].empty()) return "error " + row.error[side];
  return row.samples[side].empty() ? "-" : Number(Median(row.samples[side]));
}

// Ratios of the pairs, which were measured one right after the other.
std::vector<double> Ratios(const Row& row) {
  std::vector<double> ratios;
  const size_t pairs = std::min(row.samples[kNative].size(), row.samples[kGuest].size());
  for (size_t i = 0; i < pairs; ++i) {
    if (row.samples[kNative][i] > 0) ratios.push_back(row.samples[kGuest][i] / row.samples[kNative][i]);
  }
  return ratios;
}

void PrintTable(const Table& table, uint32_t pairs) {
  std::printf("%-36s %-5s %12s %12s %16s %s\n", "figure", "unit", "native", "causeway", "causeway/native",
              "spread of the ratio");
  for (const Row& row : table.rows) {
    const auto ratios = Ratios(row);
    std::string ratio = "-";
    std::string spread;
    if (!ratios.empty()) {
      ratio = Number(Median(ratios));
      spread = Number(*std::min_element(ratios.begin(), ratios.end())) + " to " +
               Number(*std::max_element(ratios.begin(), ratios.end()));
    }
    std::printf("%-36s %-5s %12s %12s %16s %s\n", row.name.c_str(), row.unit.c_str(),
                Cell(row, kNative).c_str(), Cell(row, kGuest).c_str(), ratio.c_str(), spread.c_str());
    if (row.name.starts_with("cuCtxGetCacheConfig") && !ratios.empty()) {
      std::printf("%-36s %-5s %12s %12s\n", "  waiting call, over native", "us", "",
                  Number(Median(row.samples[kGuest]) - Median(row.samples[kNative])).c_str());
    }
  }
  std::printf(
      "Medians of %u runs of each side, in turns; us and ms: less is better, GB/s (10^9): more is better.\n",
      pairs);
}

std::string WriteJson(const Table& table, const BenchOptions& options, const Sides& sides) {
  JsonWriter json;
  json.Open('{').Key("version").String(CAUSEWAY_VERSION).Key("pairs").Number(options.pairs);
  json.Key("native_library").String(options.guest_only ? "" : sides.library[kNative]);
  json.Key("causeway_library").String(sides.library[kGuest]).Key("quick").Bool(options.quick);
  json.Key("figures").Open('[');
  for (const Row& row : table.rows) {
    json.Open('{').Key("name").String(row.name).Key("unit").String(row.unit);
    for (int side = 0; side < kSides; ++side) {
      json.Key(kSideNames[side]).Open('[');
      for (const double sample : row.samples[side]) json.Real(sample);
      json.Close(']');
      if (!row.error[side].empty())
        json.Key(std::string(kSideNames[side]) + "_error").String(row.error[side]);
    }
    const auto ratios = Ratios(row);
    if (!ratios.empty()) json.Key("ratio").Real(Median(ratios));
    json.Close('}');
  }
  json.Close(']').Close('}');
  std::ofstream file(options.json_file);
  file << json.text() << "\n";
  file.close();
  return file ? "" : "The figures cannot be written to " + options.json_file + ": " + ErrnoText() + ".";
}

int Fail(const std::string& sentence) {
  std::fprintf(stderr, "causeway: %s\n", sentence.c_str());
  return 1;
}

}  // namespace

int RunBench(const BenchOptions& options) {
  Sides sides;
  sides.probe = ProgramFolder() + "/causeway-bench-probe";
  // With a driver of one's own (the software GPU), that is what native means.
  const bool same_driver = options.native.empty() && !options.daemon.driver.empty();
  sides.library[kNative] = same_driver              ? options.daemon.driver
                           : options.native.empty() ? "libcuda.so.1"
                                                    : options.native;
  std::unique_ptr<PrivateDaemon> daemon;
  if (options.guest_only) {
    auto folder = FindGuestLibrary(options.daemon.guest_library);
    if (!folder.ok()) return Fail(folder.error());
    sides.library[kGuest] = folder.value() + "/libcuda.so.1";
  } else {
    auto started = PrivateDaemon::Start(options.daemon);
    if (!started.ok()) return Fail(started.error());
    daemon.reset(started.value());
    sides.library[kGuest] = daemon->guest_library_folder() + "/libcuda.so.1";
    sides.address = daemon->address();
  }
  Table table;
  for (uint32_t pair = 0; pair < options.pairs; ++pair) {
    // The order alternates, so that neither side always meets the warmer machine.
    for (int turn = 0; turn < kSides; ++turn) {
      const Side side = (pair + uint32_t(turn)) % 2 == 0 ? kNative : kGuest;
      if (side == kNative && options.guest_only) continue;
      if (std::string text = Sample(sides, side, daemon.get(), options.quick, table); !text.empty())
        return Fail(text);
    }
    std::fprintf(stderr, "pair %u of %u done\n", pair + 1, options.pairs);
  }
  PrintTable(table, options.pairs);
  if (options.json_file.empty()) return 0;
  const std::string text = WriteJson(table, options, sides);
  return text.empty() ? 0 : Fail(text);
}

}  // namespace causeway::command
