// SPDX-License-Identifier: Apache-2.0
// Operations that lanes of a warp do together: shfl, vote, match, redux, elect, bar.warp, activemask.
//
// A lane that reaches one parks. When every lane named in its mask that has not exited is parked at an
// operation of the same kind with the same mask, the exchange happens and all go on.
#include <algorithm>
#include <bit>

#include "tests/software_gpu/interpreter_block.h"
#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {
namespace {

enum ShuffleMode : uint8_t { kUp, kDown, kButterfly, kIndex };
enum VoteMode : uint8_t { kAll, kAny, kUniform, kBallot };
enum MatchMode : uint8_t { kMatchAny, kMatchAll };
enum ReduceMode : uint8_t { kAdd, kMinSigned, kMaxSigned, kMin, kMax, kAnd, kOr, kXor };

// The lanes that take part in an exchange.
struct Group {
  Thread* lanes[kWarpLanes] = {};  // null: not part
  uint32_t mask = 0;

  template <class F>
  void ForEach(F visit) {
    for (Thread* lane : lanes) {
      if (lane != nullptr) visit(*lane, *lane->wait_op);
    }
  }
};

// Op::imm holds the slot of the member mask.
template <WarpKind kKind>
Step Park(Thread& thread, const Op& op) {
  thread.wait_kind = kKind;
  thread.wait_mask =
      kKind == WarpKind::kActiveMask ? 0 : Read<uint32_t>(thread, static_cast<uint32_t>(op.imm));
  thread.wait_op = &op;
  thread.state = ThreadState::kWarp;
  return Step::kPark;
}

void Shuffle(Group& group) {
  uint32_t values[kWarpLanes] = {};
  group.ForEach([&](Thread& lane, const Op& op) { values[lane.lane] = Read<uint32_t>(lane, op.a); });
  group.ForEach([&](Thread& lane, const Op& op) {
    const int own = static_cast<int>(lane.lane);
    const int distance = static_cast<int>(Read<uint32_t>(lane, op.b) & 31);
    const uint32_t control = Read<uint32_t>(lane, op.c);
    const int segment = static_cast<int>(control >> 8 & 31);
    const int limit = (own & segment) | (static_cast<int>(control & 31) & ~segment);
    int from = own;
    bool valid = false;
    switch (op.mode) {
      case kUp:
        from = own - distance;
        valid = from >= limit;
        break;
      case kDown:
        from = own + distance;
        valid = from <= limit;
        break;
      case kButterfly:
        from = own ^ distance;
        valid = from <= limit;
        break;
      default:
        from = (own & segment) | (distance & ~segment);
        valid = from <= limit;
        break;
    }
    if (!valid) from = own;
    // Reading a lane that takes no part is undefined; the own value is as good as any.
    const bool present = from >= 0 && from < 32 && group.lanes[from] != nullptr;
    Write<uint32_t>(lane, op.d, values[present ? from : own]);
    if (op.e != kNoSlot) lane.regs[op.e] = valid;
  });
}

void Vote(Group& group) {
  uint32_t ballot = 0;
  group.ForEach([&](Thread& lane, const Op& op) { ballot |= (lane.regs[op.a] & 1u) << lane.lane; });
  group.ForEach([&](Thread& lane, const Op& op) {
    uint64_t result = ballot;
    if (op.mode == kAll) result = ballot == group.mask;
    if (op.mode == kAny) result = ballot != 0;
    if (op.mode == kUniform) result = ballot == 0 || ballot == group.mask;
    lane.regs[op.d] = result;
  });
}

void Match(Group& group) {
  uint64_t values[kWarpLanes] = {};
  group.ForEach([&](Thread& lane, const Op& op) {
    values[lane.lane] = op.mode2 == 8 ? lane.regs[op.a] : Read<uint32_t>(lane, op.a);
  });
  group.ForEach([&](Thread& lane, const Op& op) {
    uint32_t same = 0;
    group.ForEach([&](Thread& other, const Op&) {
      if (values[other.lane] == values[lane.lane]) same |= 1u << other.lane;
    });
    const bool all = same == group.mask;
    Write<uint32_t>(lane, op.d, op.mode == kMatchAny || all ? same : 0);
    if (op.e != kNoSlot) lane.regs[op.e] = all;
  });
}

uint32_t Combine(uint8_t mode, uint32_t x, uint32_t y) {
  const auto sx = static_cast<int32_t>(x);
  const auto sy = static_cast<int32_t>(y);
  switch (mode) {
    case kAdd:
      return x + y;
    case kMinSigned:
      return static_cast<uint32_t>(std::min(sx, sy));
    case kMaxSigned:
      return static_cast<uint32_t>(std::max(sx, sy));
    case kMin:
      return std::min(x, y);
    case kMax:
      return std::max(x, y);
    case kAnd:
      return x & y;
    case kOr:
      return x | y;
    default:
      return x ^ y;
  }
}

void Reduce(Group& group) {
  bool first = true;
  uint32_t result = 0;
  group.ForEach([&](Thread& lane, const Op& op) {
    const uint32_t value = Read<uint32_t>(lane, op.a);
    result = first ? value : Combine(op.mode, result, value);
    first = false;
  });
  group.ForEach([&](Thread& lane, const Op& op) { Write<uint32_t>(lane, op.d, result); });
}

void Elect(Group& group) {
  const uint32_t leader = static_cast<uint32_t>(std::countr_zero(group.mask));
  group.ForEach([&](Thread& lane, const Op& op) {
    Write<uint32_t>(lane, op.d, leader);
    lane.regs[op.e] = lane.lane == leader;
  });
}

void Exchange(WarpKind kind, Group& group) {
  switch (kind) {
    case WarpKind::kShuffle:
      Shuffle(group);
      break;
    case WarpKind::kVote:
      Vote(group);
      break;
    case WarpKind::kMatch:
      Match(group);
      break;
    case WarpKind::kReduce:
      Reduce(group);
      break;
    case WarpKind::kElect:
      Elect(group);
      break;
    default:
      break;
  }
  group.ForEach([](Thread& lane, const Op&) { lane.state = ThreadState::kRunnable; });
}

// True when all lanes that `leader` waits for have arrived; they are then in `group`.
bool Gather(Block& block, uint32_t first, uint32_t last, const Thread& leader, Group& group) {
  const uint32_t wanted = leader.wait_mask | 1u << leader.lane;
  for (uint32_t i = first; i < last; ++i) {
    Thread& thread = block.threads[i];
    if ((wanted >> thread.lane & 1) == 0 || thread.state == ThreadState::kExited) continue;
    if (thread.state != ThreadState::kWarp || thread.wait_kind != leader.wait_kind ||
        thread.wait_mask != leader.wait_mask) {
      return false;
    }
    group.lanes[thread.lane] = &thread;
    group.mask |= 1u << thread.lane;
  }
  return true;
}

void LowerShuffle(Lowering& lowering) {
  if (!lowering.Take("sync")) lowering.Unsupported();
  Op op;
  if (lowering.Take("up")) {
    op.mode = kUp;
  } else if (lowering.Take("down")) {
    op.mode = kDown;
  } else if (lowering.Take("bfly")) {
    op.mode = kButterfly;
  } else if (lowering.Take("idx")) {
    op.mode = kIndex;
  } else {
    lowering.Unsupported();
  }
  if (lowering.TakeType() != Type::kB32) lowering.Unsupported();
  const Operand& result = lowering.operand(0);
  const bool pair = result.kind == OperandKind::kPair;
  op.d = lowering.DestinationOf(pair ? result.elements[0] : result);
  if (pair) op.e = lowering.DestinationOf(result.elements[1]);
  op.a = lowering.Source(1, Type::kU32);
  op.b = lowering.Source(2, Type::kU32);
  op.c = lowering.Source(3, Type::kU32);
  op.imm = lowering.Source(4, Type::kU32);
  lowering.Emit(Park<WarpKind::kShuffle>, op);
}

// vote.sync.{all, any, uni}.pred and vote.sync.ballot.b32, the modifiers in either order.
void LowerVote(Lowering& lowering) {
  if (!lowering.Take("sync")) lowering.Unsupported();
  Op op;
  op.mode = kBallot;
  if (lowering.Take("all")) op.mode = kAll;
  if (lowering.Take("any")) op.mode = kAny;
  if (lowering.Take("uni")) op.mode = kUniform;
  lowering.Take("ballot");
  const Type type = lowering.TakeType();
  if ((op.mode == kBallot) != (type == Type::kB32)) lowering.Unsupported();
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, Type::kPred);
  op.imm = lowering.Source(2, Type::kU32);
  lowering.Emit(Park<WarpKind::kVote>, op);
}

