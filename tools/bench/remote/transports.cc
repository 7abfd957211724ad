// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/remote/transports.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>

#include "host_backend/common/json.h"
#include "ivshmem_ring/tcp/tcp_connection.h"
#include "tools/bench/crew/statistics.h"
#include "tools/bench/remote/bare_socket.h"

namespace causeway::bench {
namespace {

constexpr int kReadyLimitMs = 90'000, kFigureLimitMs = 60'000;
constexpr double kWaitingGoal = 1.2, kSealedWaitingGoal = 1.5, kCopyGoal = 0.9;
constexpr const char* kWaiting = "empty_call";
// What a waiting call without parameters puts on the wire, and what comes back.
constexpr size_t kRequestBytes = sizeof(FrameHeader) + sizeof(RecordHeader);
constexpr size_t kReplyBytes = kRequestBytes + sizeof(uint32_t);

using Samples = std::vector<double>;

// One of the ways to a driver.
struct Way {
  std::string name;
  ProbePlan plan;
  std::unique_ptr<command::PrivateDaemon> daemon;  // null: native
  std::unique_ptr<ProbeProcess> probe;
  std::map<std::string, Samples> samples;  // by the figure's id
};

std::optional<double> MedianOf(Samples samples) {
  if (samples.empty()) return {};
  return Median(std::move(samples));
}

bool IsCopy(const Figure& figure) {
  return figure.id.starts_with("copy:");
}

// Of a copy's figure.
BareCopy BareOf(const Figure& figure) {
  return {.bytes = std::stoull(figure.id.substr(figure.id.rfind(':') + 1)),
          .to_host = figure.id.starts_with("copy:h2d:")};
}
std::string NameOf(const BareCopy& copy) {
  return std::to_string(copy.bytes >> 20) + (copy.to_host ? " MiB from the guest" : " MiB to the guest");
}

class TransportRun {
 public:
  explicit TransportRun(const BenchOptions& options) : options_(options) {}

  std::string Prepare() {
    constexpr uint64_t kLeastBytes = 16u << 20;
    for (Figure& figure : Figures(false, options_.quick)) {
      const bool call = figure.id == kWaiting || figure.id == "launch_enqueue" ||
                        figure.id == "launch_sync" || figure.id == "d2h_small";
      const bool large = IsCopy(figure) && BareOf(figure).bytes >= kLeastBytes;
      if (call || large) figures_.push_back(std::move(figure));
    }
    std::vector<std::string> names = {"native", "ring"};
    names.insert(names.end(), options_.transports.begin(), options_.transports.end());
    for (const std::string& name : names) {
      if (std::string text = AddWay(name); !text.empty()) return text;
    }
    return {};
  }

  void Measure() {
    const double begin_ms = NowMs();
    for (; rounds_ < options_.rounds && NowMs() - begin_ms < 1000.0 * options_.limit_s; ++rounds_) {
      MeasureBare();
      for (const Figure& figure : figures_) {
        for (size_t turn = 0; turn < ways_.size(); ++turn)
          MeasureOne(figure, ways_[(turn + rounds_) % ways_.size()]);
      }
      std::fprintf(stderr, "round %u of %u done after %.0f s\n", rounds_ + 1, options_.rounds,
                   (NowMs() - begin_ms) / 1000);
    }
  }

  std::string Text() const {
    std::string text = Line("", [](const Way& way) { return way.name; });
    for (const Figure& figure : figures_) {
      text += Line(figure.name + ", " + figure.unit,
                   [&](const Way& way) { return Cell(MedianOf(At(way.samples, figure.id))); });
    }
    text += Line("bare sockets, ping-pong, us",
                 [&](const Way& way) { return IsRemote(way) ? Cell(MedianOf(ping_pong_us_)) : ""; });
    for (const auto& sender : senders_) {
      text += Line("bare sockets, " + sender.first + ", GB/s", [&](const Way& way) {
        return IsRemote(way) ? Cell(MedianOf(At(sender.second, way.name))) : "";
      });
    }
    for (const Figure& figure : figures_) {
      if (!HasRatio(figure)) continue;
      text += Line(figure.name + " / bare", [&](const Way& way) { return RatioCell(figure, way); });
    }
    text += "Medians of " + std::to_string(rounds_) +
            " rounds, all ways in turns. The goals: a waiting message <= 1.2 ping-pongs, over TLS 1.5; an "
            "enqueue <= "
            "0.3 us; copies >= 0.9 of\nthe bare sender of as much memory that encrypts alike. + and - say "
            "whether they are met.\n";
    for (const std::string& remark : remarks_) text += remark + "\n";
    if (options_.quick || !options_.daemon.driver.empty())
      text +=
          "The copies only show that the benchmark works: few repetitions, or a driver that is no GPU's.\n";
    return text;
  }

  std::string JsonOfAll() const {
    Json json = {{"version", CAUSEWAY_VERSION}, {"rounds", rounds_}, {"ping_pong_us", ping_pong_us_}};
    for (const auto& [copy, ways] : senders_) {
      for (const auto& [name, samples] : ways) json["sender_gb_per_s"][copy][name] = samples;
    }
    for (const Way& way : ways_) {
      for (const auto& [id, samples] : way.samples) json["figures"][id][way.name] = samples;
    }
    json["remarks"] = remarks_;
    return JsonText(json);
  }

  bool complete() const { return remarks_.empty() && rounds_ == options_.rounds; }

