// SPDX-License-Identifier: Apache-2.0
// How the shared region is laid out: the one file that guest library, kernel module and host must agree on.
// kernel_module/causeway_uapi.h repeats the module's part in C; tests/unit/layout_test.cc holds the two
// together.
//
//   granule 0 (2 MiB)                         granules 1..S        granules S+1..N-1
//   +------------------------------------+    +-----------------+  +---------------------------+
//   | 0x00000 Superblock    host writes  |    | slot: one guest |  | slices: payload and       |
//   | 0x01000 HostPage      host writes  |    | process (rings) |  | pinned memory, lent to    |
//   | 0x02000 GuestPage     guest kernel |    +-----------------+  | slots whole (2 MiB each)  |
//   | 0x10000 owner table   guest kernel |                         +---------------------------+
//   +------------------------------------+
//
// A slot's life, as two words of one writer each; `session` grows with every opening, so a late word of an
// earlier life is never mistaken for a current one:
//
//   guest: kFree --open--> kOpen(s) ---------------release--> kDying(s) --host word says kClosed(s)--> kFree
//   host :                 kServing(s) | kRefused(s) | kFatal(s)  -------------> kClosed(s)
//
// Rules: every word has one writer; nothing is read-modify-written across the boundary; publish by release
// store, observe by acquire load; offsets, never pointers; each hot word has 128 bytes to itself.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway {

inline constexpr uint64_t kRegionMagic = 0x5941574553554143;  // "CAUSEWAY", little-endian
inline constexpr uint16_t kAbiMajor = 1;
inline constexpr uint16_t kAbiMinor = 0;
inline constexpr uint64_t kGranuleBytes = 2u << 20;
inline constexpr uint64_t kMinRegionBytes = 64u << 20;
inline constexpr uint32_t kMaxSlots = 256;
inline constexpr uint32_t kMaxGranules = 32768;  // 64 GiB
inline constexpr uint32_t kChannelCount = 64;
inline constexpr uint64_t kHotBytes = 128;  // a cache line and its prefetched neighbour

inline constexpr uint64_t kSuperblockOffset = 0x0;
inline constexpr uint64_t kHostPageOffset = 0x1000;
inline constexpr uint64_t kGuestPageOffset = 0x2000;
inline constexpr uint64_t kOwnerTableOffset = 0x10000;

// Host-written once, before the device appears in the guest.
struct Superblock {
  uint64_t magic;
  uint16_t abi_major;
  uint16_t abi_minor;
  uint32_t header_bytes;  // sizeof(Superblock): later minors append
  uint64_t region_bytes;  // power of two
  uint64_t features;      // none defined in 1.0
  uint64_t host_epoch;    // random per start of the host daemon
  uint64_t api_hash;  // of the API rows (ivshmem_ring/protocol/call.h): two builds that differ refuse to talk
  uint32_t slot_count;
  uint32_t granule_bytes;
  uint32_t granule_count;
  uint32_t channel_count;
  uint64_t window_address;  // where both sides map the slices: address = window_address + offset in region
  uint8_t uuid[16];
  uint32_t crc32;  // of all bytes before it (zlib polynomial)
  uint32_t reserved;
};
static_assert(sizeof(Superblock) == 96 && alignof(Superblock) == 8);
static_assert(offsetof(Superblock, crc32) == 88);

enum class HostState : uint32_t { kStarting = 0, kRunning = 1, kStopped = 2 };

// Host-written. A slot word is session << 8 | SlotHostState.
struct HostPage {
  uint64_t beat;  // grows every second or more often while the daemon lives
  HostState state;
  uint32_t reserved0;
  uint64_t reset_acknowledged;  // last GuestPage::epoch whose sessions have all ended
  uint8_t reserved1[kHotBytes - 24];
  uint32_t slot[kMaxSlots];
};
static_assert(sizeof(HostPage) == kHotBytes + 4 * kMaxSlots);

// Written by the guest's kernel module (by the library itself where the region belongs to one process).
struct GuestPage {
  uint64_t epoch;  // random per probe of the module
  uint64_t features;
  uint8_t reserved[kHotBytes - 16];
  uint32_t slot[kMaxSlots];  // session << 8 | SlotGuestState
  uint32_t pid[kMaxSlots];   // informative
  uint32_t uid[kMaxSlots];   // informative
};
static_assert(sizeof(GuestPage) == kHotBytes + 12 * kMaxSlots && sizeof(GuestPage) <= 0x1000);

