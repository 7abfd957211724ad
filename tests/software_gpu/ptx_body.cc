// SPDX-License-Identifier: Apache-2.0
// Function bodies. Names are resolved while reading: PTX declares before use, except for labels, which are
// resolved at the end from the scope of their use outwards.
#include "tests/software_gpu/ptx_body.h"

#include <optional>

#include "tests/software_gpu/ptx_declaration.h"

namespace causeway::software_gpu::ptx {
namespace {

constexpr uint32_t kMaxRegisters = 1u << 20;
constexpr int kMaxNesting = 200;

struct RegisterRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

struct Scope {
  size_t parent = 0;
  std::unordered_map<std::string_view, uint32_t> registers;
  std::unordered_map<std::string_view, RegisterRange> ranges;  // by prefix: %r<10> declares %r0 to %r9
  std::unordered_map<std::string_view, const Symbol*> symbols;
  std::unordered_map<std::string_view, uint32_t> labels;  // instruction index
};

class BodyParser {
 public:
  BodyParser(Cursor& cursor, Function& function, Module& module, const SymbolTable& globals)
      : cursor_(cursor), function_(function), module_(module), globals_(globals) {
    scopes_.emplace_back();
    for (const Symbol& symbol : function.symbols) scopes_[0].symbols[symbol.name] = &symbol;
  }

  void Run() {
    cursor_.Expect('{');
    int depth = 1;
    while (depth > 0) {
      if (cursor_.AtEnd()) cursor_.Fail("the function '" + function_.name + "' is not closed");
      if (cursor_.TakePunctuation('{')) {
        if (++depth > kMaxNesting) cursor_.Fail("blocks are nested too deeply");
        Scope inner;
        inner.parent = current_;
        current_ = scopes_.size();
        scopes_.push_back(std::move(inner));
      } else if (cursor_.TakePunctuation('}')) {
        --depth;
        current_ = scopes_[current_].parent;
      } else if (!cursor_.TakePunctuation(';')) {
        Statement();
      }
    }
    ResolveLabels();
  }

 private:
  void Statement() {
    const Token& token = cursor_.Peek();
    if (token.kind == TokenKind::kWord && token.text[0] == '.') {
      Directive();
    } else if (token.kind == TokenKind::kWord && cursor_.PeekAfter().kind == TokenKind::kPunctuation &&
               cursor_.PeekAfter().text[0] == ':') {
      Label();
    } else {
      ParseInstruction();
    }
  }

  void Label() {
    const std::string_view name = cursor_.Next().text;
    cursor_.Expect(':');
    if (cursor_.TakeWord(".branchtargets")) {
      BranchTargets targets;
      targets.name = name;
      do {
        targets.labels.push_back(ParseOperand());
      } while (cursor_.TakePunctuation(','));
      cursor_.Expect(';');
      function_.branch_targets.push_back(std::move(targets));
    } else if (cursor_.IsWord(".callprototype") || cursor_.IsWord(".calltargets")) {
      cursor_.SkipPast(';');  // the callee's own declaration says the same
    } else {
      scopes_[current_].labels[name] = static_cast<uint32_t>(function_.body.size());
    }
  }

  void Directive() {
    const int line = cursor_.line();
    const std::string_view word = cursor_.Next().text;
    if (word == ".reg") {
      Registers();
    } else if (word == ".loc") {
      cursor_.SkipLine();
    } else if (word == ".pragma") {
      cursor_.SkipPast(';');
    } else if (word == ".local" || word == ".param") {
      Variables(word == ".local" ? Space::kLocal : Space::kParam);
    } else if (word == ".shared" || word == ".const" || word == ".global") {
      Variables(word == ".shared" ? Space::kShared : word == ".const" ? Space::kConst : Space::kGlobal);
    } else {
      throw Error(line, "unsupported directive '" + std::string(word) + "' in a function");
    }
  }

