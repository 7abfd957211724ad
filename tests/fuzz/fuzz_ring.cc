// SPDX-License-Identifier: Apache-2.0
// The host's end of the rings against arbitrary bytes in every word and ring that a guest can write, alone
// and while another thread changes them.
//
// Input: byte 0 chooses one of the four functions below, the rest is its script.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "ivshmem_ring/transport/ring_transport.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/yield_until.h"

namespace causeway {
namespace {

using fuzz::Input;
using fuzz::Require;

constexpr uint64_t kSmallRing = 1024;
constexpr size_t kSmallRecord = 512;

// What every record that a consumer hands out must satisfy, whatever the ring holds.
void RequireSound(std::span<const std::byte> record, size_t most) {
  RecordHeader header;
  Require(record.size() >= sizeof header && record.size() <= most);
  std::memcpy(&header, record.data(), sizeof header);
  Require(header.bytes == record.size() && header.op != kPadOp);
}

// One small ring; the script writes memory and the tail, and takes records, in any order. The ring lies at
// the end of its own allocation, so that a sanitizer sees a read beyond it.
void Consumer(Input& input) {
  auto data = std::make_unique<std::byte[]>(kSmallRing);
  auto buffer = std::make_unique<std::byte[]>(kSmallRecord);
  auto words = std::make_unique<HotWord[]>(2);
  RingConsumer consumer(data.get(), kSmallRing, &words[0], &words[1], {buffer.get(), kSmallRecord});
  uint64_t sequence = 0;
  uint64_t place = 0;
  for (int step = 0; step < 64 && !input.empty(); ++step) {
    switch (input.Byte() % 8) {
      case 0:  // any tail
        StoreRelease(words[0], input.Word());
        break;
      case 1:  // a plausible one, perhaps behind what was published
        StoreRelease(words[0], place + uint64_t{input.Byte()} % 18 * kRecordAlign - kRecordAlign);
        break;
      case 2: {  // a plausible record at or near the place where the consumer stands
        RecordHeader header{};
        header.bytes = input.Byte() % 16 == 0 ? static_cast<uint32_t>(input.Word())
                                              : static_cast<uint32_t>(sizeof header + input.Byte() * 4u);
        header.op = input.Byte() % 4 == 0 ? kPadOp : 1;
        header.sequence = sequence;
        std::memcpy(&data[(place + uint64_t{input.Byte() % 3u} * 64) % kSmallRing], &header, sizeof header);
        break;
      }
      case 4: {  // what a producer that keeps the rules would do, a pad first where one is due
        RecordHeader header{};
        header.sequence = sequence;
        uint64_t at = place;
        const uint64_t to_end = kSmallRing - place % kSmallRing;
        const uint64_t padded = 64 * (1 + input.Byte() % 8u);
        if (padded > to_end) {
          header.op = kPadOp;
          header.bytes = static_cast<uint32_t>(to_end);
          std::memcpy(&data[at % kSmallRing], &header, sizeof header);
          at += to_end;
        }
        header.op = 1;
        header.bytes = static_cast<uint32_t>(padded - input.Byte() % 16u);
        std::memcpy(&data[at % kSmallRing], &header, sizeof header);
        StoreRelease(words[0], at + padded);
        break;
      }
      case 5: {  // a pad up to the end, with nothing behind it yet
        RecordHeader header{};
        header.op = kPadOp;
        header.bytes = static_cast<uint32_t>(kSmallRing - place % kSmallRing);
        std::memcpy(&data[place % kSmallRing], &header, sizeof header);
        StoreRelease(words[0], place + header.bytes);
        break;
      }
      case 3: {  // any bytes anywhere
        const size_t at = input.Word() % kSmallRing;
        const auto bytes = input.Bytes(input.Byte() % 24);
        std::memcpy(&data[at], bytes.data(), std::min(bytes.size(), kSmallRing - at));
        break;
      }
      default: {
        std::span<const std::byte> record;
        if (consumer.Next(&record) != RingConsumer::Status::kRecord) break;
        RequireSound(record, kSmallRecord);
        consumer.Release();
        ++sequence;
        const uint64_t head = LoadAcquire(words[1]);
        Require(head % kRecordAlign == 0 && head > place && head - place <= kSmallRing);
        place = head;
        break;
      }
    }
  }
}

// Our producer against a consumer that writes any head: what it hands out stays inside the ring.
void Producer(Input& input) {
  auto data = std::make_unique<std::byte[]>(kSmallRing);
  auto words = std::make_unique<HotWord[]>(2);
  RingProducer producer(data.get(), kSmallRing, &words[0], &words[1]);
  for (int step = 0; step < 64 && !input.empty(); ++step) {
    if (input.Byte() % 3 == 0) {
      const uint64_t tail = LoadAcquire(words[0]);
      StoreRelease(words[1], input.Byte() % 2 == 0 ? input.Word() : tail - input.Byte() * 16u);
    }
    const size_t bytes = sizeof(RecordHeader) + input.Word() % (kSmallRing / 2 - sizeof(RecordHeader) + 1);
    std::byte* record = producer.Reserve(bytes);
    if (record == nullptr) continue;
    Require(record >= data.get() && record + bytes <= data.get() + kSmallRing);
    std::memset(record, 0xee, bytes);
    const uint64_t before = LoadAcquire(words[0]);
    producer.Publish(bytes);
    const uint64_t after = LoadAcquire(words[0]);
    Require(after % kRecordAlign == 0 && after > before && after - before <= kSmallRing);
  }
}

// Memory of a whole slot, made once.
class Slot {
 public:
  Slot() : memory_(static_cast<std::byte*>(aligned_alloc(4096, kGranuleBytes))) {
    Require(memory_ != nullptr);
    std::memset(memory_, 0, kGranuleBytes);
  }
  ~Slot() { free(memory_); }
  std::byte* memory() { return memory_; }
  std::byte* ring(uint32_t link) {
    return link == kChannels ? memory_ + kMainRingOffset
                             : memory_ + kChannelRingsOffset + 2 * kChannelRingBytes * link;
  }
  HotWord& tail(uint32_t link) {
    return link == kChannels ? guest().main_tail : guest().channel[link].request_tail;
  }
  GuestControl& guest() { return *reinterpret_cast<GuestControl*>(memory_ + kGuestControlOffset); }
  // What an execution may have written.
  void Clear() {
    std::memset(memory_, 0, offsetof(GuestControl, channel) + kChannels * sizeof(GuestChannelWords));
    std::memset(memory_ + kHostControlOffset, 0,
                offsetof(HostControl, channel) + kChannels * sizeof(HostChannelWords));
    std::memset(memory_ + kMainRingOffset, 0, kWritten);
    for (uint32_t channel = 0; channel < kChannels; ++channel) std::memset(ring(channel), 0, kWritten);
  }

