// SPDX-License-Identifier: Apache-2.0
// Every driver function as a weak symbol, so that the look-up table links without the real library. Apart
// from cuda.h, whose declarations would not let them be defined without their parameters.
constexpr int kNotSupported = 801;

// The address must differ for each symbol: hence the own name in the body, which keeps equal functions apart.
#define DEFINE(symbol)                                      \
  extern "C" __attribute__((weak, noinline)) int symbol() { \
    static volatile const char* own_name = #symbol;         \
    return own_name != nullptr ? kNotSupported : 0;         \
  }
#define ENTRY(name, version, symbol) DEFINE(symbol)
#define PER_THREAD(name, version, symbol, per_thread_version, suffix) DEFINE(symbol) DEFINE(symbol##suffix)
#include "guest_lib/api/proc_versions.def"
