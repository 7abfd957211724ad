// SPDX-License-Identifier: Apache-2.0
// The benchmark's probe: one CUDA driver library, loaded by path, and what is measured on it.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace causeway::bench {

inline constexpr size_t kMib = 1u << 20;

// The driver functions that the probe calls, looked up in whichever library it was given.
struct Api {
#define FUNCTION(name) decltype(&::name) name;
#include "tools/bench/functions.def"
#undef FUNCTION
};

// What every figure needs, made once.
struct Bench {
  Api api{};
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUfunction write_word = nullptr;  // (address, value)
  CUfunction fill = nullptr;        // (address, words, value)
  CUfunction sum = nullptr;         // (address, words, where)
  CUfunction add_one = nullptr;     // (address, words)
  CUstream stream = nullptr;        // non-blocking
  CUdeviceptr word = 0;
  bool quick = false;   // few repetitions, little memory: exercises everything, measures little
  int64_t worker = -1;  // the process that serves this one; its processor time is this one's
};

using Words = std::vector<std::string>;  // of the figure's id
using Measure = std::function<CUresult(Bench&, const Words&, double*)>;

// By the id's first word.
void AddCallFigures(std::map<std::string, Measure>* figures);
void AddCopyFigures(std::map<std::string, Measure>* figures);
void AddMemoryFigures(std::map<std::string, Measure>* figures);
void AddOtherFigures(std::map<std::string, Measure>* figures);
void AddCrowdFigures(std::map<std::string, Measure>* figures);

// ---- what the figures are made of (probe_time.cc)
// ------------------------------------------------------

double NowUs();
// Yields until `condition()` is true, which other threads of this process make so. False: it is not after half a
// minute, far longer than all of them take to start.
bool YieldUntil(const std::function<bool()>& condition);

struct Plan {
  int rounds = 9;
  int calls = 1000;  // of a round
};
// Microseconds of one `call`: the median of rounds. Calls that take long are made less often. `after` (not
// timed) runs behind each round, and once ahead, behind the first call.
CUresult TimeCalls(const Bench& bench, Plan plan, const std::function<CUresult()>& call,
                   const std::function<CUresult()>& after, double* us);
// The same for a call that needs something before each: `before` is not timed.
CUresult TimeSingle(const Bench& bench, int calls, const std::function<CUresult()>& before,
                    const std::function<CUresult()>& call, double* us);

// One launch of write_word on `stream`.
CUresult Launch(const Bench& bench, CUstream stream);
// One launch that fills the device, and its end.
CUresult RunWide(const Bench& bench, CUfunction function, void** parameters);
// Processor time of this process and of the worker that serves it, in microseconds.
double CpuUs(const Bench& bench);
uint64_t Number(const Words& words, size_t index, uint64_t otherwise = 0);

}  // namespace causeway::bench
