// SPDX-License-Identifier: Apache-2.0
// Splits PTX text into tokens. Tokens view the text, which must outlive them.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace causeway::software_gpu::ptx {

// What is wrong with a PTX text. Thrown inside the parser and the lowering only: Program::Parse() and
// Program::Link() turn it into their error string.
class Error : public std::runtime_error {
 public:
  Error(int line, const std::string& what)
      : std::runtime_error("PTX line " + std::to_string(line) + ": " + what) {}
};

enum class TokenKind {
  kWord,         // name, opcode with its modifiers, or directive; dots and `::` belong to the word
  kInteger,      // value in `bits`, two's complement
  kFloat32,      // 0fXXXXXXXX, bits of the float
  kFloat64,      // 0dXXXXXXXXXXXXXXXX or decimal notation, bits of the double
  kString,       // text without the quotes
  kPunctuation,  // one character
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;
  uint64_t bits = 0;
  int line = 0;
};

// Ends with one kEnd token. Throws Error.
std::vector<Token> Tokenize(std::string_view text);

}  // namespace causeway::software_gpu::ptx
