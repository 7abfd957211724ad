// SPDX-License-Identifier: Apache-2.0
// How the shared region is laid out: the one file on which guest library, kernel module and host must agree.
// kernel_module/causeway_uapi.h repeats the module's part in C; tests/unit/layout_test.cc compares the two.
//
// A region is divided into granules of 2 MiB. All offsets and sizes are in bytes, all words little-endian.
//
//   granule 0 (2 MiB)                         granules 1..S        granules S+1..N-1
//   +------------------------------------+    +-----------------+  +---------------------------+
//   | 0x00000 Superblock    host writes  |    | slot: one guest |  | slices: payload and       |
//   | 0x01000 HostPage      host writes  |    | process (rings) |  | pinned memory, lent to    |
//   | 0x02000 GuestPage     guest kernel |    +-----------------+  | slots whole (2 MiB each)  |
//   | 0x10000 owner table   guest kernel |                         +---------------------------+
//   +------------------------------------+
//
// The life of a slot, in two words with one writer each. The number `session` (s) grows with every opening,
// so a late word of an earlier session is never mistaken for one of the current session:
//
//   guest: kFree --open--> kOpen(s) ---------------release--> kDying(s) --host word says kClosed(s)--> kFree
//   host :                 kServing(s) | kRefused(s) | kFatal(s)  -------------> kClosed(s)
//
// Rules: Every word has one writer. Nothing is read-modify-written across the border. A word is published by
// a release store and observed by an acquire load. Places are offsets, never pointers. A word that one side
// polls (a "hot" word) has 128 bytes to itself, so that no other store disturbs the reader. The reader
// assumes that the writer may change any byte at any time.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway {

inline constexpr uint64_t kRegionMagic = 0x5941574553554143;  // "CAUSEWAY", little-endian
inline constexpr uint16_t kAbiMajor = 1;
inline constexpr uint16_t kAbiMinor = 1;
inline constexpr uint64_t kGranuleBytes = 2u << 20;
inline constexpr uint64_t kMinRegionBytes = 64u << 20;
inline constexpr uint32_t kMaxSlots = 256;
inline constexpr uint32_t kMaxGranules = 32768;  // 64 GiB
inline constexpr uint32_t kChannelCount = 64;
inline constexpr uint64_t kHotBytes = 128;  // a cache line, and the neighbour that is fetched with it

inline constexpr uint64_t kSuperblockOffset = 0x0;
inline constexpr uint64_t kHostPageOffset = 0x1000;
inline constexpr uint64_t kGuestPageOffset = 0x2000;
inline constexpr uint64_t kOwnerTableOffset = 0x10000;

// Superblock::features: the host chooses the worker of a session by OpenBlock::api_hash, so that a library whose rows
// differ from `api_hash` asks all the same. Hosts before 1.1 serve no rows but those.
inline constexpr uint64_t kHostChoosesWorker = 1;

// The host writes it once, before the device appears in the guest.
struct Superblock {
  uint64_t magic;
  uint16_t abi_major;
  uint16_t abi_minor;
  uint32_t header_bytes;  // sizeof(Superblock); later minor versions append fields
  uint64_t region_bytes;  // power of two
  uint64_t features;      // kHostChoosesWorker
  uint64_t host_epoch;    // a random number for each start of the daemon
  uint64_t api_hash;      // of the rows of the host's own release (release/build_stamp.h)
  uint32_t slot_count;
  uint32_t granule_bytes;
  uint32_t granule_count;
  uint32_t channel_count;
  uint64_t window_address;  // both sides map the byte at offset o of the region at window_address + o
  uint8_t uuid[16];
  uint32_t crc32;  // of all bytes before this field (zlib polynomial)
  uint32_t reserved;
};
static_assert(sizeof(Superblock) == 96 && alignof(Superblock) == 8);
static_assert(offsetof(Superblock, crc32) == 88);

enum class HostState : uint32_t { kStarting = 0, kRunning = 1, kStopped = 2 };

// The host writes it. A slot word is session << 8 | SlotHostState.
struct HostPage {
  uint64_t beat;  // grows at least once a second while the daemon lives
  HostState state;
  uint32_t doorbell;            // 1: the host waits for rings and rings; 0: it looks at the rings itself
  uint64_t reset_acknowledged;  // the last GuestPage::epoch of which all sessions have ended
  uint8_t reserved1[kHotBytes - 24];
  uint32_t slot[kMaxSlots];
};
static_assert(sizeof(HostPage) == kHotBytes + 4 * kMaxSlots);

