// SPDX-License-Identifier: Apache-2.0
// The functions of libcauseway-tls.so.1 (guest_lib/tls). Their numbers change with them, so that libraries of two builds never meet.
#pragma once
#include <cstddef>

#include "ivshmem_ring/tcp/stream_layer.h"

inline constexpr char kTlsLibrary[] = "libcauseway-tls.so.1";
inline constexpr char kTlsConnectName[] = "causeway_tls_connect_2";

// Makes an encrypted connection of `fd`, a connected stream socket whose waits are bounded by time limits of its own, with the
// key in `key_file`. The caller deletes the result. Null: `error` says why, in a sentence without its full stop. Throws nothing.
// Any thread.
extern "C" causeway::StreamLayer* causeway_tls_connect_2(int fd, const char* key_file, char* error,
                                                         size_t error_bytes) noexcept;
using CausewayTlsConnect = decltype(&causeway_tls_connect_2);

inline constexpr char kTlsKeepHostName[] = "causeway_tls_keep_host_1";

// Which of several hosts this process uses: libcuda.so.1 and libnvidia-ml.so.1 both ask here. `host` is kept if nothing is kept yet; null:
// it only tells. The result, what is kept or "", lives as long as the process. Throws nothing, takes no lock. Any thread.
extern "C" const char* causeway_tls_keep_host_1(const char* host) noexcept;
using CausewayTlsKeepHost = decltype(&causeway_tls_keep_host_1);
