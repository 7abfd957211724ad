// SPDX-License-Identifier: Apache-2.0
// A value, or one sentence that says what failed, where, and what to do.
#pragma once
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <variant>

namespace causeway {

struct Error {
  std::string text;
};

// errno's meaning in words, for the middle of such a sentence.
inline std::string ErrnoText(int error = errno) {
  return std::strerror(error);
}

// One sentence on a thread that this process needs and cannot have.
inline std::string NoThreadText(const std::system_error& error) {
  return std::string("no thread can be made (") + error.what() +
         "): has its VM or user, or this host, as many as it may have?";
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT: implicit, so that functions return either
  Result(Error error) : state_(std::move(error)) {}  // NOLINT
  bool ok() const { return state_.index() == 0; }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  const std::string& error() const { return std::get<1>(state_).text; }

 private:
  std::variant<T, Error> state_;
};

}  // namespace causeway
