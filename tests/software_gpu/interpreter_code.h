// SPDX-License-Identifier: Apache-2.0
// What the interpreter executes: operations decoded once, and the state of threads and blocks.
//
// A thread's registers are 8-byte slots of its current frame; constants and intermediate values are slots
// too, so every operand of an operation is a slot index. A value narrower than its slot is extended to 64
// bits by the signedness of its type when written, and readers look only at the low bytes they need.
#pragma once
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tests/software_gpu/interpreter.h"

namespace causeway::software_gpu {

struct Thread;
struct Block;
struct Op;
struct FunctionCode;

enum class Step : uint8_t {
  kNext,   // go on at Thread::pc
  kPark,   // wait: Thread::state says for what
  kExit,   // the thread has ended
  kFault,  // the launch has ended
};

using Handler = Step (*)(Thread&, const Op&);

inline constexpr uint32_t kNoSlot = ~0u;

struct Op {
  Handler handler = nullptr;
  uint32_t d = kNoSlot;          // destination slot
  uint32_t a = 0, b = 0, c = 0;  // source slots
  uint32_t e = kNoSlot;          // second destination, or one more source
  uint32_t guard = kNoSlot;      // predicate that decides whether the operation runs
  bool guard_negated = false;
  uint8_t mode = 0;  // small parameters of the handler's own
  uint8_t mode2 = 0;
  int line = 0;                       // in the PTX text
  int64_t imm = 0;                    // address offset, constant
  const void* extra = nullptr;        // branch target, call site or slot list, as the handler knows
  const std::string* text = nullptr;  // opcode as written, for fault messages
};

struct FrameBytes {
  uint32_t offset = 0;  // from the frame's start
  uint32_t bytes = 0;
};

// `arguments` points at the values in the caller's frame.
using SystemCall = Step (*)(Thread&, const Op&, const std::vector<std::byte*>& arguments, std::byte* result);

struct CallSite {
  const FunctionCode* callee = nullptr;  // null: indirect
  SystemCall system_call = nullptr;
  std::vector<FrameBytes> arguments;  // in the caller's frame
  std::vector<FrameBytes> results;
};

struct GlobalRelocation {
  uint32_t slot = 0;
  uint32_t variable = 0;  // index in Program::variables()
  int64_t addend = 0;
};

using SlotList = std::vector<uint32_t>;

struct FunctionCode {
  std::string name;
  bool entry = false;
  std::vector<Op> ops;
  std::vector<uint64_t> frame;  // slots at the function's start: constants, zero for the rest
  std::vector<FrameBytes> parameters, results;
  uint32_t local_bytes = 0;  // of its own frame, multiple of 16
  uint32_t static_shared_bytes = 0;
  bool reserved_shared = false;  // reads %reserved_smem_...
  bool calls = false;            // anything but system calls
  std::vector<GlobalRelocation> relocations;
  std::deque<SlotList> slot_lists;
  std::deque<CallSite> call_sites;
  std::deque<std::vector<const Op*>> branch_tables;
  std::deque<std::string> texts;
};

enum class ThreadState : uint8_t { kRunnable, kWarp, kBarrier, kExited };

// Operations that lanes of a warp do together. Lanes meet at operations of the same kind and mask.
enum class WarpKind : uint8_t { kShuffle, kVote, kMatch, kReduce, kSync, kElect, kActiveMask };

struct CallRecord {
  const Op* return_to = nullptr;
  const FunctionCode* caller = nullptr;
  const CallSite* site = nullptr;
  size_t frame_base = 0;  // the caller's
  uint32_t local_base = 0;
};

struct Thread {
  uint64_t* regs = nullptr;  // current frame: registers.data() + frame_base
  const Op* pc = nullptr;
  const FunctionCode* function = nullptr;
  Block* block = nullptr;
  std::byte* local =
      nullptr;  // window of local memory, local_window bytes; .local addresses are offsets in it
  uint32_t local_window = 0;
  uint32_t local_base = 0;  // of the current frame
  size_t frame_base = 0;
  Dim3 index;
  uint32_t linear = 0, lane = 0, warp = 0;
  ThreadState state = ThreadState::kRunnable;
  bool carry = false;    // CC.CF
  bool used_up = false;  // its last turn ended with the instruction budget
  WarpKind wait_kind = WarpKind::kSync;
  uint32_t wait_mask = 0;
  const Op* wait_op = nullptr;
  uint32_t barrier = 0;
  std::vector<uint64_t> registers;
  std::vector<CallRecord> calls;
};

struct Barrier {
  uint32_t arrived = 0;     // threads, waiting or not
  uint32_t expected = 0;    // 0: all threads that have not exited
  uint32_t true_count = 0;  // of bar.red: arrived threads whose predicate holds
  bool in_use = false;
};

inline constexpr uint32_t kReservedSharedBytes = 1024;  // behind all other shared memory, if used at all
inline constexpr uint32_t kBarriers = 16;
inline constexpr uint32_t kWarpLanes = 32;

// What cooperative_groups::grid_group keeps in the workspace that %envreg1 and %envreg2 name.
struct GridWorkspace {
  uint32_t bytes = sizeof(GridWorkspace);
  uint32_t barrier = 0;
};

// Memory of malloc() in kernels; it lives as long as the program, as natively. Limited like the default
// device heap. Locked, because launches of one program may run on several host threads.
class DeviceHeap {
 public:
  void* Allocate(uint64_t bytes);  // null when the heap is full
  bool Free(uint64_t address);     // false when nothing was allocated there
  bool Contains(uint64_t address, uint32_t bytes);