void LowerMatch(Lowering& lowering) {
  Op op;
  op.mode = lowering.Take("all") ? kMatchAll : kMatchAny;
  lowering.Take("any");
  if (!lowering.Take("sync")) lowering.Unsupported();
  const Type type = lowering.TakeType();
  op.mode2 = static_cast<uint8_t>(ptx::Bytes(type));
  const Operand& result = lowering.operand(0);
  const bool pair = result.kind == OperandKind::kPair;
  op.d = lowering.DestinationOf(pair ? result.elements[0] : result);
  if (pair) op.e = lowering.DestinationOf(result.elements[1]);
  op.a = lowering.Source(1, type);
  op.imm = lowering.Source(2, Type::kU32);
  lowering.Emit(Park<WarpKind::kMatch>, op);
}

void LowerReduce(Lowering& lowering) {
  if (!lowering.Take("sync")) lowering.Unsupported();
  const std::string_view name = lowering.FirstModifier();
  lowering.Take(name);
  const Type type = lowering.TakeType();
  if (ptx::IsFloat(type) || ptx::Bytes(type) != 4) lowering.Unsupported();
  Op op;
  if (name == "add") {
    op.mode = kAdd;
  } else if (name == "min") {
    op.mode = ptx::IsSigned(type) ? kMinSigned : kMin;
  } else if (name == "max") {
    op.mode = ptx::IsSigned(type) ? kMaxSigned : kMax;
  } else if (name == "and") {
    op.mode = kAnd;
  } else if (name == "or") {
    op.mode = kOr;
  } else if (name == "xor") {
    op.mode = kXor;
  } else {
    lowering.Unsupported();
  }
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.imm = lowering.Source(2, Type::kU32);
  lowering.Emit(Park<WarpKind::kReduce>, op);
}