  void Registers() {
    std::string_view word = cursor_.ExpectWord("a register type");
    if (word == ".v2" || word == ".v4") cursor_.Fail("vector registers are not supported");
    const Type type = ParseType(word.substr(1));
    if (type == Type::kNone) cursor_.Fail("unsupported register type '" + std::string(word) + "'");
    do {
      const std::string_view name = cursor_.ExpectWord("a register name");
      uint64_t count = 1;
      if (cursor_.TakePunctuation('<')) {
        count = static_cast<uint64_t>(cursor_.ExpectInteger());
        cursor_.Expect('>');
        if (count > kMaxRegisters) cursor_.Fail("too many registers");
        const uint32_t first = static_cast<uint32_t>(function_.registers.size());
        scopes_[current_].ranges[name] = {first, static_cast<uint32_t>(count)};
      } else {
        scopes_[current_].registers[name] = static_cast<uint32_t>(function_.registers.size());
      }
      if (function_.registers.size() + count > kMaxRegisters) cursor_.Fail("too many registers");
      function_.registers.resize(function_.registers.size() + count, type);
    } while (cursor_.TakePunctuation(','));
    cursor_.Expect(';');
  }

  void Variables(Space space) {
    do {
      Symbol symbol = ParseDeclaration(cursor_, space);
      const bool own = space == Space::kLocal || space == Space::kParam;
      auto& home = own ? function_.symbols : module_.symbols;
      if (!own) symbol.index = static_cast<uint32_t>(module_.symbols.size());
      home.push_back(std::move(symbol));
      scopes_[current_].symbols[home.back().name] = &home.back();
    } while (cursor_.TakePunctuation(','));
    cursor_.Expect(';');
  }

  void ParseInstruction() {
    Instruction instruction;
    instruction.line = cursor_.line();
    if (cursor_.TakePunctuation('@')) {
      instruction.guard_negated = cursor_.TakePunctuation('!');
      const std::string_view name = cursor_.ExpectWord("a predicate");
      const std::optional<uint32_t> guard = FindRegister(name);
      if (!guard) cursor_.Fail("unknown predicate '" + std::string(name) + "'");
      instruction.guard = *guard;
    }
    instruction.opcode = cursor_.ExpectWord("an instruction");
    SplitOpcode(instruction);
    while (!cursor_.IsPunctuation(';')) {
      instruction.operands.push_back(ParseOperand());
      if (!cursor_.IsPunctuation(';')) cursor_.Expect(',');
    }
    cursor_.Expect(';');
    function_.body.push_back(std::move(instruction));
  }

  static void SplitOpcode(Instruction& instruction) {
    std::string_view rest = instruction.opcode;
    bool first = true;
    while (true) {
      const size_t dot = rest.find('.');
      const std::string_view part = rest.substr(0, dot);
      if (first) {
        instruction.base = part;
      } else {
        instruction.modifiers.push_back(part);
      }
      first = false;
      if (dot == std::string_view::npos) return;
      rest.remove_prefix(dot + 1);
    }
  }

  Operand ParseOperand(int depth = 0) {
    if (depth > 4) cursor_.Fail("operands are nested too deeply");
    Operand operand = Primary(depth);
    if (cursor_.TakePunctuation('|')) {
      Operand pair;
      pair.kind = OperandKind::kPair;
      pair.elements.push_back(std::move(operand));
      pair.elements.push_back(Primary(depth));
      return pair;
    }
    return operand;
  }

  Operand Primary(int depth) {
    if (cursor_.TakePunctuation('{')) return Elements(OperandKind::kVector, '}', depth);
    if (cursor_.TakePunctuation('(')) return Elements(OperandKind::kList, ')', depth);
    if (cursor_.TakePunctuation('[')) {
      Operand address;
      address.kind = OperandKind::kAddress;
      address.elements.push_back(Primary(depth + 1));
      address.offset = Offset();
      // Texture coordinates and the like.
      while (cursor_.TakePunctuation(',')) address.elements.push_back(ParseOperand(depth + 1));
      cursor_.Expect(']');
      return address;
    }
    if (cursor_.TakePunctuation('!')) {
      Operand operand = Primary(depth);
      if (operand.kind != OperandKind::kRegister)
        cursor_.Fail("'!' stands before something that is no predicate");
      operand.negated = true;
      return operand;
    }
    const bool negative = cursor_.TakePunctuation('-');
    const bool inverted = cursor_.TakePunctuation('~');
    const Token& token = cursor_.Next();
    Operand operand;
    operand.bits = inverted ? ~token.bits : token.bits;
    if (token.kind == TokenKind::kInteger) {
      operand.kind = OperandKind::kInteger;
      if (negative) operand.bits = 0 - operand.bits;
    } else if (token.kind == TokenKind::kFloat32) {
      operand.kind = OperandKind::kFloat32;
      if (negative) operand.bits ^= 0x80000000u;
    } else if (token.kind == TokenKind::kFloat64) {
      operand.kind = OperandKind::kFloat64;
      if (negative) operand.bits ^= 1ull << 63;
    } else if (token.kind == TokenKind::kWord) {
      return Named(token.text);
    } else {
      cursor_.Fail("an operand is missing");
    }
    return operand;
  }

