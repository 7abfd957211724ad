// SPDX-License-Identifier: Apache-2.0
// causeway-exporter: the daemon's figures for Prometheus, on a loopback port. A program of its own, so that neither HTTP nor the
// network is the daemon's matter: it asks for the status as `causeway top` does, when it is scraped.
#include <prometheus/client_metric.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <future>
#include <initializer_list>
#include <memory>
#include <mutex>

#include "host_backend/command/command.h"
#include "host_backend/command/top/gpu_times.h"
#include "host_backend/command/top/shares.h"
#include "host_backend/common/option_table.h"

namespace causeway::exporter {
namespace {

using command::GpuInUse;
using command::GpuShareFigures;
using command::ScopeShare;
using command::SessionFigures;
using command::ShareReport;
using command::StatusFigures;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Family(const char* name, const char* help, MetricType type) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

MetricFamily Gauge(const char* name, const char* help) {
  return Family(name, help, MetricType::Gauge);
}

MetricFamily Counter(const char* name, const char* help) {
  return Family(name, help, MetricType::Counter);
}

void Add(MetricFamily* family, double value, std::vector<ClientMetric::Label> labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  (family->type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family->metric.push_back(std::move(metric));
}

std::vector<ClientMetric::Label> LabelsOf(const SessionFigures& session) {
  return {{"scope", session.scope},
          {"session", std::to_string(session.number)},
          {"pid", std::to_string(session.pid)}};
}

std::vector<ClientMetric::Label> With(std::vector<ClientMetric::Label> labels, const char* name,
                                      const char* value) {
  labels.push_back({name, value});
  return labels;
}

void AddSessions(const StatusFigures& figures, std::vector<MetricFamily>* all) {
  MetricFamily calls = Family("causeway_session_calls_total", "Calls that the session's worker executed.",
                              MetricType::Counter);
  MetricFamily errors =
      Family("causeway_session_errors_total", "Calls of the session that failed.", MetricType::Counter);
  MetricFamily copied = Family(
      "causeway_session_copied_bytes_total",
      "Bytes that the session had copied between memory of host and device, by calls that name one size.",
      MetricType::Counter);
  MetricFamily memory =
      Family("causeway_session_memory_bytes", "What the session holds, of all kinds.", MetricType::Gauge);
  MetricFamily fill = Family("causeway_session_queue_fill_ratio",
                             "How full the session's submission queue is.", MetricType::Gauge);
  MetricFamily gpu = Family("causeway_session_gpu_utilization_ratio",
                            "Part of a GPU's time that the session's worker took, as NVML samples it; absent "
                            "where NVML does not tell.",
                            MetricType::Gauge);
  for (const SessionFigures& session : figures.sessions) {
    const auto labels = LabelsOf(session);
    Add(&calls, double(session.calls), labels);
    Add(&errors, double(session.errors), labels);
    Add(&copied, double(session.to_device_bytes), With(labels, "direction", "to_device"));
    Add(&copied, double(session.to_host_bytes), With(labels, "direction", "to_host"));
    Add(&memory, double(session.memory_bytes), labels);
    if (session.queue_fill) Add(&fill, *session.queue_fill, labels);
    if (session.gpu) Add(&gpu, *session.gpu, labels);
  }
  for (MetricFamily* family : {&calls, &errors, &copied, &memory, &fill, &gpu})
    all->push_back(std::move(*family));
}

// Families without a figure are left out: of a GPU whose time nobody measures there is none.
void AddFilled(std::initializer_list<MetricFamily*> families, std::vector<MetricFamily>* all) {
  for (MetricFamily* family : families)
    if (!family->metric.empty()) all->push_back(std::move(*family));
}

void AddScopes(const std::vector<ScopeShare>& scopes, std::vector<MetricFamily>* all) {
  MetricFamily weight =
      Gauge("causeway_scope_weight", "Part of a GPU's time while others want it, against theirs.");
  MetricFamily cap = Gauge("causeway_scope_cap_ratio", "Part of a GPU's time that is never exceeded.");
  MetricFamily reserve =
      Gauge("causeway_scope_reserve_ratio", "Part of a GPU's time that is there whenever it is wanted.");
  MetricFamily link_cap = Gauge("causeway_scope_link_cap_bytes_per_second",
                                "Bytes of copies a second that are never exceeded in one direction.");
  MetricFamily paused = Gauge("causeway_scope_paused", "1 while no work of it starts, else 0.");
  MetricFamily deaths =
      Counter("causeway_scope_worker_deaths_total", "Workers of its sessions that died while they served.");
  for (const ScopeShare& scope : scopes) {
    const std::vector<ClientMetric::Label> labels = {{"scope", scope.scope}};
    Add(&weight, double(scope.weight), labels);
    Add(&cap, double(scope.cap_percent) / 100, labels);
    Add(&reserve, double(scope.reserve_percent) / 100, labels);
    if (scope.pcie_mib_per_s != 0) Add(&link_cap, double(scope.pcie_mib_per_s) * (1 << 20), labels);
    Add(&paused, scope.paused ? 1 : 0, labels);
    Add(&deaths, double(scope.worker_deaths), labels);
  }
  AddFilled({&weight, &cap, &reserve, &link_cap, &paused, &deaths}, all);
}

void AddShares(const std::vector<GpuShareFigures>& shares, std::vector<MetricFamily>* all) {
  using Figure = std::optional<double> GpuShareFigures::*;
  struct Each {
    MetricFamily family;
    Figure figure;
    double unit = 1;
  };
  constexpr double kMicro = 1e-6;
  Each each[] = {
      {Counter("causeway_share_to_device_bytes_total", "Bytes of its copies from the host to the GPU."),
       &GpuShareFigures::to_device_bytes},
      {Counter("causeway_share_to_host_bytes_total", "Bytes of its copies from the GPU to the host."),
       &GpuShareFigures::to_host_bytes},
      {Counter("causeway_share_link_throttled_seconds_total",
               "Time in which a copy waited because of pcie_mib_per_s, both directions added."),
       &GpuShareFigures::link_throttled_s},
      {Counter("causeway_share_gpu_seconds_total", "Time of the GPU that it was charged for."),
       &GpuShareFigures::had_s},
      {Counter("causeway_share_due_seconds_total", "Time of the GPU that it could have had by its weight."),
       &GpuShareFigures::due_s},
      {Counter("causeway_share_waited_seconds_total", "Time in which its work waited for a turn."),
       &GpuShareFigures::waited_s},
      {Counter("causeway_share_throttled_seconds_total",
               "Time in which its work waited because of its cap or a pause."),
       &GpuShareFigures::throttled_s},
      {Counter("causeway_share_turns_total", "Turns that it had."), &GpuShareFigures::turns},
      {Gauge("causeway_share_turn_wait_p50_seconds", "Half of its records waited no longer for a turn."),
       &GpuShareFigures::wait_p50_us, kMicro},
      {Gauge("causeway_share_turn_wait_p99_seconds", "99 % of its records waited no longer for a turn."),
       &GpuShareFigures::wait_p99_us, kMicro}};
  for (Each& one : each) {
    for (const GpuShareFigures& share : shares) {
      if (const auto& value = share.*one.figure)
        Add(&one.family, *value * one.unit, {{"scope", share.scope}, {"gpu", share.gpu}});
    }
    AddFilled({&one.family}, all);
  }
}

void AddGpus(const std::vector<GpuInUse>& gpus, std::vector<MetricFamily>* all) {
  MetricFamily in_turns = Gauge("causeway_gpu_in_turns",
                                "1 while VMs take turns on the GPU, 0 while its slices divide its time.");
  for (const GpuInUse& gpu : gpus) Add(&in_turns, gpu.enforced_by == "turns" ? 1 : 0, {{"gpu", gpu.gpu}});
  AddFilled({&in_turns}, all);
}

void AddDaemon(const StatusFigures& figures, std::vector<MetricFamily>* all) {
  const auto add = [&](const char* name, const char* help, MetricType type, double value,
                       std::vector<ClientMetric::Label> labels = {}) {
    MetricFamily family = Family(name, help, type);
    Add(&family, value, std::move(labels));
    all->push_back(std::move(family));
  };
  add("causeway_build_info", "Always 1; the daemon's version as a label.", MetricType::Gauge, 1,
      {{"version", figures.version}});
  add("causeway_uptime_seconds", "Since the daemon has started.", MetricType::Gauge, figures.uptime_s);
  add("causeway_gpus", "GPUs that sessions may use.", MetricType::Gauge, double(figures.devices));
  add("causeway_workers", "Worker processes, spare ones among them.", MetricType::Gauge,
      double(figures.workers));
  add("causeway_spare_workers_ready", "Workers that wait for a session.", MetricType::Gauge,
      double(figures.spares_ready));
  add("causeway_worker_deaths_total", "Workers that died while they served.", MetricType::Counter,
      double(figures.worker_deaths));
  add("causeway_refused_sessions_total", "Sessions that were refused.", MetricType::Counter,
      double(figures.refused));
}

// Read anew for each scrape. The threads of the library's web server, which call Collect, have stacks of 100 KiB, in which NVIDIA's NVML
// does not fit: so a thread of ordinary size reads, and it lives as long as that.
class Figures : public prometheus::Collectable {
 public:
  explicit Figures(std::string socket) : socket_(std::move(socket)) {}

  std::vector<MetricFamily> Collect() const override {
    return std::async(std::launch::async, [this] { return Read(); }).get();
  }

 private:
  std::vector<MetricFamily> Read() const {
    const std::lock_guard lock(mutex_);
    const auto status = command::QueryStatus(socket_);
    auto figures =
        status.ok() ? command::ReadFigures(status.value()) : Result<StatusFigures>(Error{status.error()});
    std::vector<MetricFamily> all;
    MetricFamily up = Family("causeway_up", "1 while causewayd answers, else 0.", MetricType::Gauge);
    Add(&up, figures.ok() ? 1 : 0, {});
    all.push_back(std::move(up));
    if (!figures.ok()) return all;
    if (gpu_times_ == nullptr) gpu_times_ = std::make_unique<command::GpuTimes>(figures.value().driver);
    gpu_times_->Fill(&figures.value());
    AddDaemon(figures.value(), &all);
    AddSessions(figures.value(), &all);
    AddScopes(figures.value().shares.scopes, &all);
    AddShares(figures.value().shares.shares, &all);
    AddGpus(figures.value().shares.gpus, &all);
    return all;
  }

  const std::string socket_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<command::GpuTimes> gpu_times_;
};

// Nobody is asked who reads the port, so it is this host's alone.
bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]:");
}

int Main(int argc, char** argv) {
  CLI::App app{"causeway-exporter shows Prometheus what causewayd's sessions do.", "causeway-exporter"};
  std::string listen = "127.0.0.1:9835";
  std::string socket = "/run/causeway/causeway.sock";
  app.add_option("--listen", listen, "Address and port, of the loopback interface")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--socket", socket, "The daemon's socket")->type_name("SOCKET")->capture_default_str();
  app.set_version_flag("--version", "causeway-exporter " CAUSEWAY_VERSION);
  AddOptionTable(app);
  CLI11_PARSE(app, argc, argv);
  if (!IsLoopback(listen)) {
    std::fprintf(stderr,
                 "causeway-exporter: --listen %s is no loopback address; let a proxy with authentication "
                 "stand before it.\n",
                 listen.c_str());
    return 1;
  }
  // Blocked before the library has threads, which inherit it.
  sigset_t ending;
  sigemptyset(&ending);
  for (const int number : {SIGINT, SIGTERM}) sigaddset(&ending, number);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  try {
    constexpr size_t kThreads = 1;
    prometheus::Exposer exposer(listen, kThreads);
    const auto figures = std::make_shared<Figures>(socket);
    exposer.RegisterCollectable(figures);
    int number = 0;
    sigwait(&ending, &number);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "causeway-exporter: %s cannot be listened at: %s.\n", listen.c_str(), error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace causeway::exporter

int main(int argc, char** argv) {
  return causeway::exporter::Main(argc, argv);
}
