// SPDX-License-Identifier: Apache-2.0
// PTX tokens: words with dots, integers in four radixes, bit-pattern floats, strings, comments.
#include "tests/software_gpu/ptx_lexer.h"

#include <bit>
#include <cctype>
#include <cstdlib>

namespace causeway::software_gpu::ptx {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

bool IsWordStart(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

bool IsWordPart(char c) {
  return IsWordStart(c) || IsDigit(c);
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> Run() {
    std::vector<Token> tokens;
    while (SkipBlank()) tokens.push_back(Next());
    tokens.push_back({TokenKind::kEnd, {}, 0, line_});
    return tokens;
  }

 private:
  char At(size_t index) const { return index < text_.size() ? text_[index] : '\0'; }
  char Peek(size_t ahead = 0) const { return At(position_ + ahead); }

  // Moves to the next token; false at the end.
  bool SkipBlank() {
    while (position_ < text_.size()) {
      const char c = Peek();
      if (c == '\n') {
        ++line_;
        ++position_;
      } else if (std::isspace(static_cast<unsigned char>(c)) || c == '\0') {
        ++position_;
      } else if (c == '/' && Peek(1) == '/') {
        while (position_ < text_.size() && Peek() != '\n') ++position_;
      } else if (c == '/' && Peek(1) == '*') {
        SkipBlockComment();
      } else {
        return true;
      }
    }
    return false;
  }

  void SkipBlockComment() {
    const size_t end = text_.find("*/", position_ + 2);
    if (end == std::string_view::npos) throw Error(line_, "a comment is not closed");
    for (; position_ < end + 2; ++position_) line_ += Peek() == '\n';
  }

  Token Next() {
    const char c = Peek();
    if (IsDigit(c)) return Number();
    if (c == '.' && IsDigit(Peek(1))) return Number();
    if (IsWordStart(c)) return Word();
    if (c == '"') return String();
    return Take(TokenKind::kPunctuation, 1);
  }

  Token Take(TokenKind kind, size_t length, uint64_t bits = 0) {
    Token token{kind, text_.substr(position_, length), bits, line_};
    position_ += length;
    return token;
  }

  Token Word() {
    size_t end = position_ + 1;
    if (Peek() == '.') {  // `.reg.b32` is two directives
      while (IsWordPart(At(end)) && At(end) != '.') ++end;
      return Take(TokenKind::kWord, end - position_);
    }
    while (IsWordPart(At(end)) || (At(end) == ':' && At(end + 1) == ':')) {
      end += At(end) == ':' ? 2 : 1;
    }
    return Take(TokenKind::kWord, end - position_);
  }

  Token String() {
    size_t end = position_ + 1;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\n') end += text_[end] == '\\' ? 2 : 1;
    if (At(end) != '"') throw Error(line_, "a string is not closed");
    Token token{TokenKind::kString, text_.substr(position_ + 1, end - position_ - 1), 0, line_};
    position_ = end + 1;
    return token;
  }

  Token Number() {
    const char second = static_cast<char>(std::tolower(static_cast<unsigned char>(Peek(1))));
    if (Peek() == '0' && second == 'f') return BitPattern(TokenKind::kFloat32, 8);
    if (Peek() == '0' && second == 'd') return BitPattern(TokenKind::kFloat64, 16);
    if (Peek() == '0' && second == 'x') return Integer(2, 16);
    if (Peek() == '0' && second == 'b') return Integer(2, 2);
    size_t end = position_;
    while (IsDigit(At(end))) ++end;
    const char after = At(end);
    if (after == '.' || after == 'e' || after == 'E') return Decimal();
    return Integer(0, Peek() == '0' ? 8 : 10);
  }

  Token BitPattern(TokenKind kind, size_t digits) {
    uint64_t bits = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = Peek(2 + i);
      if (!std::isxdigit(static_cast<unsigned char>(c))) throw Error(line_, "a float constant is too short");
      bits = bits * 16 + DigitValue(c);
    }
    return Take(kind, 2 + digits, bits);
  }

  Token Integer(size_t prefix, unsigned radix) {
    size_t end = position_ + prefix;
    uint64_t bits = 0;
    while (std::isxdigit(static_cast<unsigned char>(At(end))) && DigitValue(At(end)) < radix) {
      bits = bits * radix + DigitValue(At(end++));
    }
    if (end == position_ + prefix) throw Error(line_, "a number has no digits");
    if (At(end) == 'U') ++end;
    if (IsWordPart(At(end)) && At(end) != '.') throw Error(line_, "a number has a wrong digit");
    return Take(TokenKind::kInteger, end - position_, bits);
  }

  Token Decimal() {
    size_t end = position_;
    while (IsDigit(At(end)) || At(end) == '.') ++end;
    if (At(end) == 'e' || At(end) == 'E') {
      ++end;
      if (At(end) == '+' || At(end) == '-') ++end;
      while (IsDigit(At(end))) ++end;
    }
    const std::string copy(text_.substr(position_, end - position_));
    return Take(TokenKind::kFloat64, end - position_,
                std::bit_cast<uint64_t>(std::strtod(copy.c_str(), nullptr)));
  }

  static unsigned DigitValue(char c) {
    if (IsDigit(c)) return static_cast<unsigned>(c - '0');
    return static_cast<unsigned>(std::tolower(static_cast<unsigned char>(c)) - 'a' + 10);
  }

  std::string_view text_;
  size_t position_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view text) {
  return Lexer(text).Run();
}

}  // namespace causeway::software_gpu::ptx
