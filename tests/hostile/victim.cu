// SPDX-License-Identifier: Apache-2.0
// A program that others disturb: launches, copies, and a look at every byte, until its time is up or SIGTERM
// comes. usage: victim SECONDS SEED [WORDS]     (WORDS: of each buffer, default 65536) Prints "started" after
// the first verified round and one line of JSON at the end: rounds, errors (and the first one's name), wrong
// bytes, launches that were timed, and the time of launch and wait in microseconds. Exits 1 if there was an
// error or a wrong byte. Nothing in it knows whose driver it meets.
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace {

constexpr int kLaunchesPerRound = 32;
constexpr int kBinsPerFactor = 50;  // of e: a bin is 2 % wide
constexpr int kBins = 1200;

volatile sig_atomic_t over = 0;

double NowUs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) * 1e6 + double(now.tv_nsec) * 1e-3;
}

__global__ void Scramble(uint32_t* words, uint32_t count, uint32_t key) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i] = words[i] * 2654435761u + (key ^ i);
}

__global__ void Count(uint32_t* cell) {
  *cell += 1;
}

// xorshift: every round has other bytes.
struct Random {
  uint32_t state;
  uint32_t Next() {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
  }
};

class Victim {
 public:
  Victim(uint32_t seed, uint32_t words)
      : random_{seed * 2654435761u | 1u},
        words_(words),
        sent_(words),
        kept_(words),
        got_(words),
        bins_(kBins) {}

  void Prepare() {
    Try("cudaMalloc", cudaMalloc(&device_, Bytes()));
    Try("cudaMalloc", cudaMalloc(&resident_, Bytes()));
    Try("cudaMalloc", cudaMalloc(&cell_, sizeof *cell_));
    Try("cudaMallocHost", cudaMallocHost(&pinned_, Bytes()));
    Try("cudaStreamCreate", cudaStreamCreate(&stream_));
    Try("cudaMemset", cudaMemset(cell_, 0, sizeof *cell_));
    for (uint32_t& word : kept_) word = random_.Next();
    Try("cudaMemcpy", cudaMemcpy(resident_, kept_.data(), Bytes(), cudaMemcpyHostToDevice));
  }

  void Round() {
    TimeLaunches();
    for (uint32_t& word : sent_) word = random_.Next();
    const uint32_t key = random_.Next();
    if (rounds_ % 2 == 0) {
      Pageable(key);
    } else {
      Pinned(key);
    }
    for (uint32_t i = 0; i < words_; ++i) Compare(sent_[i] * 2654435761u + (key ^ i), got_[i]);
    // What stays on the device all the time, which no round has written to.
    Try("cudaMemcpy", cudaMemcpy(got_.data(), resident_, Bytes(), cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < words_; ++i) Compare(kept_[i], got_[i]);
    uint32_t counted = 0;
    Try("cudaMemcpy", cudaMemcpy(&counted, cell_, sizeof counted, cudaMemcpyDeviceToHost));
    Compare(launches_, counted);
    ++rounds_;
  }

  bool Unharmed() const { return errors_ == 0 && wrong_bytes_ == 0 && rounds_ > 0; }

  void Report() const {
    std::printf(
        "{\"rounds\": %llu, \"errors\": %llu, \"first_error\": \"%s\", \"wrong_bytes\": %llu, "
        "\"launches\": %u, \"launch_us\": {\"p50\": %.2f, \"p99\": %.2f, \"max\": %.2f}}\n",
        rounds_, errors_, first_error_, wrong_bytes_, launches_, Percentile(0.5), Percentile(0.99), most_us_);
  }

 private:
  size_t Bytes() const { return words_ * sizeof(uint32_t); }
  uint32_t Blocks() const { return (words_ + 255) / 256; }

  void Try(const char* call, cudaError_t error) {
    if (error == cudaSuccess) return;
    if (errors_++ == 0)
      std::snprintf(first_error_, sizeof first_error_, "%s: %s", call, cudaGetErrorName(error));
  }

  void Compare(uint32_t expected, uint32_t found) {
    for (uint32_t difference = expected ^ found; difference != 0; difference >>= 8)
      wrong_bytes_ += (difference & 0xff) != 0;
  }

  void TimeLaunches() {
    for (int i = 0; i < kLaunchesPerRound; ++i) {
      const double begin = NowUs();
      Count<<<1, 1>>>(cell_);
      Try("cudaDeviceSynchronize", cudaDeviceSynchronize());
      const double took = NowUs() - begin;
      ++launches_;
      if (took > most_us_) most_us_ = took;
      const int bin = int(std::log(took * 100) * kBinsPerFactor);  // from 10 ns on
      ++bins_[size_t(bin < 0 ? 0 : bin >= kBins ? kBins - 1 : bin)];
    }
    Try("launch", cudaGetLastError());
  }

  void Pageable(uint32_t key) {
    Try("cudaMemcpy", cudaMemcpy(device_, sent_.data(), Bytes(), cudaMemcpyHostToDevice));
    Scramble<<<Blocks(), 256>>>(device_, words_, key);
    Try("launch", cudaGetLastError());
    Try("cudaMemcpy", cudaMemcpy(got_.data(), device_, Bytes(), cudaMemcpyDeviceToHost));
  }

  void Pinned(uint32_t key) {
    for (uint32_t i = 0; i < words_; ++i) pinned_[i] = sent_[i];
    Try("cudaMemcpyAsync", cudaMemcpyAsync(device_, pinned_, Bytes(), cudaMemcpyHostToDevice, stream_));
    Scramble<<<Blocks(), 256, 0, stream_>>>(device_, words_, key);
    Try("launch", cudaGetLastError());
    Try("cudaMemcpyAsync", cudaMemcpyAsync(pinned_, device_, Bytes(), cudaMemcpyDeviceToHost, stream_));
    Try("cudaStreamSynchronize", cudaStreamSynchronize(stream_));
    for (uint32_t i = 0; i < words_; ++i) got_[i] = pinned_[i];
  }

  // The upper edge of the bin that the rank falls into.
  double Percentile(double part) const {
    uint64_t rank = uint64_t(part * launches_), seen = 0;
    for (int bin = 0; bin < kBins; ++bin) {
      seen += bins_[size_t(bin)];
      if (seen > rank) return std::exp(double(bin + 1) / kBinsPerFactor) / 100;
    }
    return most_us_;
  }

  Random random_;
  uint32_t words_;
  std::vector<uint32_t> sent_, kept_, got_;
  std::vector<uint32_t> bins_;
  uint32_t *device_ = nullptr, *resident_ = nullptr, *cell_ = nullptr, *pinned_ = nullptr;
  cudaStream_t stream_ = nullptr;
  unsigned long long rounds_ = 0, errors_ = 0, wrong_bytes_ = 0;
  uint32_t launches_ = 0;
  double most_us_ = 0;
  char first_error_[128] = "";
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: victim SECONDS SEED [WORDS]\n");
    return 2;
  }
  const double end = NowUs() + std::atof(argv[1]) * 1e6;
  const uint32_t words = argc > 3 ? uint32_t(std::strtoul(argv[3], nullptr, 10)) : 65536;
  std::signal(SIGTERM, [](int) { over = 1; });
  Victim victim(uint32_t(std::strtoul(argv[2], nullptr, 10)), words);
  victim.Prepare();
  bool first = true;
  while (first || (over == 0 && NowUs() < end)) {
    victim.Round();
    if (first) std::printf("started\n");
    std::fflush(stdout);
    first = false;
  }
  victim.Report();
  return victim.Unharmed() ? 0 : 1;
}
