// SPDX-License-Identifier: Apache-2.0
// tex, suld.b and sust.b on texture and surface objects. What an object is, the driver knows.
#include <array>

#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {
namespace {

// Op::mode: dimensions, and these.
constexpr uint8_t kLayered = 4;
constexpr uint8_t kIntegers = 8;    // coordinates
constexpr uint8_t kReference = 16;  // Op::a is the address of the object's handle
// Op::a: the object. Op::extra: slots of coordinates, Op::mode2 of them, then of elements. Op::e: slot of the
// level, or kNoSlot.

struct Geometry {
  std::string_view name;
  uint8_t mode;
};
constexpr Geometry kGeometries[] = {
    {"1d", 1}, {"2d", 2}, {"3d", 3}, {"a1d", 1 | kLayered}, {"a2d", 2 | kLayered}};

uint8_t TakeGeometry(Lowering& lowering) {
  for (const Geometry& geometry : kGeometries) {
    if (lowering.Take(geometry.name)) return geometry.mode;
  }
  lowering.Unsupported();
}

// Reads [object, {coordinates}]; what the geometry does not use is left out.
SlotList TakeCoordinates(Lowering& lowering, size_t index, Type type, Op* op) {
  const Operand& operand = lowering.operand(index);
  if (operand.kind != OperandKind::kAddress || operand.elements.size() != 2) {
    lowering.Fail("an object and its coordinates are missing");
  }
  if (operand.elements[0].kind == OperandKind::kSymbol) op->mode |= kReference;
  op->a = lowering.SourceOf(operand.elements[0], Type::kU64);
  const size_t wanted = (op->mode & 3u) + ((op->mode & kLayered) != 0 ? 1 : 0);
  const Operand& given = operand.elements[1];
  SlotList slots;
  if (given.kind != OperandKind::kVector) {
    slots.push_back(lowering.SourceOf(given, type));
  } else {
    for (const Operand& element : given.elements) {
      if (slots.size() < wanted) slots.push_back(lowering.SourceOf(element, type));
    }
  }
  if (slots.size() != wanted) lowering.Fail("coordinates are missing");
  op->mode2 = static_cast<uint8_t>(wanted);
  return slots;
}

// False after a fault.
bool ObjectOf(Thread& thread, const Op& op, uint64_t* object) {
  *object = thread.regs[op.a];
  if ((op.mode & kReference) == 0) return true;
  const std::byte* from = GenericMemory(thread, op, *object, sizeof *object, Access::kRead);
  if (from != nullptr) std::memcpy(object, from, sizeof *object);
  return from != nullptr;
}

Step ReadTexture(Thread& thread, const Op& op) {
  const SlotList& slots = *static_cast<const SlotList*>(op.extra);
  TextureRead read;
  if (!ObjectOf(thread, op, &read.texture)) return Step::kFault;
  read.dimensions = op.mode & 3u;
  read.layered = (op.mode & kLayered) != 0;
  read.integers = (op.mode & kIntegers) != 0;
  size_t next = 0;
  if (read.layered) read.layer = Read<uint32_t>(thread, slots[next++]);
  for (uint32_t i = 0; i < read.dimensions; ++i, ++next) {
    if (read.integers) {
      read.index[i] = Read<int32_t>(thread, slots[next]);
    } else {
      read.at[i] = Read<float>(thread, slots[next]);
    }
  }
  if (op.e != kNoSlot) read.level = Read<float>(thread, op.e);
  std::array<uint32_t, 4> texel{};
  if (!thread.block->launch->memory->ReadTexture(read, texel.data())) {
    return RaiseFault(thread, op, 719, "the texture object or its memory is not alive");
  }
  for (size_t i = 0; i < 4; ++i) {
    const bool sign = op.imm != 0 && (texel[i] & 0x80000000u) != 0;
    thread.regs[slots[next + i]] = texel[i] | (sign ? 0xffffffff00000000u : 0);
  }
  return Step::kNext;
}

void LowerTexture(Lowering& lowering) {
  const bool level = lowering.Take("level");
  Op op;
  op.mode = TakeGeometry(lowering);
  if (!lowering.Take("v4")) lowering.Unsupported();
  const Type type = lowering.TakeType();
  const Type coordinates = lowering.TakeType();
  if (ptx::Bytes(type) != 4) lowering.Unsupported();
  if (coordinates == Type::kS32) {
    op.mode |= kIntegers;
  } else if (coordinates != Type::kF32) {
    lowering.Unsupported();
  }
  op.imm = type == Type::kS32;
  SlotList slots = TakeCoordinates(lowering, 1, coordinates, &op);
  const Operand& texel = lowering.operand(0);
  if (texel.kind != OperandKind::kVector || texel.elements.size() != 4) {
    lowering.Fail("a vector has the wrong size");
  }
  for (const Operand& element : texel.elements) slots.push_back(lowering.DestinationOf(element));
  if (level) op.e = lowering.Source(2, Type::kF32);
  op.extra = lowering.KeepSlots(std::move(slots));
  lowering.Emit(ReadTexture, op);
}

// Where a surface access goes. Op::imm: bytes of one element, negative when .trap ends the launch outside.
std::byte* SurfaceElement(Thread& thread, const Op& op, uint32_t count, bool* trapped) {
  const SlotList& slots = *static_cast<const SlotList*>(op.extra);
  const bool traps = op.imm < 0;
  SurfaceAccess access;
  *trapped = !ObjectOf(thread, op, &access.surface);
  if (*trapped) return nullptr;
  access.dimensions = op.mode & 3u;
  access.layered = (op.mode & kLayered) != 0;
  access.bytes = static_cast<uint32_t>(traps ? -op.imm : op.imm) * count;
  size_t next = 0;
  if (access.layered) access.layer = Read<uint32_t>(thread, slots[next++]);
  for (uint32_t i = 0; i < access.dimensions; ++i) access.index[i] = Read<int32_t>(thread, slots[next++]);
  std::byte* element = thread.block->launch->memory->FindSurfaceElement(access);
  *trapped = element == nullptr && traps;
  if (*trapped) RaiseFault(thread, op, 719, "a surface access lies outside of its array");
  return element;
}

template <bool store>
Step AccessSurface(Thread& thread, const Op& op) {
  const SlotList& slots = *static_cast<const SlotList*>(op.extra);
  const auto count = static_cast<uint32_t>(slots.size() - op.mode2);
  const auto bytes = static_cast<uint32_t>(op.imm < 0 ? -op.imm : op.imm);
  bool trapped = false;
  std::byte* element = SurfaceElement(thread, op, count, &trapped);
  if (trapped) return Step::kFault;
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t& reg = thread.regs[slots[op.mode2 + i]];
    if constexpr (store) {
      if (element != nullptr) std::memcpy(element + i * bytes, &reg, bytes);
    } else {
      reg = 0;
      if (element != nullptr) std::memcpy(&reg, element + i * bytes, bytes);
    }
  }
  return Step::kNext;
}

