// SPDX-License-Identifier: Apache-2.0
// Inputs of the worker's fuzzers: the messages of a session, one after the other. They come from real clients
// (tests/fuzz/record_corpus.py), from message_maker.h, and from script_mutator.cc, which knows their form.
//
// A message is a MessageHead, its body and the bytes that its bulk buffer holds at first. Numbers of handles
// are the guest's own choice, so they stand in the bodies as they are. What the host chooses, such as
// addresses of device memory, stands there as a place: the eight bytes of PlaceWord(place, offset), in any
// body or bulk buffer, become what an earlier reply has left in that place, plus the offset.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ivshmem_ring/transport/record.h"

namespace causeway::fuzz {

// In front of the messages.
struct ScriptPrefix {
  uint64_t seed;     // of what the fake driver decides by chance, and of threads' order
  uint8_t over_tcp;  // 1: no memory is shared
  uint8_t
      in_order;  // so many messages are served one after the other before threads serve at once (fuzz_worker)
  uint8_t limited;  // MiB that the VM may hold on each device; 0: no limit
  uint8_t reserved[5];
};
inline constexpr size_t kScriptPrefix = sizeof(ScriptPrefix);
static_assert(kScriptPrefix == 16);

struct MessageHead {
  uint16_t op;
  uint16_t flags;
  uint8_t link;         // kMainScriptLink: posted; else a channel
  uint8_t place;        // the reply's addresses go to this place and those behind it; 0: nowhere
  uint16_t thread;      // posted: PostedHeader::thread
  uint16_t body_bytes;  // that follow
  uint16_t bulk_given;  // that follow; the rest of the bulk buffer is zero
  uint32_t bulk_bytes;  // lent
  uint64_t context;
  uint64_t stream;  // posted: its header's
  uint64_t event;   // posted: its header's
};
static_assert(sizeof(MessageHead) == 40);

inline constexpr uint8_t kMainScriptLink = 0;
inline constexpr uint8_t kScriptChannels = 2;
inline constexpr size_t kMostMessages = 96;
inline constexpr uint32_t kMostScriptBulk = 64u << 10;  // more only takes time,
inline constexpr uint32_t kMostScriptZeros = 4u << 10;  // as do zeros behind what is given

// Zeros where the input is too short.
ScriptPrefix ReadPrefix(std::span<const uint8_t> input);

// Memory of the messages that are in hand while one input is made or executed. It is given back all at once: a
// sanitizer's allocator took most of the time in which scripts are parsed and changed. One thread makes and changes
// scripts; others may read them.
class ScriptMemory {
 public:
  static void* Take(size_t bytes);
  // All that was taken is void: no script may be left.
  static void Reset();
};
template <class T>
struct ScriptAllocator {
  using value_type = T;
  ScriptAllocator() = default;
  template <class U>
  ScriptAllocator(const ScriptAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(ScriptMemory::Take(count * sizeof(T))); }
  void deallocate(T*, size_t) {}
  friend bool operator==(const ScriptAllocator&, const ScriptAllocator&) { return true; }
};
template <class T>
using ScriptVector = std::vector<T, ScriptAllocator<T>>;

struct Message {
  MessageHead head{};
  ScriptVector<std::byte> body;
  ScriptVector<std::byte> bulk;  // at most head.bulk_bytes
};
using Script = ScriptVector<Message>;

// Reads the messages behind the prefix, one after the other. Any bytes are a script: sizes are cut to what is there and
// what a guest can send.
class ScriptReader {
 public:
  explicit ScriptReader(std::span<const uint8_t> input);

  // Bytes of the input, which must live as long.
  struct View {
    MessageHead head;
    std::span<const std::byte> body;
    std::span<const std::byte> bulk;  // at most head.bulk_bytes
  };
  // False: there is no further message.
  bool Next(View* message);
  // To be called with a copy of each message's body. The worker makes room for what is announced, which costs a
  // sanitizer milliseconds where it is much: in all scripts but some, announcements that it accepts are made small.
  void KeepRoomSmall(uint16_t op, std::span<std::byte> body) const;

 private:
  std::span<const uint8_t> left_;
  const bool keeps_room_small_;
  size_t messages_ = 0;
};
// All of its messages.
Script ParseScript(std::span<const uint8_t> input);
// Writes the prefix and as many of the messages as fit, and returns their size; 0: not even the prefix fits.
size_t WriteScript(const ScriptPrefix& prefix, std::span<const Message> script, std::span<uint8_t> out);

// ---- places

inline constexpr uint64_t kPlaceMark = 0x5107a0;  // the upper three bytes of the word
inline constexpr size_t kPlaces = 256;
constexpr uint64_t PlaceWord(uint8_t place, uint32_t offset) {
  return kPlaceMark << 40 | uint64_t{place} << 32 | offset;
}

class Places {
 public:
  // Takes the words of a reply that look like addresses.
  void Take(uint8_t place, std::span<const std::byte> reply);
  // Puts the values in, wherever a place stands.
  void Fill(std::span<std::byte> bytes) const;

 private:
  uint64_t values_[kPlaces] = {};
};

// ---- what was reached

// Counts messages that were answered with success; with CAUSEWAY_FUZZ_TABLE=FILE the process adds its counts
// to that file when it ends, one line "name answered succeeded" for each operation.
void NoteAnswer(uint16_t op, uint32_t result);

}  // namespace causeway::fuzz
