// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/process/copy_past_caches.h"

#include <immintrin.h>

#include <cstring>

namespace causeway::guest {
namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kLeast = 64 * kLine;  // less is not worth the fence

// Whole pages are copied as well, with whatever the heap has there besides: a sanitizer would object to the
// gaps. `to` is aligned to a line, `lines` is a multiple of four. Four pages side by side: more of what is
// not in a cache is on its way at a time.
__attribute__((target("avx512f"), no_sanitize("address", "thread"))) void CopyLinesWide(std::byte* to,
                                                                                        const std::byte* from,
                                                                                        uint64_t lines) {
  constexpr uint64_t kPage = 4096, kPages = 4, kPageLines = kPage / kLine;
  for (; lines >= kPages * kPageLines;
       lines -= kPages * kPageLines, to += kPages * kPage, from += kPages * kPage) {
    for (uint64_t at = 0; at < kPage; at += kLine) {
      const __m512i a = _mm512_loadu_si512(from + at), b = _mm512_loadu_si512(from + kPage + at);
      const __m512i c = _mm512_loadu_si512(from + 2 * kPage + at),
                    d = _mm512_loadu_si512(from + 3 * kPage + at);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), a);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + kPage + at), b);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 2 * kPage + at), c);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 3 * kPage + at), d);
    }
  }
  for (; lines > 0; lines -= 4, to += 4 * kLine, from += 4 * kLine) {
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + kLine);
    const __m512i c = _mm512_loadu_si512(from + 2 * kLine), d = _mm512_loadu_si512(from + 3 * kLine);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + kLine), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 2 * kLine), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 3 * kLine), d);
  }
}

__attribute__((no_sanitize("address", "thread"))) void CopyLines(std::byte* to, const std::byte* from,
                                                                 uint64_t lines) {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* line = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
}

}  // namespace

void CopyPastCaches(std::byte* to, const std::byte* from, uint64_t bytes) {
  static const bool wide = __builtin_cpu_supports("avx512f") != 0;
  if (bytes < kLeast) {
    std::memcpy(to, from, bytes);
    return;
  }
  const uint64_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
  const uint64_t lines = (bytes - head) / kLine / 4 * 4, end = head + lines * kLine;
  std::memcpy(to, from, head);
  (wide ? CopyLinesWide : CopyLines)(to + head, from + head, lines);
  std::memcpy(to + end, from + end, bytes - end);
  _mm_sfence();
}

}  // namespace causeway::guest
