// SPDX-License-Identifier: Apache-2.0
// The probe's copies: alone, their processor time, and beside another session's.
#include <algorithm>
#include <cstring>

#include "tools/bench/probe/probe.h"

namespace causeway::bench {
namespace {

// Device memory and host memory of both kinds, made when first needed and kept: as programs do.
class Buffers {
 public:
  CUresult Need(const Bench& b, size_t bytes) {
    if (bytes <= bytes_) return CUDA_SUCCESS;
    const size_t least = b.quick ? 16 * kMib : 256 * kMib;
    bytes = std::max(bytes, least);
    Release(b);
    CUresult result = b.api.cuMemAlloc_v2(&device_, bytes);
    if (result == CUDA_SUCCESS) result = b.api.cuMemHostAlloc(&pinned_, bytes, 0);
    if (result != CUDA_SUCCESS) {
      Release(b);
      return result;
    }
    // Touched once: what is measured is copying, not the kernel's zeroing of new pages.
    std::memset(pinned_, 'p', bytes);
    pageable_.assign(bytes, 'h');
    bytes_ = bytes;
    return CUDA_SUCCESS;
  }
  CUdeviceptr device() const { return device_; }
  void* host(bool pinned) { return pinned ? pinned_ : pageable_.data(); }

 private:
  void Release(const Bench& b) {
    if (device_ != 0) b.api.cuMemFree_v2(device_);
    if (pinned_ != nullptr) b.api.cuMemFreeHost(pinned_);
    device_ = 0;
    pinned_ = nullptr;
    bytes_ = 0;
  }
  CUdeviceptr device_ = 0;
  void* pinned_ = nullptr;
  std::vector<char> pageable_;
  size_t bytes_ = 0;
};
Buffers buffers;

// copy:h2d|d2h:pinned|pageable:BYTES -> GB/s (10^9 bytes) of one synchronous copy.
CUresult Copy(Bench& b, const Words& words, double* rate) {
  const uint64_t bytes = Number(words, 3);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool to_device = words[1] == "h2d";
  if (const CUresult result = buffers.Need(b, bytes)) return result;
  void* host = buffers.host(words[2] == "pinned");
  const auto call = [&] {
    return to_device ? b.api.cuMemcpyHtoD_v2(buffers.device(), host, bytes)
                     : b.api.cuMemcpyDtoH_v2(host, buffers.device(), bytes);
  };
  const size_t total = b.quick ? 2 * bytes : std::max<size_t>(512 * kMib / bytes, 3) * bytes;
  const int calls = int(std::min<size_t>(total / bytes, 300));
  double us = 0;
  const CUresult result = TimeSingle(
      b, calls, [&] { return b.api.cuCtxSynchronize(); }, call, &us);
  *rate = double(bytes) / us / 1000;
  return result;
}

// cpu:pinned|pageable -> milliseconds of processor time, of this process and its worker, for a GiB to the
// device and one back. The waiting is done in the driver's own blocking way, which costs nothing natively.
CUresult Cpu(Bench& b, const Words& words, double* ms) {
  const bool pinned = words.size() > 1 && words[1] == "pinned";
  const size_t piece = b.quick ? 4 * kMib : 64 * kMib;
  const int pieces = b.quick ? 4 : 32;
  if (const CUresult result = buffers.Need(b, piece)) return result;
  CUevent event = nullptr;
  CUresult result = b.api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
  if (result != CUDA_SUCCESS) return result;
  const auto one = [&](bool to_device) {
    void* host = buffers.host(pinned);
    if (!pinned)
      return to_device ? b.api.cuMemcpyHtoD_v2(buffers.device(), host, piece)
                       : b.api.cuMemcpyDtoH_v2(host, buffers.device(), piece);
    CUresult copied = to_device ? b.api.cuMemcpyHtoDAsync_v2(buffers.device(), host, piece, b.stream)
                                : b.api.cuMemcpyDtoHAsync_v2(host, buffers.device(), piece, b.stream);
    if (copied == CUDA_SUCCESS) copied = b.api.cuEventRecord(event, b.stream);
    return copied == CUDA_SUCCESS ? b.api.cuEventSynchronize(event) : copied;
  };
  result = one(true);
  const double before = CpuUs(b);
  for (int i = 0; i < pieces && result == CUDA_SUCCESS; ++i) result = one(i % 2 == 0);
  const double gib = double(piece) * pieces / double(1024 * kMib);
  *ms = (CpuUs(b) - before) / 1000 / gib;
  b.api.cuEventDestroy_v2(event);
  return result;
}

// Calls until the moment that the figure's first two numbers name: begin in us of CLOCK_MONOTONIC, length in
// ms. What does not lie in between does not count.
CUresult Within(const Words& words, const std::function<CUresult()>& call,
                const std::function<void(double us)>& count) {
  const double begin = double(Number(words, 1)), end = begin + 1000 * double(Number(words, 2));
  for (double now = NowUs(); now < end;) {
    const double start = now;
    if (const CUresult result = call()) return result;
    now = NowUs();
    if (start >= begin && now <= end) count(now - start);
  }
  return CUDA_SUCCESS;
}

// share:BEGIN:MS -> bytes of pinned copies to the device that this session finished meanwhile.
CUresult Share(Bench& b, const Words& words, double* bytes) {
  const size_t piece = b.quick ? kMib : 16 * kMib;
  if (const CUresult result = buffers.Need(b, piece)) return result;
  return Within(
      words, [&] { return b.api.cuMemcpyHtoD_v2(buffers.device(), buffers.host(true), piece); },
      [&](double) { *bytes += double(piece); });
}

// stream:BEGIN:MS: copies of a GiB of ordinary memory, as often as they fit.
CUresult Stream(Bench& b, const Words& words, double* copies) {
  const size_t piece = b.quick ? 16 * kMib : 1024 * kMib;
  if (const CUresult result = buffers.Need(b, piece)) return result;
  return Within(
      words, [&] { return b.api.cuMemcpyHtoD_v2(buffers.device(), buffers.host(false), piece); },
      [&](double) { *copies += 1; });
}

// beside:BEGIN:MS -> microseconds within which 99 of 100 copies of 4 bytes to the host were done.
CUresult Beside(Bench& b, const Words& words, double* us) {
  uint32_t value = 0;
  std::vector<double> times;
  const CUresult result = Within(
      words, [&] { return b.api.cuMemcpyDtoH_v2(&value, b.word, sizeof(value)); },
      [&](double time) { times.push_back(time); });
  std::sort(times.begin(), times.end());
  if (!times.empty()) *us = times[times.size() * 99 / 100];
  return result != CUDA_SUCCESS || !times.empty() ? result : CUDA_ERROR_NOT_READY;
}

}  // namespace

void AddCopyFigures(std::map<std::string, Measure>* figures) {
  (*figures)["copy"] = Copy;
  (*figures)["cpu"] = Cpu;
  (*figures)["share"] = Share;
  (*figures)["stream"] = Stream;
  (*figures)["beside"] = Beside;
  // Before a part of a pair: what it needs is made.
  (*figures)["make"] = [](Bench& b, const Words& words, double*) {
    return buffers.Need(b, Number(words, 1, kMib));
  };
}

}  // namespace causeway::bench