enum class SlotGuestState : uint32_t { kFree = 0, kOpen = 1, kDying = 2 };
enum class SlotHostState : uint32_t { kClosed = 0, kServing = 1, kRefused = 2, kFatal = 3 };

constexpr uint32_t SlotWord(uint32_t session, uint32_t state) {
  return session << 8 | state;
}
constexpr uint32_t SlotSession(uint32_t word) {
  return word >> 8;
}
constexpr uint32_t SlotState(uint32_t word) {
  return word & 0xff;
}

// Owner table: u16 per granule. 0 = free, otherwise slot index + 1.
inline constexpr uint16_t kOwnerFree = 0;
static_assert(kOwnerTableOffset + 2 * kMaxGranules <= kGranuleBytes);

// One slot: rings and control words of one guest process.
//   0x000000 GuestControl   guest process writes     0x080000 main ring      512 KiB, guest -> host
//   0x010000 HostControl    host writes              0x100000 channels 64 x (8 KiB request, 8 KiB reply)
//   0x020000 FlightImage    guest process writes
//   0x050000 CallbackWords  the GPU and the guest process write
inline constexpr uint64_t kGuestControlOffset = 0x0;
inline constexpr uint64_t kHostControlOffset = 0x10000;
inline constexpr uint64_t kGuestFlightOffset = 0x20000;
inline constexpr uint64_t kCallbackWordsOffset = 0x50000;
inline constexpr uint64_t kMainRingOffset = 0x80000;
inline constexpr uint64_t kMainRingBytes = 512u << 10;
inline constexpr uint64_t kChannelRingsOffset = 0x100000;
inline constexpr uint64_t kChannelRingBytes = 8u << 10;

struct alignas(kHotBytes) HotWord {
  uint64_t value;
  uint8_t padding[kHotBytes - 8];
};
static_assert(sizeof(HotWord) == kHotBytes);

struct GuestChannelWords {
  HotWord request_tail;  // partner: host's consumer of the channel's request ring
  HotWord reply_head;    // partner: host's producer of the channel's reply ring
  HotWord waiting;  // 1 while the guest thread sleeps for a reply (a futex word where both share a kernel)
};

struct HostChannelWords {
  HotWord request_head;
  HotWord reply_tail;
  HotWord waiting;  // 1 while the host's thread sleeps for a request
};

inline constexpr uint32_t kOpenTextBytes = 8192;

// What a session is for. Management (NVML) needs neither a context nor region memory.
enum class SessionKind : uint32_t { kCuda = 0, kManagement = 1 };

// What a guest process says of itself before it opens its slot.
struct OpenBlock {
  uint64_t magic;
  uint16_t abi_major;
  uint16_t abi_minor;
  uint32_t pid;
  uint64_t api_hash;
  uint64_t window_address;  // where this process has mapped the slices
  uint32_t environment_bytes;
  SessionKind kind;
  char environment[kOpenTextBytes];  // NAME=VALUE, each NUL-terminated: variables that the driver reads
};
static_assert(offsetof(OpenBlock, environment) == 40 && sizeof(OpenBlock) == 40 + kOpenTextBytes);

struct GuestControl {
  HotWord main_tail;
  HotWord reserved;
  GuestChannelWords channel[kChannelCount];
  OpenBlock open;
};
static_assert(offsetof(GuestControl, channel) == 2 * kHotBytes);
static_assert(sizeof(GuestControl) <= kHostControlOffset - kGuestControlOffset);

struct HostControl {
  HotWord main_head;     // bytes of the main ring consumed
  HotWord main_waiting;  // 1 while the dispatcher sleeps
  HotWord async_error;   // count << 32 | CUresult: the newest failure of a posted call
  HotWord ready;         // 1 once the worker serves the slot
  HostChannelWords channel[kChannelCount];
  char refusal[512];  // why the slot was refused or ended, one NUL-terminated sentence
  HotWord
      open_channels;  // bit i: a thread serves channel i (for who watches them, RingServerOptions::watched)
};
static_assert(offsetof(HostControl, channel) == 4 * kHotBytes);
static_assert(sizeof(HostControl) <= kGuestFlightOffset - kHostControlOffset);
static_assert(kMainRingOffset + kMainRingBytes <= kChannelRingsOffset);
static_assert(kChannelRingsOffset + 2 * kChannelRingBytes * kChannelCount <= kGranuleBytes);