 private:
  static bool IsRemote(const Way& way) { return way.name == "tcp" || way.name == "tls"; }
  static bool HasRatio(const Figure& figure) { return figure.id == kWaiting || IsCopy(figure); }
  static Samples At(const std::map<std::string, Samples>& all, const std::string& name) {
    const auto found = all.find(name);
    return found != all.end() ? found->second : Samples();
  }
  static std::string Cell(std::optional<double> value, const char* met = "") {
    if (!value) return "-";
    char text[32];
    std::snprintf(text, sizeof text, "%.3g%s", *value, met);
    return text;
  }

  std::string AddWay(const std::string& name) {
    Way way{.name = name, .plan = {}, .daemon = nullptr, .probe = nullptr, .samples = {}};
    way.plan.program = command::ProgramFolder() + "/causeway-bench-probe";
    way.plan.quick = options_.quick;
    if (name == "native") {
      way.plan.library = NativeLibrary(options_);
    } else {
      command::PrivateDaemonOptions daemon = options_.daemon;
      daemon.tcp = name == "tcp";
      daemon.tls = name == "tls";
      daemon.spares_follow_demand = false;
      if (!daemon.log_file.empty()) daemon.log_file += "." + name;
      auto started = command::PrivateDaemon::Start(daemon);
      if (!started.ok()) return started.error();
      way.daemon.reset(started.value());
      way.plan.library = way.daemon->guest_library_folder() + "/libcuda.so.1";
      way.plan.side = kGuest;
      way.plan.address = way.daemon->address();
    }
    ways_.push_back(std::move(way));
    return StartProbe(ways_.back());
  }

  // The next spare starts now and would be in the way.
  static std::string StartProbe(Way& way) {
    if (way.daemon != nullptr) {
      if (std::string text = way.daemon->WaitForSpares(1, kReadyLimitMs); !text.empty()) return text;
    }
    auto started = ProbeProcess::Start(way.plan);
    if (!started.ok()) return started.error();
    if (const auto ready = started.value()->AwaitReady(kReadyLimitMs); !ready.ok()) return ready.error();
    way.probe = std::move(started.value());
    return way.daemon != nullptr ? way.daemon->WaitForSpares(1, kReadyLimitMs) : "";
  }

  void MeasureOne(const Figure& figure, Way& way) {
    if (way.probe == nullptr || (figure.guest_only && way.daemon == nullptr)) return;
    const auto sample = way.probe->Measure(figure.id, kFigureLimitMs);
    if (sample.ok()) return way.samples[figure.id].push_back(sample.value());
    remarks_.push_back(figure.name + ", " + way.name + ": " + sample.error());
    way.probe.reset();
    if (std::string text = StartProbe(way); !text.empty()) remarks_.push_back(way.name + ": " + text);
  }

  void MeasureBare() {
    const auto note = [&](const Result<double>& result, Samples& samples) {
      result.ok() ? samples.push_back(result.value()) : remarks_.push_back(result.error());
    };
    note(PingPongUs(kRequestBytes, kReplyBytes, options_.quick ? 20 : 1000), ping_pong_us_);
    std::map<std::string, BareCopy> copies;
    for (const Figure& figure : figures_) {
      if (IsCopy(figure)) copies[NameOf(BareOf(figure))] = BareOf(figure);
    }
    for (auto& [copy, bare] : copies) {
      for (const std::string& name : options_.transports) {
        bare.encrypted = name == "tls";
        note(SenderGbPerS(bare), senders_[copy][name]);
      }
    }
  }

  Samples SendersOf(const Figure& figure, const Way& way) const {
    const auto found = senders_.find(NameOf(BareOf(figure)));
    return found != senders_.end() ? At(found->second, way.name) : Samples();
  }

  std::string RatioCell(const Figure& figure, const Way& way) const {
    if (!IsRemote(way)) return "";
    const auto figure_value = MedianOf(At(way.samples, figure.id));
    const auto bare = MedianOf(IsCopy(figure) ? SendersOf(figure, way) : ping_pong_us_);
    if (!figure_value || !bare || *bare <= 0) return "-";
    const double ratio = *figure_value / *bare;
    const bool met = IsCopy(figure) ? ratio >= kCopyGoal
                                    : ratio <= (way.name == "tls" ? kSealedWaitingGoal : kWaitingGoal);
    return Cell(ratio, met ? " +" : " -");
  }

  template <class CellOf>
  std::string Line(const std::string& name, const CellOf& cell) const {
    char text[64];
    std::snprintf(text, sizeof text, "%-44s", name.c_str());
    std::string line = text;
    for (const Way& way : ways_) {
      std::snprintf(text, sizeof text, "%12s", std::string(cell(way)).c_str());
      line += text;
    }
    return line + "\n";
  }

  const BenchOptions& options_;
  std::vector<Figure> figures_;
  std::vector<Way> ways_;
  Samples ping_pong_us_;
  std::map<std::string, std::map<std::string, Samples>>
      senders_;  // by the copy, and the transport that encrypts alike
  std::vector<std::string> remarks_;
  uint32_t rounds_ = 0;
};

}  // namespace

std::string MeasureTransports(const BenchOptions& options, bool* complete) {
  signal(SIGPIPE, SIG_IGN);
  TransportRun run(options);
  if (std::string text = run.Prepare(); !text.empty()) return text;
  run.Measure();
  std::printf("%s", run.Text().c_str());
  *complete = run.complete();
  if (options.json_file.empty()) return {};
  std::ofstream file(options.json_file);
  file << run.JsonOfAll() << "\n";
  file.close();
  return file ? "" : "The figures cannot be written to " + options.json_file + ": " + ErrnoText() + ".";
}

}  // namespace causeway::bench
