// SPDX-License-Identifier: Apache-2.0
// What daemon and worker say to each other on the worker's control socket (SOCK_SEQPACKET socketpair,
// descriptor number given by --control-fd). The daemon starts
//   causeway-worker --control-fd N --sandbox MODE --driver LIBRARY          or, for a management session,
//   causeway-worker --control-fd N --sandbox MODE --management LIBRARY [--all-devices]
// with standard input from /dev/null and both outputs read by the daemon's log.
//
//   from    message           when, and with which descriptors
//   worker  WorkerReady       the driver has started, or failed = 1 and the reason
//   daemon  WorkerScope       only to a spare that is kept for one scope; no answer
//   daemon  WorkerAssignment  with descriptors: account page, the same to be read only; then the region, the
//                             region to be read only (of granted memory a SleepWord) and the client socket, or the bell, or
//                             the TCP socket; then the session's FlightImage if has_flight
//   daemon  WorkerLongAssignment  in the place of WorkerAssignment, where the session waits for its guest when its
//                             connection is lost, only to a worker with kWaitsForGuests; or where both sides compress,
//                             only to one with kCompresses
//   worker  WorkerConfined    before it looks at any byte of the guest; with a descriptor if has_listener
//   worker  WorkerUsage       at most every 500 ms while it serves, and only after calls
//   worker  SharingRequest    with a descriptor if has_descriptor; one at a time. The answer is a SharingReply,
//                             likewise. It has the number of the request; 0 of a daemon that numbers none
//   worker  CheckpointOrder   one at a time. The answer is a CheckpointAnswer; a daemon that takes the worker over sends
//                             one with `again`, at which a worker that waits sends its order once more, with `again`
//   worker  WorkerLink        of such a session: its connection was lost, and it waits; or it goes on
//   daemon  WorkerResume      with a descriptor: the guest has made another connection
//   worker  WorkerQuery       of a management session. The answer is WorkerPeers
// When either side closes the socket, the other ends; the worker also has PR_SET_PDEATHSIG.
//
// A daemon also starts workers of earlier releases, whose guests it serves, and goes on with workers that an earlier
// daemon started. So what is here, and the command line above, does not change: messages are told apart by their
// sizes, and a message that is to say more becomes another one of another size, sent only to a peer whose
// version of this protocol has it. WorkerReady tells the worker's (docs/versions.md).
#pragma once
#include <cstdint>

