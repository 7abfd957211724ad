// SPDX-License-Identifier: Apache-2.0
// Variable declarations: `.align 8 .b8 name[2][4] = {...}` and parameter forms of it.
#include "tests/software_gpu/ptx_declaration.h"

#include <bit>
#include <cstring>

namespace causeway::software_gpu::ptx {
namespace {

constexpr uint64_t kMaxVariableBytes = 1ull << 30;

class DeclarationParser {
 public:
  DeclarationParser(Cursor& cursor, Space space) : cursor_(cursor) {
    symbol_.space = space;
    symbol_.line = cursor.line();
  }

  Symbol Run() {
    uint64_t align = 0;
    uint32_t vector = 1;
    while (type_ == Type::kNone) Attribute(align, vector);
    symbol_.name = cursor_.ExpectWord("a variable name");
    element_bytes_ = Bytes(type_);
    uint64_t count = vector;
    bool open_bound = false;
    while (cursor_.TakePunctuation('[')) {
      if (cursor_.TakePunctuation(']')) {
        open_bound = true;
        continue;
      }
      const uint64_t bound = static_cast<uint64_t>(cursor_.ExpectInteger());
      if (bound > kMaxVariableBytes) cursor_.Fail("an array bound is too large");
      count *= bound;
      if (count > kMaxVariableBytes) cursor_.Fail("a variable is larger than 1 GiB");
      cursor_.Expect(']');
    }
    symbol_.align = align != 0 ? align : size_t{element_bytes_} * vector;
    symbol_.bytes = open_bound ? 0 : count * element_bytes_;
    if (symbol_.bytes > kMaxVariableBytes) cursor_.Fail("a variable is larger than 1 GiB");
    if (cursor_.TakePunctuation('=')) Initialiser(open_bound);
    return std::move(symbol_);
  }

 private:
  void Attribute(uint64_t& align, uint32_t& vector) {
    const std::string_view word = cursor_.ExpectWord("a type");
    if (word == ".align") {
      align = static_cast<uint64_t>(cursor_.ExpectInteger());
      if (!std::has_single_bit(align) || align > 4096)
        cursor_.Fail("an alignment is not a power of two up to 4096");
    } else if (word == ".ptr" || word == ".global" || word == ".const" || word == ".shared" ||
               word == ".local") {
      // What a pointer parameter points to: a hint that changes nothing here.
    } else if (word == ".texref" || word == ".surfref" || word == ".samplerref") {
      type_ = Type::kB64;  // holds the handle of an object
    } else if (word == ".v2") {
      vector = 2;
    } else if (word == ".v4") {
      vector = 4;
    } else if (word == ".attribute") {
      cursor_.Expect('(');
      symbol_.managed = cursor_.IsWord(".managed");
      cursor_.SkipPast(')');
    } else {
      type_ = ParseType(word.substr(1));
      if (type_ == Type::kNone || type_ == Type::kPred) {
        cursor_.Fail("unsupported type '" + std::string(word) + "' of a variable");
      }
      PointerHint();
    }
  }

  // `.param .u64 .ptr .global .align 16 name`: the alignment is that of the target.
  void PointerHint() {
    while (cursor_.Peek().kind == TokenKind::kWord && cursor_.Peek().text[0] == '.') {
      const std::string_view word = cursor_.Next().text;
      if (word == ".align") cursor_.ExpectInteger();
    }
  }

  void Initialiser(bool open_bound) {
    size_t offset = 0;
    Values(offset, 0);
    if (open_bound) symbol_.bytes = offset;
    symbol_.initial.resize(symbol_.bytes);
  }

  void Values(size_t& offset, int depth) {
    if (depth > 8) cursor_.Fail("an initialiser is nested too deeply");
    if (!cursor_.TakePunctuation('{')) {
      Value(offset);
      return;
    }
    while (!cursor_.TakePunctuation('}')) {
      Values(offset, depth + 1);
      if (!cursor_.IsPunctuation('}')) cursor_.Expect(',');
    }
  }

  void Value(size_t& offset) {
    if (symbol_.bytes != 0 && offset + element_bytes_ > symbol_.bytes) {
      cursor_.Fail("more initial values than the variable holds");
    }
    if (offset + element_bytes_ > symbol_.initial.size()) {
      symbol_.initial.resize(symbol_.bytes != 0 ? symbol_.bytes : offset + element_bytes_);
    }
    const bool negative = cursor_.TakePunctuation('-');
    const Token& token = cursor_.Next();
    uint64_t bits = token.bits;
    if (token.kind == TokenKind::kInteger && cursor_.IsPunctuation('(')) {
      MaskedAddress(token.bits, offset);
      bits = 0;
    } else if (token.kind == TokenKind::kInteger) {
      if (negative) bits = 0 - bits;
    } else if (token.kind == TokenKind::kFloat32 || token.kind == TokenKind::kFloat64) {
      bits = FloatBits(token, negative);
    } else if (token.kind == TokenKind::kWord) {
      Address(token.text, offset, 0);
      bits = 0;
    } else {
      cursor_.Fail("unsupported initial value");
    }
    std::memcpy(symbol_.initial.data() + offset, &bits, std::min<size_t>(element_bytes_, sizeof bits));
    offset += element_bytes_;
  }

  uint64_t FloatBits(const Token& token, bool negative) {
    const double value = token.kind == TokenKind::kFloat32
                             ? std::bit_cast<float>(static_cast<uint32_t>(token.bits))
                             : std::bit_cast<double>(token.bits);
    const double signed_value = negative ? -value : value;
    if (type_ == Type::kF64) return std::bit_cast<uint64_t>(signed_value);
    if (type_ == Type::kF32) {
      if (token.kind == TokenKind::kFloat32) return token.bits ^ (negative ? 0x80000000u : 0u);
      return std::bit_cast<uint32_t>(static_cast<float>(signed_value));
    }
    return token.bits;
  }

  // 0xFF00(name+4): one byte of an address.
  void MaskedAddress(uint64_t mask, size_t offset) {
    if (mask == 0) cursor_.Fail("an address mask is zero");
    cursor_.Expect('(');
    Address(cursor_.ExpectWord("a symbol"), offset, std::countr_zero(mask));
    cursor_.Expect(')');
  }

  void Address(std::string_view name, size_t offset, int shift) {
    const bool generic = name == "generic" && cursor_.TakePunctuation('(');
    if (generic) name = cursor_.ExpectWord("a symbol");
    InitialAddress address{offset, element_bytes_, std::string(name), 0, shift, cursor_.line()};
    if (cursor_.TakePunctuation('+')) {
      address.addend = cursor_.ExpectInteger();
    } else if (cursor_.TakePunctuation('-')) {
      address.addend = -cursor_.ExpectInteger();
    }
    if (generic) cursor_.Expect(')');
    if (generic && cursor_.TakePunctuation('+')) address.addend += cursor_.ExpectInteger();
    symbol_.addresses.push_back(std::move(address));
  }

  Cursor& cursor_;
  Symbol symbol_;
  Type type_ = Type::kNone;
  uint32_t element_bytes_ = 0;
};

}  // namespace

Symbol ParseDeclaration(Cursor& cursor, Space space) {
  return DeclarationParser(cursor, space).Run();
}

}  // namespace causeway::software_gpu::ptx