void LowerElect(Lowering& lowering) {
  if (!lowering.Take("sync")) lowering.Unsupported();
  const Operand& result = lowering.operand(0);
  if (result.kind != OperandKind::kPair) lowering.Unsupported();
  Op op;
  op.d = lowering.DestinationOf(result.elements[0]);
  op.e = lowering.DestinationOf(result.elements[1]);
  op.imm = lowering.Source(1, Type::kU32);
  lowering.Emit(Park<WarpKind::kElect>, op);
}

void LowerActiveMask(Lowering& lowering) {
  if (lowering.TakeType() != Type::kB32) lowering.Unsupported();
  Op op;
  op.d = lowering.Destination(0);
  lowering.Emit(Park<WarpKind::kActiveMask>, op);
}

}  // namespace

bool ResolveWarp(Block& block, uint32_t first, uint32_t last) {
  bool any = false;
  for (uint32_t i = first; i < last; ++i) {
    const Thread& thread = block.threads[i];
    if (thread.state != ThreadState::kWarp || thread.wait_kind == WarpKind::kActiveMask) continue;
    Group group;
    if (!Gather(block, first, last, thread, group)) continue;
    Exchange(thread.wait_kind, group);
    any = true;
  }
  return any;
}

bool ResolveActiveMask(Block& block, uint32_t first, uint32_t last) {
  const Op* place = nullptr;
  Group group;
  for (uint32_t i = first; i < last; ++i) {
    Thread& thread = block.threads[i];
    if (thread.state != ThreadState::kWarp || thread.wait_kind != WarpKind::kActiveMask) continue;
    if (place == nullptr) place = thread.wait_op;
    if (thread.wait_op != place) continue;
    group.lanes[thread.lane] = &thread;
    group.mask |= 1u << thread.lane;
  }
  if (place == nullptr) return false;
  group.ForEach([&](Thread& lane, const Op& op) {
    Write<uint32_t>(lane, op.d, group.mask);
    lane.state = ThreadState::kRunnable;
  });
  return true;
}

void LowerWarpBarrier(Lowering& lowering) {
  lowering.Take("warp");
  if (!lowering.Take("sync")) lowering.Unsupported();
  Op op;
  op.imm = lowering.Source(0, Type::kU32);
  lowering.Emit(Park<WarpKind::kSync>, op);
}

void AddWarpInstructions(LowerTable& table) {
  table["shfl"] = LowerShuffle;
  table["vote"] = LowerVote;
  table["match"] = LowerMatch;
  table["redux"] = LowerReduce;
  table["elect"] = LowerElect;
  table["activemask"] = LowerActiveMask;
}

}  // namespace causeway::software_gpu
