// SPDX-License-Identifier: Apache-2.0
// What a message costs between two processes: round trips over a channel and posted records, over shared
// rings and over TCP on the loopback. The other process is forked for each measurement.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "ivshmem_ring/tcp/tcp_transport.h"
#include "ivshmem_ring/transport/ring_transport.h"

namespace causeway {
namespace {

enum class Way : int64_t { kRing, kPolledRing, kTcp };

const char* NameOf(Way way) {
  switch (way) {
    case Way::kRing:
      return "ring";  // two processes on one kernel: sleepers are woken by futex
    case Way::kPolledRing:
      return "ring, as from a VM";  // no futex
    case Way::kTcp:
      return "tcp";
  }
  return "";
}

// Answers each request with an empty reply; drops posted records.
void Serve(ServerTransport& transport) {
  std::thread main([&] {
    std::span<const std::byte> record;
    while (transport.ReceiveMain(&record) == ReceiveStatus::kRecord) transport.DoneMain();
  });
  std::span<const std::byte> record;
  while (transport.ReceiveRequest(0, &record) == ReceiveStatus::kRecord) {
    std::byte* reply = transport.ReserveReply(0);
    if (reply == nullptr) break;
    PutHeader(reply, RecordHeader{});
    transport.PublishReply(0, sizeof(RecordHeader));
    transport.DoneRequest(0);
  }
  main.join();
}

void TcpPair(int* client, int* server) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  *client = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, generic, sizeof address) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, generic, &length) != 0 || connect(*client, generic, sizeof address) != 0)
    abort();
  *server = accept(listener, nullptr, nullptr);
  close(listener);
}

// A client here and its server in a process of its own.
class Session {
 public:
  explicit Session(Way way) {
    void* memory = mmap(nullptr, kGranuleBytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) abort();
    slot_ = static_cast<std::byte*>(memory);
    const bool futex = way == Way::kRing;
    int client_fd = -1, server_fd = -1;
    if (way == Way::kTcp) TcpPair(&client_fd, &server_fd);
    server_process_ = fork();
    if (server_process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::unique_ptr<ServerTransport> transport;
      if (way == Way::kTcp) {
        close(client_fd);
        transport = std::make_unique<TcpServer>(server_fd);
      } else {
        transport = std::make_unique<RingServer>(
            RingServerOptions{.slot = slot_, .futex = futex, .resolve = [](uint64_t, uint64_t) -> std::byte* {
                                return nullptr;
                              }});
      }
      Serve(*transport);
      _exit(0);
    }
    if (way == Way::kTcp) {
      close(server_fd);
      client_ = std::make_unique<TcpClient>(client_fd);
    } else {
      client_ = std::make_unique<RingClient>(
          RingClientOptions{.slot = slot_, .futex = futex, .loss = [] { return std::string(); }});
    }
  }
  ~Session() {
    client_.reset();
    kill(server_process_, SIGKILL);
    waitpid(server_process_, nullptr, 0);
    munmap(slot_, kGranuleBytes);
  }

  void Call(size_t bytes) {
    std::byte* record = client_->ReserveRequest(0, bytes);
    Fill(record, bytes, 0);
    client_->PublishRequest(0, bytes);
    if (client_->AwaitReply(0).empty()) abort();
  }
  void Post(size_t bytes) {
    std::unique_lock lock(main_mutex_);
    std::byte* record = client_->ReserveMain(bytes, lock);
    Fill(record, bytes, 0);
    client_->PublishMain(bytes);
  }

 private:
  // As a call does: a header and a body that was just made.
  static void Fill(std::byte* record, size_t bytes, uint8_t value) {
    if (record == nullptr) abort();
    RecordHeader header{};
    PutHeader(record, header);
    std::memset(record + sizeof header, value, bytes - sizeof header);
  }

  std::byte* slot_;
  pid_t server_process_;
  std::unique_ptr<ClientTransport> client_;
  std::mutex main_mutex_;
};

// One call with an empty handler.
void RoundTrip(benchmark::State& state) {
  const Way way{state.range(0)};
  const auto bytes = static_cast<size_t>(state.range(1));
  Session session(way);
  for (int i = 0; i < 1000; ++i) session.Call(bytes);
  for (auto _ : state) session.Call(bytes);
  state.SetLabel(NameOf(way));
}

template <class T>
T& SharedMemory() {
  void* mapped =
      mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) abort();
  return *static_cast<T*>(mapped);
}