 private:
  static constexpr uint64_t kBytes = 8ull << 20;
  std::mutex mutex_;
  uint64_t used_ = 0;
  std::map<uint64_t, std::vector<std::byte>> blocks_;
};

struct LaunchState {
  const Kernel* kernel = nullptr;
  const FunctionCode* entry = nullptr;
  const Launch* launch = nullptr;
  const AddressSpace* memory = nullptr;
  const std::function<void(bool, std::string_view)>* print = nullptr;
  const std::deque<FunctionCode>* functions = nullptr;
  DeviceHeap* heap = nullptr;
  std::vector<std::byte> parameters;
  GridWorkspace workspace;
  uint32_t local_window = 0;
  uint32_t static_shared_bytes = 0;
  bool reserved_shared = false;
  Fault fault;
};

struct Block {
  LaunchState* launch = nullptr;
  Dim3 index;
  std::byte* shared = nullptr;
  uint32_t shared_bytes = 0;  // all of it
  uint32_t reserved_offset = 0;
  uint32_t live = 0;  // threads that have not exited
  Barrier barriers[kBarriers];
  std::vector<Thread> threads;
};

template <class T>
T Read(const Thread& thread, uint32_t slot) {
  T value;
  std::memcpy(static_cast<void*>(&value), &thread.regs[slot], sizeof value);
  return value;
}

template <class T>
void Write(Thread& thread, uint32_t slot, T value) {
  if constexpr (std::is_integral_v<T>) {
    thread.regs[slot] = static_cast<uint64_t>(value);
  } else {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    thread.regs[slot] = bits;
  }
}

// Ends the launch with `cuda_error`; `what` is a clause such as "trap was executed".
Step RaiseFault(Thread& thread, const Op& op, int cuda_error, const std::string& what);

// Addresses of memory that the thread may access with `bytes` bytes, a power of two; null after a fault
// was raised. `address` is relative to the window for shared and local memory, else absolute.
std::byte* GenericMemory(Thread& thread, const Op& op, uint64_t address, uint32_t bytes, Access access);
std::byte* GlobalMemory(Thread& thread, const Op& op, uint64_t address, uint32_t bytes, Access access);
std::byte* SharedMemory(Thread& thread, const Op& op, uint64_t address, uint32_t bytes);
std::byte* LocalMemory(Thread& thread, const Op& op, uint64_t address, uint32_t bytes);

}  // namespace causeway::software_gpu
