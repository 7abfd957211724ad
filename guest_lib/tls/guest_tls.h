// SPDX-License-Identifier: Apache-2.0
// The one function of libcauseway-tls.so.1. Its number changes with it, so that libraries of two builds never meet.
#pragma once
#include <cstddef>

#include "ivshmem_ring/tcp/stream_layer.h"

inline constexpr char kTlsLibrary[] = "libcauseway-tls.so.1";
inline constexpr char kTlsConnectName[] = "causeway_tls_connect_1";

// Makes an encrypted connection of `fd`, a connected stream socket whose waits are bounded by time limits of its own, with the
// key in `key_file`. The caller deletes the result. Null: `error` says why, in a sentence without its full stop. Throws nothing.
// Any thread.
extern "C" causeway::StreamLayer* causeway_tls_connect_1(int fd, const char* key_file, char* error,
                                                         size_t error_bytes) noexcept;
using CausewayTlsConnect = decltype(&causeway_tls_connect_1);