  Operand Elements(OperandKind kind, char close, int depth) {
    Operand list;
    list.kind = kind;
    while (!cursor_.TakePunctuation(close)) {
      list.elements.push_back(ParseOperand(depth + 1));
      if (!cursor_.IsPunctuation(close)) cursor_.Expect(',');
    }
    return list;
  }

  int64_t Offset() {
    int64_t sum = 0;
    while (cursor_.IsPunctuation('+') || cursor_.IsPunctuation('-')) {
      const bool negative = cursor_.Next().text[0] == '-';
      const int64_t value = cursor_.ExpectInteger();
      sum =
          static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(negative ? -value : value));
    }
    return sum;
  }

  Operand Named(std::string_view name) {
    Operand operand;
    operand.name = name;
    if (name == "_") return operand;
    if (const std::optional<uint32_t> index = FindRegister(name)) {
      operand.kind = OperandKind::kRegister;
      operand.index = *index;
    } else if (const Symbol* symbol = FindSymbol(name)) {
      operand.kind = OperandKind::kSymbol;
      operand.symbol = symbol;
      operand.offset = Offset();
    } else if (name[0] == '%' || name == "WARP_SZ") {
      operand.kind = OperandKind::kSpecial;
    } else {
      operand.kind = OperandKind::kName;
      operand.index = kNoIndex;
      operand.bits = current_;  // the scope in which the label is looked up at the end
    }
    return operand;
  }

  std::optional<uint32_t> FindRegister(std::string_view name) const {
    size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    for (size_t scope = current_;; scope = scopes_[scope].parent) {
      const Scope& here = scopes_[scope];
      if (const auto found = here.registers.find(name); found != here.registers.end()) return found->second;
      if (const auto index = FindInRange(here, name, digits)) return index;
      if (scope == 0) return std::nullopt;
    }
  }

  // A prefix may itself end in digits, so every split of the trailing digits is tried.
  static std::optional<uint32_t> FindInRange(const Scope& scope, std::string_view name, size_t digits) {
    if (scope.ranges.empty() || name.size() - digits > 10) return std::nullopt;
    for (size_t split = digits; split < name.size(); ++split) {
      const auto range = scope.ranges.find(name.substr(0, split));
      if (range == scope.ranges.end()) continue;
      uint64_t number = 0;
      for (const char c : name.substr(split)) number = number * 10 + static_cast<uint64_t>(c - '0');
      if (number < range->second.count) return range->second.first + static_cast<uint32_t>(number);
    }
    return std::nullopt;
  }

  const Symbol* FindSymbol(std::string_view name) const {
    for (size_t scope = current_;; scope = scopes_[scope].parent) {
      const auto found = scopes_[scope].symbols.find(name);
      if (found != scopes_[scope].symbols.end()) return found->second;
      if (scope == 0) break;
    }
    const auto global = globals_.find(std::string(name));
    return global == globals_.end() ? nullptr : global->second;
  }

  void Resolve(Operand& operand) {
    if (operand.kind != OperandKind::kName) return;
    for (size_t scope = operand.bits;; scope = scopes_[scope].parent) {
      const auto found = scopes_[scope].labels.find(operand.name);
      if (found != scopes_[scope].labels.end()) {
        operand.index = found->second;
        return;
      }
      if (scope == 0) return;
    }
  }

  // Only now is every label known.
  void ResolveLabels() {
    for (Instruction& instruction : function_.body) {
      for (Operand& operand : instruction.operands) Resolve(operand);
    }
    for (BranchTargets& targets : function_.branch_targets) {
      for (Operand& label : targets.labels) Resolve(label);
    }
  }

  Cursor& cursor_;
  Function& function_;
  Module& module_;
  const SymbolTable& globals_;
  std::deque<Scope> scopes_;
  size_t current_ = 0;
};

}  // namespace

void ParseBody(Cursor& cursor, Function& function, Module& module, const SymbolTable& globals) {
  BodyParser(cursor, function, module, globals).Run();
}

}  // namespace causeway::software_gpu::ptx
