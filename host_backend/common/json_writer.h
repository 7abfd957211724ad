// SPDX-License-Identifier: Apache-2.0
// Writes JSON text: objects and arrays in call order, strings escaped.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace causeway {

class JsonWriter {
 public:
  JsonWriter& Open(char bracket) {
    Separate();
    text_ += bracket;
    first_ = true;
    return *this;
  }
  JsonWriter& Close(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
  }
  JsonWriter& Key(std::string_view name) {
    Separate();
    Quote(name);
    text_ += ':';
    first_ = true;
    return *this;
  }
  JsonWriter& String(std::string_view value) {
    Separate();
    Quote(value);
    return *this;
  }
  JsonWriter& Number(uint64_t value) { return Raw(std::to_string(value)); }
  JsonWriter& Signed(int64_t value) { return Raw(std::to_string(value)); }
  // JSON knows no infinity and no NaN: they become null.
  JsonWriter& Real(double value) {
    char number[40];
    std::snprintf(number, sizeof(number), "%.6g", value);
    return Raw(std::isfinite(value) ? number : "null");
  }
  // As many digits behind the point: times, which must not be rounded to a few leading ones.
  JsonWriter& Fixed(double value, int digits) {
    char number[400];
    std::snprintf(number, sizeof(number), "%.*f", digits, value);
    return Raw(std::isfinite(value) ? number : "null");
  }
  JsonWriter& Bool(bool value) { return Raw(value ? "true" : "false"); }
  const std::string& text() const { return text_; }

 private:
  JsonWriter& Raw(std::string_view value) {
    Separate();
    text_ += value;
    return *this;
  }
  void Separate() {
    if (!first_) text_ += ',';
    first_ = false;
  }
  void Quote(std::string_view value) {
    text_ += '"';
    for (const char c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (byte < 0x20 || byte >= 0x7f) {
        // Bytes of other processes: shown one by one, whatever their encoding.
        char escape[8];
        std::snprintf(escape, sizeof(escape), "\\u%04x", byte);
        text_ += escape;
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool first_ = true;
};

}  // namespace causeway