// GuestPage::features: the guest's kernel module rings the host for each change of this page, and is interrupted by the
// host. Only where the device has doorbells (docs/doorbells.md).
inline constexpr uint64_t kGuestRings = 1;

// The guest's kernel module writes it, or the library itself where the region belongs to one process.
struct GuestPage {
  uint64_t epoch;     // a random number for each start of the module
  uint64_t features;  // kGuestRings; written before `epoch`
  uint8_t reserved[kHotBytes - 16];
  uint32_t slot[kMaxSlots];  // session << 8 | SlotGuestState
  uint32_t pid[kMaxSlots];   // for display only
  uint32_t uid[kMaxSlots];   // for display only
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

// The owner table has a u16 for each granule: 0 if it is free, otherwise the slot's index + 1.
inline constexpr uint16_t kOwnerFree = 0;
static_assert(kOwnerTableOffset + 2 * kMaxGranules <= kGranuleBytes);

// One slot: the rings and control words of one guest process.
//   0x000000 GuestControl   the guest process writes it
//   0x010000 HostControl    the host writes it
//   0x020000 FlightImage    the guest process writes it
//   0x050000 CallbackWords  the GPU and the guest process write it
//   0x080000 submission queue (main ring), 512 KiB, guest -> host
//   0x100000 64 channels, each with 8 KiB for requests and 8 KiB for replies
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
  HotWord request_tail;  // read by the host's consumer of the channel's request ring
  HotWord reply_head;    // read by the host's producer of the channel's reply ring
  HotWord waiting;       // 1 while the guest thread sleeps for a reply; a futex where both share a kernel
};

struct HostChannelWords {
  HotWord request_head;
  HotWord reply_tail;
  HotWord waiting;  // 1 while the host's thread sleeps for a request
};

inline constexpr uint32_t kOpenTextBytes = 7936;

// What a session is for. A management session (NVML) needs neither a context nor region memory. A question is none: over a stream
// alone, a guest asks with it how loaded the host is (hosts/pool_messages.h).
enum class SessionKind : uint32_t { kCuda = 0, kManagement = 1, kQuestion = 2 };

// What a guest process states before it opens its slot. What 1.0 had as the end of `environment` is since 1.1 for what
// later versions add, zeroed as far as the library knows nothing to say there.
struct OpenBlock {
  uint64_t magic;
  uint16_t abi_major;
  uint16_t abi_minor;
  uint32_t pid;
  uint64_t api_hash;
  uint64_t window_address;  // where this process has mapped the slices
  uint32_t environment_bytes;
  SessionKind kind;
  char environment[kOpenTextBytes];  // variables for the driver: NAME=VALUE, each NUL-terminated
  char release[32];                  // of the library, as BuildStamp has it; only to be shown
  uint64_t features;                 // of the library: kResumesFeature, kCompressesFeature (messages/)
  uint8_t reserved[216];  // of a guest that comes back: a ResumeRequest (messages/resume_messages.h)
};
static_assert(offsetof(OpenBlock, environment) == 40 && sizeof(OpenBlock) == 40 + 8192);

struct GuestControl {
  HotWord main_tail;
  HotWord reserved;
  GuestChannelWords channel[kChannelCount];
  OpenBlock open;
};
static_assert(offsetof(GuestControl, channel) == 2 * kHotBytes);
static_assert(sizeof(GuestControl) <= kHostControlOffset - kGuestControlOffset);

// Whether the dispatcher sleeps, and who wakes it. A library that does not know kGathers wakes it for each record.
enum class DispatcherSleep : uint64_t {
  kAwake = 0,
  kUntilRecord = 1,  // what Waiter stores for any thread that sleeps
  kGathers = 2,      // it looks again soon; a guest wakes it when a thread waits, and for 16 KiB of records
};

