// SPDX-License-Identifier: Apache-2.0
// Whether a text is JSON (RFC 8259), for tests of what this project writes.
#pragma once
#include <cctype>
#include <string_view>

namespace causeway::test {

class JsonCheck {
 public:
  static bool Holds(std::string_view text) {
    JsonCheck check(text);
    return check.Value(0) && (check.Spaces(), check.at_ == text.size());
  }

 private:
  static constexpr int kDeepest = 100;
  explicit JsonCheck(std::string_view text) : text_(text) {}

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) { return Peek() == c && ++at_ != 0; }
  void Spaces() {
    while (Peek() == ' ' || Peek() == '\n' || Peek() == '\t' || Peek() == '\r') ++at_;
  }
  bool Word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool Digits() {
    const size_t begin = at_;
    while (std::isdigit(static_cast<unsigned char>(Peek()))) ++at_;
    return at_ != begin;
  }
  bool Number() {
    Take('-');
    if (!Digits()) return false;
    if (Take('.') && !Digits()) return false;
    if (!Take('e') && !Take('E')) return true;
    return (Take('+') || Take('-') || true) && Digits();
  }
  bool String() {
    if (!Take('"')) return false;
    while (at_ < text_.size() && Peek() != '"') {
      if (static_cast<unsigned char>(Peek()) < 0x20) return false;
      if (Take('\\')) {
        if (Take('u')) {
          for (int i = 0; i < 4; ++i) {
            if (!std::isxdigit(static_cast<unsigned char>(Peek()))) return false;
            ++at_;
          }
          continue;
        }
        if (std::string_view("\"\\/bfnrt").find(Peek()) == std::string_view::npos) return false;
      }
      ++at_;
    }
    return Take('"');
  }
  bool List(char end, int depth, bool named) {
    Spaces();
    if (Take(end)) return true;
    do {
      Spaces();
      if (named && (!String() || (Spaces(), !Take(':')))) return false;
      if (!Value(depth + 1)) return false;
      Spaces();
    } while (Take(','));
    return Take(end);
  }
  bool Value(int depth) {
    if (depth > kDeepest) return false;
    Spaces();
    if (Take('{')) return List('}', depth, true);
    if (Take('[')) return List(']', depth, false);
    if (Peek() == '"') return String();
    return Word("true") || Word("false") || Word("null") || Number();
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace causeway::test