// One process asks, another answers, on a processor each: one that looks without pause keeps the other from
// running. The batches that took least are told as well: other processes disturb the others.
void PingPong(benchmark::State& state, auto ask, auto answer) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2)
    return state.SkipWithError("needs two processors");
  const auto run_on = [&allowed](int nth) {
    int cpu = 0;
    while (!CPU_ISSET(cpu, &allowed) || nth-- > 0) ++cpu;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
  };
  const pid_t peer = fork();
  if (peer == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_on(1);
    for (;;) answer();
  }
  run_on(0);
  constexpr int kBatch = 50;
  double least_ns = 1e9;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i) ask();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    least_ns = std::min(least_ns, time.count() / kBatch);
  }
  state.counters["least_ns"] = least_ns;
  sched_setaffinity(0, sizeof allowed, &allowed);
  kill(peer, SIGKILL);
  waitpid(peer, nullptr, 0);
}

// What two processes cannot do without: a word each way, on lines of their own.
void BareWords(benchmark::State& state) {
  struct Memory {
    HotWord asked, answered;
  };
  auto& memory = SharedMemory<Memory>();
  const auto await = [](const HotWord& word, uint64_t value) {
    while (LoadAcquire(word) != value) _mm_pause();
  };
  uint64_t asked = 0, answered = 0;
  PingPong(
      state,
      [&] {
        StoreRelease(memory.asked, ++asked);
        await(memory.answered, asked);
      },
      [&] {
        await(memory.asked, ++answered);
        StoreRelease(memory.answered, answered);
      });
  munmap(&memory, sizeof memory);
}

// The two rings of a channel alone: nobody waits but by looking, nothing is noted. What RoundTrip takes
// beyond this is the transport's.
void BareRings(benchmark::State& state) {
  struct Memory {
    HotWord tail[2], head[2];
    alignas(kHotBytes) std::byte ring[2][kChannelRingBytes];
  };
  auto& memory = SharedMemory<Memory>();
  std::vector<std::byte> buffer(kMaxChannelRecordBytes);
  alignas(kRecordAlign) std::byte message[kRecordAlign] = {};
  PutHeader(message, RecordHeader{});
  const auto out = [&](int i) {
    return RingProducer(memory.ring[i], kChannelRingBytes, &memory.tail[i], &memory.head[i]);
  };
  const auto in = [&](int i) {
    return RingConsumer(memory.ring[i], kChannelRingBytes, &memory.tail[i], &memory.head[i], buffer);
  };
  const auto send = [&](RingProducer& ring) {
    ring.Prepare(1);
    if (!ring.Put(message, sizeof(RecordHeader))) abort();
  };
  const auto take = [](RingConsumer& ring) {
    while (!ring.Ready()) _mm_pause();
    std::span<const std::byte> record;
    if (ring.Next(&record) != RingConsumer::Status::kRecord) abort();
    ring.Release();
  };
  RingProducer requests = out(0), replies = out(1);
  RingConsumer taken = in(0), got = in(1);
  PingPong(
      state,
      [&] {
        send(requests);
        take(got);
      },
      [&] {
        take(taken);
        send(replies);
      });
  munmap(&memory, sizeof memory);
}

// Posted records, as fast as the other side takes them.
void Posts(benchmark::State& state) {
  const Way way{state.range(0)};
  const auto bytes = static_cast<size_t>(state.range(1));
  Session session(way);
  for (int i = 0; i < 1000; ++i) session.Post(bytes);
  for (auto _ : state) session.Post(bytes);
  state.SetLabel(NameOf(way));
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}

// What the flight recorder adds to a posted record on the guest's side; on the host's, which reads the clock
// once for a record's end and the next one's begin, Begin and End together are about as much.
void Flight(benchmark::State& state) {
  const auto image = std::make_unique<FlightImage>();
  FlightRecorder recorder(image.get());
  FlightMessage message{};
  for (auto _ : state) {
    recorder.Begin(FlightRecorder::kMainLink, message, FlightThread(), FlightTicks());
    ++message.sequence;
  }
}

BENCHMARK(Flight);
BENCHMARK(BareWords)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BareRings)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(RoundTrip)
    ->ArgNames({"way", "bytes"})
    ->ArgsProduct({{0, 1, 2}, {64, 512, 4096}})
    ->UseRealTime()
    ->Unit(benchmark::kNanosecond);
BENCHMARK(Posts)
    ->ArgNames({"way", "bytes"})
    ->ArgsProduct({{0, 1, 2}, {64, 256, 1024, 4096, 16384, 65536}})
    ->UseRealTime()
    ->Unit(benchmark::kNanosecond);

}  // namespace
}  // namespace causeway

BENCHMARK_MAIN();