  static constexpr uint32_t kChannels = 2;  // link kChannels stands for the main one
  static constexpr size_t kWritten = 2 * kChannelRingBytes;

 private:
  std::byte* memory_;
};

// Takes records until the server has enough of this link. A link whose tail never rests at the consumer's
// head always ends in kCorrupt, so that nothing here waits for ever.
void TakeAll(RingServer& server, uint32_t link) {
  const bool main = link == Slot::kChannels;
  for (int taken = 0; taken < 40; ++taken) {
    std::span<const std::byte> record;
    const ReceiveStatus status = main ? server.ReceiveMain(&record) : server.ReceiveRequest(link, &record);
    if (status != ReceiveStatus::kRecord) {
      Require(status == ReceiveStatus::kCorrupt && *server.CorruptReason() != '\0');
      return;
    }
    RequireSound(record, main ? kMaxMainRecordBytes : kMaxChannelRecordBytes);
    RecordHeader header;
    std::memcpy(&header, record.data(), sizeof header);
    const auto bulk = server.BulkOf(0, header);
    Require(bulk.empty() || bulk.size() <= kBulkBytes);
    if (main) {
      server.DoneMain();
      continue;
    }
    server.DoneRequest(link);
    std::byte* reply = server.ReserveReply(link);
    Require(reply != nullptr);
    PutHeader(reply, RecordHeader{});
    server.PublishReply(link, sizeof header);  // 40 of these fit whatever the guest says of its head
  }
}

RingServerOptions Options(Slot& slot) {
  RingServerOptions options;
  options.slot = slot.memory();
  options.futex = false;  // nobody here would wake it: with this, sleeps are short
  // The last MiB of the slot stands for memory that the session owns.
  options.resolve = [memory = slot.memory()](uint64_t offset, uint64_t bytes) -> std::byte* {
    const bool inside =
        offset >= kGranuleBytes / 2 && offset <= kGranuleBytes && bytes <= kGranuleBytes - offset;
    return inside ? memory + offset : nullptr;
  };
  return options;
}

// A record's header, which the input makes wrong now and then.
RecordHeader MostlySoundHeader(Input& input, uint64_t sequence) {
  RecordHeader header{};
  const uint8_t odd = input.Byte();
  header.bytes = odd % 16 == 0 ? static_cast<uint32_t>(input.Word())
                               : static_cast<uint32_t>(sizeof header + input.Byte() * 4u);
  header.op = odd % 16 == 1 ? kPadOp : 3;
  header.sequence = odd % 16 == 2 ? input.Word() : sequence;
  return header;
}

// A server over a slot that the input has written.
void WholeSlot(Input& input) {
  static Slot slot;
  slot.Clear();
  for (uint32_t link = 0; link <= Slot::kChannels; ++link) {
    uint64_t at = 0;
    for (uint64_t sequence = 0; sequence < 8 && !input.empty(); ++sequence) {
      RecordHeader header = MostlySoundHeader(input, sequence);
      header.bulk_offset = input.Word();
      header.bulk_bytes = static_cast<uint32_t>(input.Word());
      std::memcpy(slot.ring(link) + at, &header, sizeof header);
      at += (uint64_t{header.bytes} + kRecordAlign - 1) & ~(kRecordAlign - 1);
      if (at > kChannelRingBytes - 2 * kRecordAlign) break;
    }
    // Beyond the last record (zeros follow it), or any odd value.
    StoreRelease(slot.tail(link), input.Byte() % 8 == 0 ? input.Word() | 1 : at + kRecordAlign);
  }
  for (uint32_t channel = 0; channel < Slot::kChannels; ++channel) {
    StoreRelease(slot.guest().channel[channel].reply_head, input.Word());
    StoreRelease(slot.guest().channel[channel].waiting, input.Byte() % 2);
  }
  RingServer server(Options(slot));
  for (uint32_t link = 0; link <= Slot::kChannels; ++link) TakeAll(server, link);
  server.Stop();
  std::span<const std::byte> record;
  Require(server.ReceiveMain(&record) != ReceiveStatus::kRecord);
}

// Our client over a slot that a host has written: any bytes answer it, and each wait ends with a sound reply
// or a reason.
void WholeClient(Input& input) {
  static Slot slot;
  slot.Clear();
  auto& host = *reinterpret_cast<HostControl*>(slot.memory() + kHostControlOffset);
  for (uint32_t channel = 0; channel < Slot::kChannels; ++channel) {
    std::byte* const replies = slot.ring(channel) + kChannelRingBytes;
    uint64_t at = 0;
    for (uint64_t sequence = 0; sequence < 6 && !input.empty(); ++sequence) {
      RecordHeader header = MostlySoundHeader(input, sequence);
      std::memcpy(replies + at, &header, sizeof header);
      at += (uint64_t{header.bytes} + kRecordAlign - 1) & ~(kRecordAlign - 1);
      if (at > kChannelRingBytes - 2 * kRecordAlign) break;
    }
    // Behind the last reply something that is none, so that no wait lasts.
    StoreRelease(host.channel[channel].reply_tail,
                 input.Byte() % 8 == 0 ? input.Word() | 1 : at + kRecordAlign);
    StoreRelease(host.channel[channel].waiting, input.Byte() % 2);
  }
  StoreRelease(host.async_error, input.Word());
  RingClient client(
      {.slot = slot.memory(), .futex = false, .loss = [] { return std::string("it is gone"); }});
  std::mutex main;
  for (uint32_t round = 0; round < 8; ++round) {
    std::unique_lock lock(main);
    if (std::byte* record = client.ReserveMain(sizeof(RecordHeader) + round, lock)) {
      PutHeader(record, PostedHeader{});
      client.PublishMain(sizeof(RecordHeader) + round);
    }
    lock.unlock();
    const uint32_t channel = round % Slot::kChannels;
    if (std::byte* record = client.ReserveRequest(channel, sizeof(RecordHeader))) {
      PutHeader(record, RecordHeader{});
      client.PublishRequest(channel, sizeof(RecordHeader));
    }
    (void)client.ReplyReady(channel);
    const auto reply = client.AwaitReply(channel, {.kind = round, .blocking = input.Byte() % 4 == 0});
    if (reply.empty()) {
      Require(!client.LossReason().empty());
    } else {
      RequireSound(reply, kMaxChannelRecordBytes);
    }
  }
  (void)client.AsyncError();
}

// Writes headers and tails of a slot without pause while told to. Whole words, as a processor writes them.
class Mutator {
 public:
  explicit Mutator(Slot& slot) : slot_(slot), thread_([this] { Run(); }) {}
  ~Mutator() {
    over_ = true;
    thread_.join();
  }
  void Start(uint64_t seed) { seed_ = seed | 1; }
  void Pause() {
    seed_ = 0;
    test::YieldUntil([&] { return !busy_; });
  }