namespace causeway {

// Of this protocol: what this build's worker speaks, and the oldest that its daemon still does.
inline constexpr uint32_t kWorkerControl = 1;
inline constexpr uint32_t kOldestWorkerControl = 1;

// WorkerReady::features: the worker understands CheckpointAnswer::again.
inline constexpr uint32_t kAsksAgain = 1;
// WorkerReady::features: the end of `text` holds the UUIDs of its `device_count` devices (named_devices.h).
inline constexpr uint32_t kNamesDevices = 2;
inline constexpr uint32_t kMostNamedDevices = 16;
// One that watches memory understands WorkerTellDevices.
inline constexpr uint32_t kTellsDevices = 4;

// The worker understands WorkerLongAssignment and WorkerResume, and sends WorkerLink.
inline constexpr uint32_t kWaitsForGuests = 8;
// The worker understands WorkerLongAssignment::compresses.
inline constexpr uint32_t kCompresses = 16;

struct WorkerReady {
  uint32_t failed;
  uint32_t driver_version;
  uint32_t device_count;
  uint32_t loads_lazily;       // cuModuleGetLoadingMode with what the worker was started with
  uint64_t device_free_bytes;  // of GPU 0's memory, after the driver's start; 0: not known
  uint64_t api_hash;           // of the worker's rows
  uint32_t control_version;    // kWorkerControl
  // kAsksAgain, kNamesDevices, kTellsDevices, kWaitsForGuests, kCompresses; others are passed over.
  uint32_t features;
  char release[32];   // of the worker, as BuildStamp has it
  char text[488];     // failed: one sentence; otherwise the driver library's path
  char sandbox[256];  // what confines the worker, in words for the log
};
static_assert(sizeof(WorkerReady) == 816);

// A worker that was started with --watch-memory sends these several times a second: what NVML says that a
// process of this host holds on one device, in bytes, and at the end of each round one with pid 0 and the
// number of messages before it in `bytes`.
struct WorkerMemoryUse {
  uint32_t pid;
  uint32_t reserved;
  uint64_t bytes;
  uint8_t uuid[16];
};
static_assert(sizeof(WorkerMemoryUse) == 32);

// daemon -> a worker with --watch-memory: it is to say before the end of each further round what each device has, too.
struct WorkerTellDevices {
  uint32_t reserved;
};
static_assert(sizeof(WorkerTellDevices) == 4);

// The answer to it: one GPU as sessions may have it.
struct WorkerDeviceUse {
  char name[64];  // NUL-terminated
  uint8_t uuid[16];
  uint32_t load_percent;  // kDeviceLoadUnknown: NVML does not say
  uint32_t reserved;
  uint64_t free_bytes;
  uint64_t memory_bytes;
};
static_assert(sizeof(WorkerDeviceUse) == 104);
inline constexpr uint32_t kDeviceLoadUnknown = 0xffffffff;

// The worker is confined now (docs/sandbox.md). has_listener: with seccomp's listener, the descriptor on
// which the kernel asks about system calls.
struct WorkerConfined {
  uint32_t filter_instructions;
  uint32_t has_listener;
  uint64_t reserved[2];
};
static_assert(sizeof(WorkerConfined) == 24);

// Tells a spare which scope it is kept for, before a session comes; its assignment names the same user.
struct WorkerScope {
  uint32_t user;  // the user id that the worker takes now, within --users
  uint32_t reserved;
  uint64_t cache_bytes;  // as in WorkerAssignment
};
static_assert(sizeof(WorkerScope) == 16);

// kTls: as kTcp, but the guest's socket and keys come over the first descriptor (tls_hand_over.h).
enum class AssignmentKind : uint32_t { kRegion = 1, kTcp = 2, kTls = 3 };

struct WorkerAssignment {
  AssignmentKind kind;
  uint32_t slot;
  uint32_t session;  // of the slot word
  // kRegion: the client's socket follows the region's two descriptors. When its other end is closed, the session ends.
  uint32_t has_client_socket;  // of local sessions
  uint64_t region_bytes;
  uint64_t window_address;  // kRegion: as the daemon checked it; OpenBlock's own copy may have changed since
  uint32_t account_cell;    // the worker's own, of host_backend/common/shares/account_page.h
  uint32_t has_flight;      // a descriptor of the file for the host's FlightImage (layout.h) follows
  uint32_t user;            // the user id that it takes before it looks at its guest; 0: it keeps its own
  uint32_t has_bell;     // kRegion: an eventfd, or an event channel (the port), in the client socket's place
  uint64_t cache_bytes;  // the quota of its scope's folder of compiled kernels; 0: it need not check it now
};
static_assert(sizeof(WorkerAssignment) == 56);

// With the same descriptors. A session of kTcp or kTls that waits for its guest for so long after its connection was lost (0: it does
// not wait), and of which both sides may compress bulk bytes (1) or not (0).
struct WorkerLongAssignment {
  WorkerAssignment assignment;
  uint32_t grace_s;
  uint32_t compresses;  // 0 for a worker without kCompresses, which passes it over
};
static_assert(sizeof(WorkerLongAssignment) == 64);

// These two have sizes that no WorkerPeers has.
struct WorkerLink {
  uint32_t waits;  // 1: the connection was lost. 0: the session goes on over another one
  uint32_t reserved[4];
};
static_assert(sizeof(WorkerLink) == 20);
// Its descriptor is as the first of the session's assignment, of the guest's next connection.
struct WorkerResume {
  uint32_t received
      [2];  // how much the guest has received (ResumeRequest::received): the lower half, the upper half
  uint32_t reserved[3];
};
static_assert(sizeof(WorkerResume) == 20);

struct WorkerUsage {
  uint64_t calls;       // records executed
  uint64_t violations;  // malformed records seen (the session ends at the first)
  uint64_t errors = 0;  // calls that failed, CUDA_ERROR_NOT_READY not among them
  // What the session asked to be copied between memory of the host and of a device, by calls that name one size.
  uint64_t bytes_to_device = 0;
  uint64_t bytes_to_host = 0;
};
static_assert(sizeof(WorkerUsage) == 40);

// What processes of one VM share (host_backend/daemon/sharing/shared_objects.h).
enum class SharedKind : uint32_t {
  kIpcMemory = 1,
  kIpcEvent,
  kMemory,
  kFabricMemory,
  kPool,
  kFabricPool,
  kPoolPointer
};
enum class SharingAction : uint32_t {
  kPut = 1,  // kind, bytes or descriptor -> token
  kGet,      // kind, token -> bytes or descriptor
  kDrop,     // kind, token of the worker's own: the object cannot be asked for any more
  // Images (host_backend/daemon/sharing/image_cache.h); `bytes`: an ImageRequest. kForbidden: none is kept.
  kPutImage,  // descriptor of a sealed memory file: the image and kImagePadding zeros
  kGetImage,  // -> descriptor
};
enum class SharingResult : uint32_t { kOk = 0, kUnknown = 1, kFull = 2, kForbidden = 3 };

inline constexpr uint32_t kTokenBytes = 16;
inline constexpr uint32_t kSharedBytes = 64;  // the size of the driver's handles for other processes

struct SharingRequest {
  SharingAction action;
  SharedKind kind;
  uint32_t number;  // of this worker's request, which the answer repeats; 0: of a worker that numbers none
  uint32_t has_descriptor;
  uint8_t token[kTokenBytes];
  uint8_t bytes[kSharedBytes];
};
static_assert(sizeof(SharingRequest) == 96);

struct ImageRequest {
  uint8_t hash[32];
  uint64_t bytes;
};
static_assert(sizeof(ImageRequest) <= kSharedBytes);
inline constexpr uint64_t kImagePadding = 64;

struct SharingReply {
  SharingResult result;
  uint32_t has_descriptor;
  uint64_t number;  // of the request
  uint8_t token[kTokenBytes];
  uint8_t bytes[kSharedBytes];
};
static_assert(sizeof(SharingReply) == 96);

// cuCheckpointProcess* of another process of the worker's scope. The worker reaches no other process, so the
// daemon has each call made by a checkpointer, a process that makes it and ends:
//   causeway-worker --control-fd N --checkpoint PID --driver LIBRARY
//   daemon -> target        WorkerReach
//   daemon -> checkpointer  CheckpointOrder, with 0 in the place of guest_pid
//   checkpointer -> daemon  CheckpointAnswer
enum class CheckpointAction : uint32_t { kGetState = 1, kLock, kCheckpoint, kRestore, kUnlock };
inline constexpr uint32_t kMaxGpuPairs = 64;

struct GpuPair {
  uint8_t from[16], to[16];
};

// What an action does not use is zero.
struct CheckpointOrder {
  CheckpointAction action;
  uint32_t guest_pid;
  uint32_t timeout_ms;  // kLock; 0: none
  uint32_t pairs;       // kRestore
  uint64_t again;       // 1: the order that the worker waits for, sent once more to the next daemon
  GpuPair pair[kMaxGpuPairs];
};
static_assert(sizeof(CheckpointOrder) == 24 + 32 * kMaxGpuPairs);

struct CheckpointAnswer {
  uint32_t result;  // CUresult
  uint32_t state;   // kGetState: CUprocessState
  uint64_t again;   // 1: no answer, but another daemon, which does not know what the one before it had read
};
static_assert(sizeof(CheckpointAnswer) == 16);

// daemon -> worker: whether processes of the worker's own user may look into it now, which a checkpointer
// must. At other times none may, so that a checkpointer reaches no worker but its target. The worker answers
// with WorkerReachable and the same number as soon as they may.
struct WorkerReach {
  uint32_t number;  // 0: they may not any more; no answer
  uint32_t reserved;
};
static_assert(sizeof(WorkerReach) == 8);
struct WorkerReachable {
  uint32_t number;
  uint32_t reserved[2];
};
static_assert(sizeof(WorkerReachable) == 12);

struct WorkerQuery {
  static constexpr uint64_t kPeers = 1;
  uint64_t what;
};
static_assert(sizeof(WorkerQuery) == 8);

// One CUDA session of the scope that the worker serves.
struct WorkerPeer {
  uint32_t guest_pid;
  uint32_t worker_pid;
};
inline constexpr uint32_t kMaxPeers = 1024;

// Only `count` peers are sent.
struct WorkerPeers {
  uint32_t count;
  uint32_t reserved;
  WorkerPeer peer[kMaxPeers];
};
static_assert(sizeof(WorkerPeers) == 8 + 8 * kMaxPeers);

}  // namespace causeway
