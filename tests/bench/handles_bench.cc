// SPDX-License-Identifier: Apache-2.0
// What a launch pays for looking up its context, stream and function in the worker's table: looking alone,
// and as a request that keeps what it has found. The locked instruction is the one that counts calls in a
// worker.
#include <benchmark/benchmark.h>

#include <thread>

#include "host_backend/worker/objects/handles.h"

namespace causeway::host {
namespace {

constexpr WireHandle kContext = MakeWireHandle(HandleKind::kContext, 1, 1);
constexpr WireHandle kStream = MakeWireHandle(HandleKind::kStream, 1, 2);
constexpr WireHandle kFunction = MakeWireHandle(HandleKind::kFunction, 1, 5000);

HandleTable& Table() {
  static auto* table = [] {
    auto* made = new HandleTable;
    made->Bind(HandleKind::kContext, kContext, made);
    made->Bind(HandleKind::kStream, kStream, made, {kContext, made});
    made->Bind(HandleKind::kFunction, kFunction, made, {kContext, made});
    return made;
  }();
  return *table;
}

struct alignas(kHotBytes) Count {
  std::atomic<uint64_t> calls{0};
};

void Look(benchmark::State& state) {
  HandleTable& table = Table();
  Count count;
  for (auto _ : state) {
    count.calls.fetch_add(1);
    benchmark::DoNotOptimize(table.Find(HandleKind::kContext, kContext));
    benchmark::DoNotOptimize(table.Find(HandleKind::kStream, kStream));
    benchmark::DoNotOptimize(table.Find(HandleKind::kFunction, kFunction));
  }
}
BENCHMARK(Look)->Threads(1)->Threads(2);

void LookAndKeep(benchmark::State& state) {
  HandleTable& table = Table();
  Count count;
  for (auto _ : state) {
    table.BeginRequest();
    count.calls.fetch_add(1);
    benchmark::DoNotOptimize(table.Use(HandleKind::kContext, kContext));
    benchmark::DoNotOptimize(table.Use(HandleKind::kStream, kStream));
    benchmark::DoNotOptimize(table.Use(HandleKind::kFunction, kFunction));
    table.EndRequest();
  }
}
BENCHMARK(LookAndKeep)->Threads(1)->Threads(2);

// The same while ends of events wait for a graph that remembers them.
void LookAndKeepBesideHeld(benchmark::State& state) {
  constexpr uint32_t kEvents = 1000;
  HandleTable table;
  std::atomic<uint64_t> calls{0};
  const WireHandle graph = MakeWireHandle(HandleKind::kGraph, 1, 3);
  table.Bind(HandleKind::kContext, kContext, &table);
  table.Bind(HandleKind::kStream, kStream, &table);
  table.Bind(HandleKind::kFunction, kFunction, &table);
  table.Bind(HandleKind::kGraph, graph, &table);
  for (uint32_t i = 0; i < kEvents; ++i) {
    const WireHandle event = MakeWireHandle(HandleKind::kEvent, 1, 10 + i);
    table.BeginRequest();
    table.Bind(HandleKind::kEvent, event, reinterpret_cast<void*>(uintptr_t{16} + i));
    table.HoldUsed({&graph, 1});
    table.EndRequest();
    table.EndObject(HandleKind::kEvent, event, reinterpret_cast<void*>(uintptr_t{16} + i), false,
                    [] { return CUDA_SUCCESS; });
  }
  table.EndRequest();
  if (table.deferred() != kEvents) state.SkipWithError("an event has ended");
  for (auto _ : state) {
    table.BeginRequest();
    calls.fetch_add(1);
    benchmark::DoNotOptimize(table.Use(HandleKind::kContext, kContext));
    benchmark::DoNotOptimize(table.Use(HandleKind::kStream, kStream));
    benchmark::DoNotOptimize(table.Use(HandleKind::kFunction, kFunction));
    table.EndRequest();
  }
}
BENCHMARK(LookAndKeepBesideHeld);

// The other side: making and ending an event, while no other thread executes a request and while one does.
void MakeAndEnd(benchmark::State& state) {
  HandleTable table;
  std::atomic<uint64_t> calls{0};
  std::atomic<bool> begun{false}, over{false};
  std::thread other;
  if (state.range(0) != 0) {
    other = std::thread([&] {
      table.BeginRequest();
      begun.store(true);
      while (!over.load()) {
      }
      table.EndRequest();
    });
    while (!begun.load()) {
    }
  }
  const WireHandle event = MakeWireHandle(HandleKind::kEvent, 1, 7);
  for (auto _ : state) {
    table.BeginRequest();
    calls.fetch_add(1);
    table.Bind(HandleKind::kEvent, event, &table);
    table.UseToEnd(HandleKind::kEvent, event);
    table.EndObject(HandleKind::kEvent, event, &table, false, [] { return CUDA_SUCCESS; });
    table.EndRequest();
  }
  over.store(true);
  if (other.joinable()) other.join();
}
BENCHMARK(MakeAndEnd)->Arg(0)->Arg(1);

}  // namespace
}  // namespace causeway::host

BENCHMARK_MAIN();
