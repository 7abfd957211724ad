// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/payload/report.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <fstream>

#include <nlohmann/json.hpp>
#include "tools/bench/crew/statistics.h"

namespace causeway::payload {
namespace {

constexpr uint32_t kPlainSend = 0;      // what the others are compared with
constexpr uint32_t kOneOfRecords = 10;  // what stripes of records are compared with, too
static_assert(kWays[kPlainSend].sends == Sends::kSend && kWays[kOneOfRecords].sends == Sends::kRecords &&
              kWays[kPlainSend].connections == 1 && kWays[kOneOfRecords].connections == 1);

std::vector<double> Column(const std::vector<Sample>& samples, double Sample::*figure) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const Sample& each : samples) values.push_back(each.*figure);
  return values;
}

// To the other way in the same round.
std::vector<double> Ratios(const Table& table, uint32_t way, uint32_t other = kPlainSend) {
  const std::vector<Sample>&own = table.samples[way], &others = table.samples[other];
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(own.size(), others.size()); ++i)
    ratios.push_back(own[i].gb_per_s / others[i].gb_per_s);
  return ratios;
}

std::string Text(const char* format, double one, double other = 0) {
  char text[64];
  std::snprintf(text, sizeof text, format, one, other);
  return text;
}

void PrintNotices(const char* way, const Notices& notices) {
  if (notices.told == 0) return;
  if (!notices.tells_copies)
    std::printf("%s: this kernel does not say how much of it was copied nevertheless\n", way);
  else
    std::printf("%s: of %" PRIu64 " sends without a copy the kernel has copied %" PRIu64 " nevertheless\n",
                way, notices.told, notices.copied);
}

void PrintStripesOfRecords(const Table& table, uint32_t way) {
  if (kWays[way].sends != Sends::kRecords || way == kOneOfRecords) return;
  const std::vector<double> ratios = Ratios(table, way, kOneOfRecords);
  if (ratios.empty()) return;
  const auto interval = MedianInterval(ratios);
  std::printf("%s: %.2f of %s%s\n", kWays[way].name, bench::Median(ratios), kWays[kOneOfRecords].name,
              interval ? Text(", %.2f to %.2f", interval->first, interval->second).c_str() : "");
}

}  // namespace

std::optional<std::pair<double, double>> MedianInterval(std::vector<double> values) {
  constexpr size_t kLeast = 8;
  constexpr double kOutside = 0.025;  // on each side
  const size_t count = values.size();
  if (count < kLeast) return std::nullopt;
  std::sort(values.begin(), values.end());
  // How many values lie below the median follows the throws of a coin. `below`: the probability of at most k of them.
  double probability = std::pow(0.5, static_cast<double>(count)), below = probability;
  size_t k = 0;
  while (true) {
    probability *= static_cast<double>(count - k) / static_cast<double>(k + 1);
    if (below + probability > kOutside) break;
    below += probability;
    ++k;
  }
  return std::pair(values[k], values[count - 1 - k]);
}

void Print(const Table& table) {
  std::printf("\n%s bytes; s/GB is processor time\n", table.bytes.c_str());
  std::printf("| %-19s | %6s | %12s | %7s | %-13s | %11s | %13s |\n", "way", "GB/s", "least, most", "of send",
              "95 % interval", "sender s/GB", "receiver s/GB");
  std::printf("|---|---:|---:|---:|---|---:|---:|\n");
  for (uint32_t way = 0; way < kWayCount; ++way) {
    const std::vector<Sample>& samples = table.samples[way];
    if (samples.empty()) continue;
    const std::vector<double> speeds = Column(samples, &Sample::gb_per_s), ratios = Ratios(table, way);
    const auto [least, most] = std::minmax_element(speeds.begin(), speeds.end());
    const auto interval = way == kPlainSend ? std::nullopt : MedianInterval(ratios);
    const std::string between = interval ? Text("%.2f to %.2f", interval->first, interval->second) : "",
                      ratio = ratios.empty() ? "" : Text("%.2f", bench::Median(ratios)),
                      range = Text("%.2f, %.2f", *least, *most);
    std::printf("| %-19s | %6.2f | %12s | %7s | %-13s | %11.3f | %13.3f |\n", kWays[way].name,
                bench::Median(speeds), range.c_str(), ratio.c_str(), between.c_str(),
                bench::Median(Column(samples, &Sample::sender_s_per_gb)),
                bench::Median(Column(samples, &Sample::receiver_s_per_gb)));
  }
  for (uint32_t way = 0; way < kWayCount; ++way) {
    PrintStripesOfRecords(table, way);
    PrintNotices(kWays[way].name, table.notices[way]);
  }
  std::fflush(stdout);
}

bool WriteJson(const Run& run, const std::string& path) {
  nlohmann::json document = {{"where", run.where}, {"mib", run.mib}};
  for (const auto& [way, why] : run.left_out) document["left_out"][way] = why;
  for (const Table& table : run.tables) {
    nlohmann::json ways = nlohmann::json::array();
    for (uint32_t way = 0; way < kWayCount; ++way) {
      const std::vector<Sample>& samples = table.samples[way];
      if (samples.empty()) continue;
      const std::vector<double> ratios = Ratios(table, way);
      nlohmann::json row = {{"way", kWays[way].name},
                            {"gb_per_s", Column(samples, &Sample::gb_per_s)},
                            {"of_send", ratios},
                            {"sender_s_per_gb", Column(samples, &Sample::sender_s_per_gb)},
                            {"receiver_s_per_gb", Column(samples, &Sample::receiver_s_per_gb)}};
      if (const auto interval = MedianInterval(ratios))
        row["of_send_interval"] = {interval->first, interval->second};
      if (const Notices& notices = table.notices[way]; notices.told != 0 && notices.tells_copies)
        row["sends_without_copy"] = {{"told", notices.told}, {"copied", notices.copied}};
      ways.push_back(row);
    }
    document["tables"].push_back({{"bytes", table.bytes}, {"ways", ways}});
  }
  std::ofstream file(path);
  file << document.dump(1) << '\n';
  file.close();
  return !file.fail();
}

}  // namespace causeway::payload