void LowerSurface(Lowering& lowering, bool store) {
  if (!lowering.Take("b")) lowering.Unsupported();
  Op op;
  op.mode = TakeGeometry(lowering);
  lowering.TakeOneOf({"ca", "cg", "cs", "cv", "wb", "wt"});
  const size_t width = lowering.Take("v2") ? 2 : lowering.Take("v4") ? 4 : 1;
  const Type type = lowering.TakeType();
  const bool traps = lowering.Take("trap");
  if (!traps && !lowering.Take("zero")) lowering.Unsupported();
  op.imm = traps ? -static_cast<int64_t>(ptx::Bytes(type)) : ptx::Bytes(type);
  SlotList slots = TakeCoordinates(lowering, store ? 0 : 1, Type::kS32, &op);
  const Operand& value = lowering.operand(store ? 1 : 0);
  const auto add = [&](const Operand& operand) {
    slots.push_back(store ? lowering.SourceOf(operand, type) : lowering.DestinationOf(operand));
  };
  if (value.kind == OperandKind::kVector) {
    for (const Operand& element : value.elements) add(element);
  } else {
    add(value);
  }
  if (slots.size() != op.mode2 + width) lowering.Fail("a vector has the wrong size");
  op.extra = lowering.KeepSlots(std::move(slots));
  lowering.Emit(store ? AccessSurface<true> : AccessSurface<false>, op);
}

}  // namespace

void AddTextureInstructions(LowerTable& table) {
  table["tex"] = LowerTexture;
  table["suld"] = [](Lowering& lowering) { LowerSurface(lowering, false); };
  table["sust"] = [](Lowering& lowering) { LowerSurface(lowering, true); };
}

}  // namespace causeway::software_gpu