// The flight recorder: the last messages of every link and their times, one image for each side. The guest's
// lies in its slot; the worker's in a file of the daemon's, which no guest can write
// (host_backend/daemon/servers/flight_store.h). A record lies at its message's sequence modulo the link's
// capacity, and a link has one writer on each side at a time: nothing is counted, and nothing locked. Whoever
// reads takes all of it for garbage: the writer may be writing, or lying.
inline constexpr uint32_t kFlightVersion = 1;
inline constexpr uint32_t kFlightMainRecords = 512;
inline constexpr uint32_t kFlightChannelRecords =
    16;  // more than requests may be on their way (kBulkBuffers)

// One moment by two clocks: the processor's time stamp counter, and CLOCK_MONOTONIC.
struct FlightClock {
  uint64_t ticks;
  uint64_t ns;
};

struct FlightHeader {
  uint32_t version;  // 0: this side has recorded nothing
  uint32_t record_bytes;
  FlightClock first;
  FlightClock last;  // now and then: with `first` it tells how long a tick is
  uint8_t reserved[kHotBytes - 40];
};
static_assert(sizeof(FlightHeader) == kHotBytes);

struct FlightRecord {
  uint64_t begin;   // ticks. guest: before it is published; host: when its thread took it
  uint64_t end;     // guest: the reply is there; host: it is executed. 0: not yet, or posted (guest)
  uint32_t number;  // low half of sequence + 1, stored last; 0: empty
  uint32_t who;     // guest: which thread; host: low half of RecordHeader::main_sequence, 0 of main records
  uint32_t bytes;
  uint16_t op;
  uint16_t reserved;
};
static_assert(sizeof(FlightRecord) == 32);

struct FlightImage {
  FlightHeader header;
  FlightRecord main[kFlightMainRecords];
  FlightRecord channel[kChannelCount][kFlightChannelRecords];
};
static_assert(sizeof(FlightImage) == 128 + 32 * (512 + 64 * 16));
static_assert(kGuestFlightOffset + sizeof(FlightImage) <= kCallbackWordsOffset);

// Functions of the guest program that the GPU waits for by itself (callback_messages.h). A pair of words of
// one index serves one function at a time; numbers of functions only grow. All zero when the slot is opened:
// the guest process clears them.
inline constexpr uint32_t kCallbackWords = 256;
inline constexpr uint32_t kGraphWords = 4080;
// The same for host nodes of graphs: the worker gives a pair to each in an executable graph. A function there
// runs with every launch, so the GPU clears `done` before it announces it, and the guest process clears
// `announced` before it runs it.
struct GraphWords {
  uint64_t end;  // pairs up to here may be in use; the worker writes
  uint64_t reserved[31];
  uint64_t announced[kGraphWords];
  uint64_t done[kGraphWords];
};
// Pieces of queued copies (copy_messages.h): the place of a piece serves one after the other, and both words
// count them.
struct QueuedPlace {
  HotWord turn;  // the guest process is done with its side of so many. The GPU waits for it; when the session
                 // ends, the worker writes it
  HotWord done;  // the GPU has copied so many. It writes
};
inline constexpr uint32_t kQueuedPlaces = 32;  // of each direction
struct CallbackWords {
  uint64_t announced[kCallbackWords];  // number of the function that is due. The GPU writes
  uint64_t done[kCallbackWords];       // number of the one that has returned. The guest process writes; when
                                       // the session ends, the worker, so that the GPU waits no more
  QueuedPlace queued[2][kQueuedPlaces];  // to the host, to the device
  GraphWords graph;
};
static_assert(sizeof(CallbackWords) % 4096 == 0);  // whole pages: they are registered with the driver
static_assert(kCallbackWordsOffset + sizeof(CallbackWords) <= kMainRingOffset);

// The counts that follow from a region's size.
constexpr uint32_t GranuleCount(uint64_t region_bytes) {
  return static_cast<uint32_t>(region_bytes / kGranuleBytes);
}
constexpr uint32_t SlotCount(uint64_t region_bytes) {
  const uint64_t wanted = region_bytes / (16u << 20);
  return static_cast<uint32_t>(wanted > kMaxSlots ? kMaxSlots : wanted);
}
constexpr uint64_t SlotOffset(uint32_t slot) {
  return (1 + uint64_t{slot}) * kGranuleBytes;
}
constexpr uint64_t FirstSliceOffset(uint32_t slot_count) {
  return (1 + uint64_t{slot_count}) * kGranuleBytes;
}

#ifdef __SANITIZE_THREAD__
inline constexpr uint64_t kDefaultWindowAddress = 0x5000000000;  // TSan allows a program few ranges
#else
inline constexpr uint64_t kDefaultWindowAddress = 0x400000000000;
#endif

}  // namespace causeway
