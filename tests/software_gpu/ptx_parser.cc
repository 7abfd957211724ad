// SPDX-License-Identifier: Apache-2.0
// The module level of PTX: directives, variables and function headers.
#include <algorithm>

#include "tests/software_gpu/ptx_body.h"
#include "tests/software_gpu/ptx_declaration.h"

namespace causeway::software_gpu::ptx {
namespace {

class ModuleParser {
 public:
  explicit ModuleParser(const std::vector<Token>& tokens) : cursor_(tokens) {}

  Module Run() {
    if (!cursor_.IsWord(".version")) cursor_.Fail("the text does not start with .version, so it is no PTX");
    while (!cursor_.AtEnd()) TopLevel();
    return std::move(module_);
  }

 private:
  void TopLevel() {
    if (cursor_.TakePunctuation(';')) return;
    const int line = cursor_.line();
    const std::string_view word = cursor_.ExpectWord("a directive");
    if (word == ".extern" || word == ".visible" || word == ".weak" || word == ".common") {
      external_ = word == ".extern";
    } else if (word == ".version" || word == ".target" || word == ".file" || word == ".loc") {
      if (cursor_.line() == line) cursor_.SkipLine();
    } else if (word == ".address_size") {
      if (cursor_.ExpectInteger() != 64) cursor_.Fail("only 64-bit addresses are supported");
    } else if (word == ".section") {
      while (!cursor_.AtEnd() && !cursor_.IsPunctuation('{')) cursor_.Next();
      cursor_.SkipBraces();
    } else if (word == ".pragma") {
      cursor_.SkipPast(';');
    } else if (word == ".func" || word == ".entry") {
      ParseFunction(word == ".entry");
      external_ = false;
    } else if (word == ".global" || word == ".const" || word == ".shared") {
      Variables(word == ".global" ? Space::kGlobal : word == ".const" ? Space::kConst : Space::kShared);
      external_ = false;
    } else {
      throw Error(line, "unsupported directive '" + std::string(word) + "'");
    }
  }

  void Variables(Space space) {
    do {
      Symbol symbol = ParseDeclaration(cursor_, space);
      symbol.external = external_;
      const auto known = globals_.find(symbol.name);
      if (known != globals_.end()) {
        Redeclare(const_cast<Symbol&>(*known->second), std::move(symbol));
        continue;
      }
      symbol.index = static_cast<uint32_t>(module_.symbols.size());
      module_.symbols.push_back(std::move(symbol));
      globals_[module_.symbols.back().name] = &module_.symbols.back();
    } while (cursor_.TakePunctuation(','));
    cursor_.Expect(';');
  }

  // `.extern` first and the definition later, or the other way round.
  void Redeclare(Symbol& known, Symbol symbol) {
    if (symbol.external) return;
    if (!known.external) cursor_.Fail("'" + symbol.name + "' is defined twice");
    symbol.index = known.index;
    known = std::move(symbol);
  }

  void ParseFunction(bool entry) {
    Function function;
    function.entry = entry;
    function.line = cursor_.line();
    if (cursor_.TakeWord(".attribute")) {
      cursor_.Expect('(');
      cursor_.SkipPast(')');
    }
    if (cursor_.TakePunctuation('(')) Parameters(function, function.results);
    function.name = cursor_.ExpectWord("a function name");
    if (cursor_.TakePunctuation('(')) Parameters(function, function.parameters);
    while (cursor_.Peek().kind == TokenKind::kWord && cursor_.Peek().text[0] == '.') Attribute(function);
    const auto same_name = [&](const Function& other) { return other.name == function.name; };
    const auto known = std::find_if(module_.functions.begin(), module_.functions.end(), same_name);
    if (cursor_.TakePunctuation(';')) {
      if (known == module_.functions.end()) module_.functions.push_back(std::move(function));
      return;
    }
    if (known != module_.functions.end() && known->has_body) {
      cursor_.Fail("the function '" + function.name + "' is defined twice");
    }
    function.has_body = true;
    ParseBody(cursor_, function, module_, globals_);
    if (known != module_.functions.end()) {
      *known = std::move(function);  // a deque moves without relocating its elements: Symbol* stay valid
    } else {
      module_.functions.push_back(std::move(function));
    }
  }

  void Attribute(Function& function) {
    const int line = cursor_.line();
    const std::string_view word = cursor_.Next().text;
    if (word == ".maxntid" || word == ".reqntid") {
      uint64_t threads = 1;
      do {
        threads *= static_cast<uint64_t>(cursor_.ExpectInteger()) & 0xffff;
      } while (cursor_.TakePunctuation(','));
      if (threads == 0 || threads > 1024) cursor_.Fail("a thread limit is not 1 to 1024");
      function.max_threads_per_block = static_cast<uint32_t>(threads);
    } else if (word == ".minnctapersm" || word == ".maxnctapersm" || word == ".maxnreg") {
      cursor_.ExpectInteger();
    } else if (word == ".pragma") {
      cursor_.SkipPast(';');
    } else if (word != ".noreturn") {
      throw Error(line, "unsupported function directive '" + std::string(word) + "'");
    }
  }

  // Behind '('.
  void Parameters(Function& function, std::vector<Symbol*>& list) {
    while (!cursor_.TakePunctuation(')')) {
      if (!cursor_.TakeWord(".param")) cursor_.Fail("parameters outside the .param space are not supported");
      function.symbols.push_back(ParseDeclaration(cursor_, Space::kParam));
      Symbol& symbol = function.symbols.back();
      symbol.entry_parameter = function.entry;
      symbol.callee_parameter = !function.entry;
      list.push_back(&symbol);
      if (!cursor_.IsPunctuation(')')) cursor_.Expect(',');
    }
  }

  Cursor cursor_;
  Module module_;
  SymbolTable globals_;
  bool external_ = false;
};

}  // namespace

Module ParseModule(std::string_view text) {
  const std::vector<Token> tokens = Tokenize(text);
  return ModuleParser(tokens).Run();
}

}  // namespace causeway::software_gpu::ptx
