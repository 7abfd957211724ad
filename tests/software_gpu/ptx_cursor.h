// SPDX-License-Identifier: Apache-2.0
// A position in a token sequence: what the parts of the PTX parser share.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tests/software_gpu/ptx_lexer.h"

namespace causeway::software_gpu::ptx {

class Cursor {
 public:
  // `tokens` ends with kEnd and outlives the cursor.
  explicit Cursor(const std::vector<Token>& tokens) : token_(tokens.data()) {}

  const Token& Peek() const { return *token_; }
  const Token& PeekAfter() const { return AtEnd() ? *token_ : token_[1]; }
  bool AtEnd() const { return token_->kind == TokenKind::kEnd; }
  int line() const { return token_->line; }

  // The last token is returned again and again.
  const Token& Next() { return AtEnd() ? *token_ : *token_++; }

  bool IsPunctuation(char c) const { return token_->kind == TokenKind::kPunctuation && token_->text[0] == c; }
  bool IsWord(std::string_view word) const {
    return token_->kind == TokenKind::kWord && token_->text == word;
  }

  bool TakePunctuation(char c) {
    if (!IsPunctuation(c)) return false;
    ++token_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    if (!IsWord(word)) return false;
    ++token_;
    return true;
  }

  void Expect(char c) {
    if (!TakePunctuation(c)) Fail(std::string("expected '") + c + "' but found '" + Shown() + "'");
  }
  std::string_view ExpectWord(const char* what) {
    if (token_->kind != TokenKind::kWord)
      Fail(std::string("expected ") + what + " but found '" + Shown() + "'");
    return Next().text;
  }
  // An integer constant with an optional sign.
  int64_t ExpectInteger() {
    const bool negative = TakePunctuation('-');
    if (token_->kind != TokenKind::kInteger) Fail("expected an integer but found '" + Shown() + "'");
    const uint64_t bits = Next().bits;
    return static_cast<int64_t>(negative ? 0 - bits : bits);
  }

  // Skips to behind the next `c`.
  void SkipPast(char c) {
    while (!AtEnd() && !IsPunctuation(c)) Next();
    Expect(c);
  }
  void SkipLine() {
    const int line = token_->line;
    while (!AtEnd() && token_->line == line) Next();
  }
  // Stands on '{'; skips to behind its '}'.
  void SkipBraces() {
    int depth = 0;
    do {
      if (AtEnd()) Fail("a '{' is not closed");
      if (IsPunctuation('{')) ++depth;
      if (IsPunctuation('}')) --depth;
      Next();
    } while (depth > 0);
  }

  [[noreturn]] void Fail(const std::string& what) const { throw Error(token_->line, what); }

 private:
  std::string Shown() const { return AtEnd() ? "end of text" : std::string(token_->text.substr(0, 80)); }

  const Token* token_;
};

}  // namespace causeway::software_gpu::ptx
