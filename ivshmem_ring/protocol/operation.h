// SPDX-License-Identifier: Apache-2.0
// Opcodes, and what each operation means beyond its parameters. A row (ivshmem_ring/operations.def,
// calls.def) states its traits where it states its parameters, so that guest and host ask TraitsOf() and keep
// no lists of calls of their own; a row without traits does not compile.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace causeway {

// Every message starts with an opcode: the session's own first, then the driver's calls in the order of rows.
enum class Op : uint16_t {
#define OPERATION(name, ...) name,
#include "ivshmem_ring/operations.def"
  kFirstRow = 32,
#define CALL(fn, ...) fn,
#define GUEST CALL
#define CUSTOM CALL
#include "ivshmem_ring/calls.def"
  kCount
};

// What one operation does, as one bit of its effect and any of the others.
class Traits {
 public:
  constexpr explicit Traits(uint32_t bits) : bits_(bits) {}
  friend constexpr Traits operator|(Traits a, Traits b) { return Traits(a.bits_ | b.bits_); }
  constexpr bool Has(Traits trait) const { return (bits_ & trait.bits_) != 0; }
  constexpr uint32_t bits() const { return bits_; }

 private:
  uint32_t bits_;
};

namespace traits {

// The effect: what an operation does to the work of the device. Each row has exactly one.
//
// It may start work, in any stream, that goes on after its answer. A row states this unless its operation is
// known to do less.
inline constexpr Traits kMayWork{1u << 0};
// It starts nothing, waits for nothing and touches no memory that a program can see.
inline constexpr Traits kNoWork{1u << 1};
// It may load code: work in no stream, which is over when the answer comes.
inline constexpr Traits kLoadsCode{1u << 2};
// A copy in a stream that is over when its answer comes, as is all that the stream had before it.
inline constexpr Traits kCopies{1u << 3};
// Parts of a copy in a stream. Its thread waits for each part, so that none is left when its call returns.
inline constexpr Traits kCopiesInParts{1u << 4};
// It starts nothing, and its success may tell the program that work is over which was sent before it.
inline constexpr Traits kAwaits{1u << 5};
inline constexpr Traits kEffects = kMayWork | kNoWork | kLoadsCode | kCopies | kCopiesInParts | kAwaits;

// It works in the one stream that its record names, changes nothing that a record without a stream or a
// waiting call may ask for, and its handler runs on any thread: the host may execute it beside other streams.
inline constexpr Traits kInStream{1u << 6};
// In a blocking stream it begins after what the legacy stream had when it was sent.
inline constexpr Traits kAfterLegacyStream{1u << 7};
// It records the event that it names; it records events whose streams the guest does not see.
inline constexpr Traits kRecordsEvent{1u << 8};
inline constexpr Traits kRecordsOtherEvents{1u << 9};
// The driver has forgotten the event that it names when it is done, so that another event may stand for it
// meanwhile.
inline constexpr Traits kNamesEventOnce{1u << 10};
// Its bytes may come in several records, each with a staging buffer (kStaged in the record's flags).
inline constexpr Traits kInPieces{1u << 11};
// One of the driver's synchronisation points, after which the guest prints what kernels have printed.
inline constexpr Traits kPrintsOutput{1u << 12};
// It gives the GPU's processors work, for which it waits until its VM may (host_backend/worker/gate/gate.h).
// Copies between host and device are the copy engines' work, which is beside that of others.
inline constexpr Traits kSubmits{1u << 13};
// What the driver looks at before it looks at a call's arguments, as was seen with version 580; of most calls it is not known, or makes no
// difference. The guest looks at it when the answer is INVALID_VALUE or NOT_SUPPORTED, which may have been found before the driver was
// called (guest_lib/stream/remote.h). The traits below stand, one after the other, for: a current context; the capture of the call's
// stream; whether a capture forbids the call (guest_lib/stream/capture_rule.h); whether the first object among the parameters
// is null (INVALID_HANDLE).
inline constexpr Traits kContextFirst{1u << 14};
inline constexpr Traits kCaptureFirst{1u << 15};
inline constexpr Traits kForbiddenFirst{1u << 16};
inline constexpr Traits kObjectFirst{1u << 17};

constexpr Traits OfRow(Traits row) {
  return std::has_single_bit(row.bits() & kEffects.bits()) ? row : throw "a row states one effect";
}

inline constexpr auto kTable = [] {
  std::array<uint32_t, static_cast<size_t>(Op::kCount)> table{};
#define OPERATION(name, text, ...) table[static_cast<size_t>(Op::name)] = OfRow(__VA_ARGS__).bits();
#include "ivshmem_ring/operations.def"
#define CALL(fn, meaning, ...) table[static_cast<size_t>(Op::fn)] = OfRow(meaning).bits();
#define GUEST CALL
#define CUSTOM CALL
#include "ivshmem_ring/calls.def"
  return table;
}();

}  // namespace traits

// The traits of any number: an opcode that a peer made up has none.
constexpr Traits TraitsOf(Op op) {
  const auto at = static_cast<size_t>(op);
  return Traits(at < traits::kTable.size() ? traits::kTable[at] : 0);
}

// Whether all that the operation started is over when its answer comes.
constexpr bool LeavesNoWork(Op op) {
  return !TraitsOf(op).Has(traits::kMayWork);
}

// For logs and traces: the driver's or NVML's function, or words for a message of the session's own. Any
// number is allowed.
const char* OpName(uint16_t op);

}  // namespace causeway