struct HostControl {
  HotWord main_head;     // bytes of the submission queue that were consumed
  HotWord main_waiting;  // a DispatcherSleep
  HotWord async_error;   // the newest failure of a posted call: count << 32 | CUresult
  HotWord ready;         // 1 once the worker serves the slot
  HostChannelWords channel[kChannelCount];
  char refusal[512];  // why the slot was refused or ended: one NUL-terminated sentence
  // Bit i: a thread serves channel i. The daemon, which wakes sleeping threads, reads it
  // (RingServerOptions::watched).
  HotWord open_channels;
};
static_assert(offsetof(HostControl, channel) == 4 * kHotBytes);
static_assert(sizeof(HostControl) <= kGuestFlightOffset - kHostControlOffset);
static_assert(kMainRingOffset + kMainRingBytes <= kChannelRingsOffset);
static_assert(kChannelRingsOffset + 2 * kChannelRingBytes * kChannelCount <= kGranuleBytes);

// The flight recorder: the last messages of every link (the submission queue, or a channel) and their times,
// in one image for each side. The guest's image lies in its slot. The worker's lies in a file of the
// daemon's, which no guest can write (host_backend/daemon/servers/flight_store.h). A record lies at its
// message's sequence modulo the link's capacity, and a link has one writer on each side at a time, so there
// is neither counter nor lock. A reader must treat all of it as garbage: the writer may be writing, or lying.
inline constexpr uint32_t kFlightVersion = 1;
inline constexpr uint32_t kFlightMainRecords = 512;
// More than the requests that one channel can have sent without a reply (kBulkBuffers).
inline constexpr uint32_t kFlightChannelRecords = 16;

// One moment by two clocks: the processor's time stamp counter in ticks, and CLOCK_MONOTONIC in ns.
struct FlightClock {
  uint64_t ticks;
  uint64_t ns;
};

struct FlightHeader {
  uint32_t version;  // 0: this side has recorded nothing
  uint32_t record_bytes;
  FlightClock first;
  FlightClock last;  // written now and then: with `first` it gives the length of a tick
  uint8_t reserved[kHotBytes - 40];
};
static_assert(sizeof(FlightHeader) == kHotBytes);

struct FlightRecord {
  uint64_t begin;   // in ticks. Guest: before it was published. Host: when the worker's thread took it
  uint64_t end;     // in ticks. Guest: when the reply came. Host: when it was executed. 0: not yet, or no
                    // reply comes (guest, posted record)
  uint32_t number;  // low half of sequence + 1, stored last; 0: this record is empty
  uint32_t who;     // Guest: FlightThread(). Host: low half of the request's RecordHeader::main_sequence, 0
                    // of a posted record
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

// Words by which the GPU announces functions of the guest program, and for which it then waits by itself
// (callback_messages.h). The two words of one index serve one function at a time, and the numbers of
// functions only grow. The guest process clears all of them when it opens the slot.
inline constexpr uint32_t kCallbackWords = 256;
inline constexpr uint32_t kGraphWords = 4080;
// The same words for host nodes of graphs: the worker gives a pair to each such node of an executable graph.
// A node's function runs with every launch, so the GPU clears `done` before it announces the function, and
// the guest process clears `announced` before it runs it.
struct GraphWords {
  uint64_t end;  // pairs from here on are not in use; the worker writes it
  uint64_t reserved[31];
  uint64_t announced[kGraphWords];
  uint64_t done[kGraphWords];
};
// The words of one staging slot of queued copies (copy_messages.h). A slot serves one piece after the other,
// and both words count pieces.
struct QueuedPlace {
  HotWord turn;  // for so many pieces the guest process has done its part. The GPU waits for this word. The
                 // guest process writes it; the worker does when the session ends, so that no wait stays
  HotWord done;  // so many pieces are copied. The GPU writes it
};
inline constexpr uint32_t kQueuedPlaces = 32;  // staging slots of each direction
struct CallbackWords {
  uint64_t announced[kCallbackWords];    // number of the function that is due. The GPU writes it
  uint64_t done[kCallbackWords];         // number of the function that has returned. The guest process writes
                                         // it; the worker does when the session ends, so that no wait stays
  QueuedPlace queued[2][kQueuedPlaces];  // to the host, to the device
  GraphWords graph;
};
static_assert(sizeof(CallbackWords) % 4096 == 0);  // whole pages: they are registered with the driver
static_assert(kCallbackWordsOffset + sizeof(CallbackWords) <= kMainRingOffset);

// The counts that follow from a region's size: a slot for each 16 MiB.
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
inline constexpr uint64_t kDefaultWindowAddress = 0x5000000000;  // TSan leaves a program few ranges
#else
inline constexpr uint64_t kDefaultWindowAddress = 0x400000000000;
#endif

}  // namespace causeway
