// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/figures.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace causeway::bench {
namespace {

constexpr uint64_t kKib = 1u << 10, kMib = 1u << 20, kGib = 1u << 30;
constexpr uint64_t kMostQuick = 16 * kMib;
constexpr Better kLess = Better::kLess, kMore = Better::kMore;

std::string CopyName(bool to_device, bool pinned, uint64_t bytes) {
  return std::string(to_device ? "H2D " : "D2H ") + (pinned ? "pinned, " : "pageable, ") + SizeName(bytes);
}

void AddCalls(std::vector<Figure>& list) {
  constexpr Section kIn = Section::kCalls;
  const auto most = [&](const char* id, const char* name, double ratio) {
    list.push_back({id, name, "us", kLess, kIn, Goal::kRatioAtMost, ratio});
  };
  list.push_back({"empty_call", "empty waiting message", "us", kLess, kIn, Goal::kAtMost, 0.6});
  list.back().guest_only = true;
  most("stream_sync_idle", "cuStreamSynchronize, idle", 1);
  most("context_sync_idle", "cuCtxSynchronize, idle", 1);
  most("event_query_done", "cuEventQuery, done", 1);
  most("stream_query_done", "cuStreamQuery, done", 1);
  list.push_back(
      {"launch_enqueue", "launch, enqueue (bursts of 1000)", "us", kLess, kIn, Goal::kAtMost, 0.30});
  most("launch_drained", "launch, drained (20,000)", 1.03);
  most("launch_sync", "launch + synchronise", 1);
  most("h2d_free:4", "H2D 4 B, nothing to wait for", 0.2);
  most("h2d_free:4096", "H2D 4 KiB, nothing to wait for", 0.2);
  most("h2d_free:65536", "H2D 64 KiB, nothing to wait for", 0.2);
  most("h2d_waits", "launch + H2D 4 B that waits for it", 1.06);
  most("d2h_small", "D2H 4 B", 1.06);
  most("event_record", "cuEventRecord", 1);
  most("alloc_async", "cuMemAllocAsync + cuMemFreeAsync", 1);
  most("alloc_free", "cuMemAlloc + cuMemFree, 1 MiB", 1.05);
  most("graph_launch", "graph launch, 1000 nodes, drained", 1.02);
  for (const int threads : {1, 2, 4, 8, 16}) {
    const std::string count = std::to_string(threads);
    list.push_back({"threads:" + count, "launches of " + count + (threads == 1 ? " thread" : " threads"),
                    "M/s", kMore, kIn, Goal::kRatioAtLeast, 1});
  }
  list.push_back({"startup", "start-up to first kernel result", "ms", kLess, kIn, Goal::kRatioAtMost, 0.3,
                  Runner::kStartup});
  list.push_back({"idle_cpu", "CPU of 100 idle sessions, of one core", "%", kLess, kIn, Goal::kAtMost, 5,
                  Runner::kIdle});
  list.back().guest_only = true;
}

void AddCopies(std::vector<Figure>& list, bool quick) {
  for (const bool pinned : {true, false}) {
    for (const uint64_t bytes : {64 * kKib, kMib, 16 * kMib, 256 * kMib}) {
      if (quick && bytes > kMostQuick) continue;
      double ratio = pinned ? 0.99 : 2.0;
      if (bytes == kMib) ratio = pinned ? 0.95 : 1.0;
      if (bytes == 64 * kKib) ratio = pinned ? 0.90 : 1.0;
      for (const bool to_device : {true, false}) {
        list.push_back({CopyId(to_device, pinned, bytes), CopyName(to_device, pinned, bytes), "GB/s", kMore,
                        Section::kData, Goal::kRatioAtLeast, ratio});
      }
    }
  }
}

void AddData(std::vector<Figure>& list, bool quick) {
  constexpr Section kIn = Section::kData;
  const auto least = [&](const char* id, const char* name, double ratio) {
    list.push_back({id, name, "GB/s", kMore, kIn, Goal::kRatioAtLeast, ratio});
  };
  AddCopies(list, quick);
  least("mapped_read", "kernel reads mapped pinned memory", 0.99);
  least("mapped_write", "kernel writes mapped pinned memory", 0.99);
  list.push_back(
      {"register", "cuMemHostRegister + Unregister, 1 GiB", "ms", kLess, kIn, Goal::kRatioAtMost, 2});
  list.push_back(
      {"host_alloc", "cuMemHostAlloc + cuMemFreeHost, 1 MiB", "us", kLess, kIn, Goal::kRatioAtMost, 1});
  least("managed_resident", "managed 1 GiB, kernel, on the device", 0.95);
  least("managed_to_device", "managed 1 GiB, kernel's first touch", 0.5);
  least("managed_to_host", "managed 1 GiB, CPU's first touch", 0.5);
  list.push_back({"cpu:pinned", "host CPU per GiB, pinned", "ms", kLess, kIn, Goal::kAtMost, 1});
  list.push_back({"cpu:pageable", "host CPU per GiB, pageable", "ms", kLess, kIn, Goal::kRatioAtMost, 1.2});
  list.push_back({"resident", "resident, one idle session", "MiB", kLess, kIn, Goal::kDifferenceAtMost, 40,
                  Runner::kResident});
  list.push_back({"share", "two sessions copy, part of the slower", "", kMore, kIn, Goal::kAtLeast, 0.475,
                  Runner::kPair});
  list.push_back({"beside", "D2H 4 B beside another's copies, 99 %", "us", kLess, kIn, Goal::kRatioAtMost, 1,
                  Runner::kPair});
}

// What calls that do not concern it cost while the process has managed memory (which the probe has
// then: "beside_managed" and the id of the figure). The goals are those without.
void AddManaged(std::vector<Figure>& list) {
  const std::string_view kInteresting[] = {"stream_sync_idle", "event_query_done", "launch_sync",
                                           "h2d_free:4096",    "d2h_small",        "cpu:pinned"};
  std::vector<Figure> measured;
  for (const Figure& figure : list) {
    if (std::ranges::find(kInteresting, figure.id) != std::end(kInteresting)) measured.push_back(figure);
  }
  for (Figure& figure : measured) {
    figure.id = "beside_managed:" + figure.id;
    figure.name = "managed: " + figure.name;
    figure.section = Section::kManaged;
    list.push_back(figure);
  }
}

void AddOther(std::vector<Figure>& list) {
  const auto add = [&](const char* id, const char* name) {
    list.push_back({id, name, "us", kLess, Section::kOther});
  };
  add("memory_info", "cuMemGetInfo");
  add("get_current", "cuCtxGetCurrent");
  add("device_attribute", "cuDeviceGetAttribute");
  add("pointer_attribute", "cuPointerGetAttribute");
  const auto most_native = [&](const char* id, const char* name) {
    list.push_back({id, name, "us", kLess, Section::kOther, Goal::kRatioAtMost, 1});
  };
  most_native("occupancy", "occupancy query");
  most_native("h2d_async:4", "H2D 4 B pinned, asynchronous");
  most_native("memset_async", "cuMemsetD8Async, 4 KiB");
  most_native("memset", "cuMemsetD8, 4 KiB");
  most_native("memset_sync", "cuMemsetD8Async, 4 KiB + synchronise");
  most_native("streams_drained", "stream made and destroyed, drained");
  most_native("many_allocs", "cuMemAlloc + cuMemFree, 1,000 of 1 KiB");
  most_native("alloc_round", "cuMemAllocAsync + Free + synchronise");
}

// `quick`: as many processes as a machine without a GPU starts soon.
void AddCrowds(std::vector<Figure>& list, bool quick) {
  constexpr struct {
    int processors, processes;
  } kRows[] = {{1, 1}, {1, 4}, {2, 4}, {4, 4}, {4, 8}, {8, 16}, {16, 16}, {16, 32}};
  for (const bool waits : {true, false}) {
    for (const auto& row : kRows) {
      if (quick && row.processes > 4) continue;
      const std::string processors = std::to_string(row.processors),
                        processes = std::to_string(row.processes);
      const std::string id = (waits ? "crowd_wait:" : "crowd_step:") + processors + ":" + processes,
                        name = "crowded " + processors + ", " + processes + ": ";
      list.push_back({id, name + (waits ? "launch + synchronise" : "400 launches and a wait"), "1/s", kMore,
                      Section::kCrowded, Goal::kRatioAtLeast, 0.95, Runner::kCrowd});
      list.push_back({CrowdCpuId(id), name + (waits ? "CPU of launch + wait" : "CPU of 400 launches"), "us",
                      kLess, Section::kCrowded, Goal::kRatioAtMost, 1.2, Runner::kCrowd});
    }
  }
}

}  // namespace