 private:
  void Run() {
    while (!over_) {
      busy_ = true;
      uint64_t state = seed_;
      if (state == 0) {
        busy_ = false;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        continue;
      }
      while (seed_ != 0) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint64_t value = state >> 20;
        for (uint32_t link = 0; link <= Slot::kChannels; ++link) {
          Write(slot_.ring(link) + (value >> 8) % 64 * 64, (48 + (value & 0x1ff)) | uint64_t{3} << 32);
          Write(slot_.ring(link) + (value >> 16) % 64 * 64 + 8, value >> 24 & 7);
          Write(slot_.ring(link) + (value >> 10) % 4096 / 8 * 8, value);
          StoreRelease(slot_.tail(link), (value >> 30 & 0x3f) * (link + 1) * 64 % 4096);
        }
      }
    }
  }
  static void Write(std::byte* at, uint64_t value) {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at)).store(value, std::memory_order_relaxed);
  }

  Slot& slot_;
  std::atomic<uint64_t> seed_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

void ChangingSlot(Input& input) {
  static Slot slot;
  static auto& mutator = *new Mutator(slot);  // its thread runs until the process ends
  slot.Clear();
  mutator.Start(input.Word());
  {
    RingServer server(Options(slot));
    for (uint32_t link = 0; link <= Slot::kChannels; ++link) TakeAll(server, link);
  }
  mutator.Pause();
}

}  // namespace
}  // namespace causeway

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::Input input(data, size);
  const uint8_t choice = input.Byte();
  if (choice < 150) {
    causeway::Consumer(input);
  } else if (choice < 205) {
    causeway::Producer(input);
  } else if (choice < 220) {
    causeway::WholeClient(input);
  } else {
    // One that changes is never twice the same: all would go into a corpus, and be most of it before long.
    constexpr uint32_t kOneIn = 256;
    static uint32_t slots = 0;
    if (choice >= 250 && ++slots % kOneIn == 0) {
      causeway::ChangingSlot(input);
    } else {
      causeway::WholeSlot(input);
    }
  }
  return 0;
}