std::vector<Figure> Figures(bool curve, bool quick) {
  std::vector<Figure> list;
  AddCalls(list);
  AddData(list, quick);
  AddManaged(list);
  AddOther(list);
  AddCrowds(list, quick);
  if (!curve) return list;
  const std::vector<Figure> measured = list;
  const auto known = [&](const std::string& id) {
    for (const Figure& figure : measured) {
      if (figure.id == id) return true;
    }
    return false;
  };
  for (const uint64_t bytes : CurveSizes(quick)) {
    for (const bool pinned : {true, false}) {
      for (const bool to_device : {true, false}) {
        const std::string id = CopyId(to_device, pinned, bytes);
        if (!known(id))
          list.push_back({id, CopyName(to_device, pinned, bytes), "GB/s", kMore, Section::kCurve});
      }
    }
  }
  return list;
}

std::vector<uint64_t> CurveSizes(bool quick) {
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 4; bytes <= (quick ? kMostQuick : kGib); bytes *= 4) sizes.push_back(bytes);
  return sizes;
}

std::string CrowdCpuId(const std::string& id) {
  return id + ":cpu";
}

std::string CopyId(bool to_device, bool pinned, uint64_t bytes) {
  return std::string("copy:") + (to_device ? "h2d:" : "d2h:") + (pinned ? "pinned:" : "pageable:") +
         std::to_string(bytes);
}

std::string SizeName(uint64_t bytes) {
  if (bytes >= kGib) return std::to_string(bytes / kGib) + " GiB";
  if (bytes >= kMib) return std::to_string(bytes / kMib) + " MiB";
  if (bytes >= kKib) return std::to_string(bytes / kKib) + " KiB";
  return std::to_string(bytes) + " B";
}

std::string GoalText(const Figure& figure) {
  char text[48] = "";
  switch (figure.goal) {
    case Goal::kNone:
      break;
    case Goal::kRatioAtMost:
      std::snprintf(text, sizeof(text), "<= %g x native", figure.limit);
      break;
    case Goal::kRatioAtLeast:
      std::snprintf(text, sizeof(text), ">= %g x native", figure.limit);
      break;
    case Goal::kAtMost:
      std::snprintf(text, sizeof(text), "<= %g %s", figure.limit, figure.unit);
      break;
    case Goal::kAtLeast:
      std::snprintf(text, sizeof(text), ">= %g %s", figure.limit, figure.unit);
      break;
    case Goal::kDifferenceAtMost:
      std::snprintf(text, sizeof(text), "<= native + %g %s", figure.limit, figure.unit);
      break;
  }
  return text;
}

}  // namespace causeway::bench
