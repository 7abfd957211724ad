// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/program.h"

#include <cinttypes>
#include <cstdio>
#include <sstream>

namespace causeway::differential {
namespace {

// One letter for each kind, in the order of ArgumentKind.
constexpr char kLetters[] = "n0oOrwpsxfc";

std::string ToText(const Argument& argument) {
  char text[64];
  const char letter = kLetters[static_cast<size_t>(argument.kind)];
  switch (argument.kind) {
    case ArgumentKind::kNull:
    case ArgumentKind::kFunction:
      return {letter};
    case ArgumentKind::kRegion:
      std::snprintf(text, sizeof text, "%c%" PRIu64 "+%u", letter, argument.number, argument.offset);
      return text;
    case ArgumentKind::kObjects: {
      std::string list(1, letter);
      for (int i = 0; i < argument.count; ++i) list += (i == 0 ? "" : ",") + std::to_string(argument.list[i]);
      return list;
    }
    default:
      std::snprintf(text, sizeof text, "%c%" PRIu64, letter, argument.number);
      return text;
  }
}

bool FromText(const std::string& word, Argument* argument) {
  const char* letter =
      word.empty() ? nullptr : std::char_traits<char>::find(kLetters, sizeof kLetters - 1, word[0]);
  if (letter == nullptr) return false;
  argument->kind = static_cast<ArgumentKind>(letter - kLetters);
  std::istringstream in(word.substr(1));
  char between = 0;
  if (argument->kind == ArgumentKind::kObjects) {
    while (argument->count < 4 && in >> argument->list[argument->count]) {
      ++argument->count;
      in >> between;
    }
    return true;
  }
  in >> argument->number;
  if (argument->kind == ArgumentKind::kRegion) in >> between >> argument->offset;
  return true;
}

}  // namespace

std::string ToText(const Call& call) {
  std::string text = std::to_string(call.id) + " t" + std::to_string(call.thread) + " " + call.row->name;
  for (size_t i = 0; i < call.row->parameters.size(); ++i) text += " " + ToText(call.arguments[i]);
  return text;
}

std::optional<Call> FromText(const std::string& line) {
  std::istringstream in(line);
  Call call;
  char t = 0;
  int thread = 0;
  std::string name, word;
  if (!(in >> call.id >> t >> thread >> name)) return std::nullopt;
  call.thread = static_cast<uint8_t>(thread);
  call.row = FindRow(name);
  if (call.row == nullptr) return std::nullopt;
  for (size_t i = 0; i < call.row->parameters.size(); ++i) {
    if (!(in >> word) || !FromText(word, &call.arguments[i])) return std::nullopt;
  }
  return call;
}

}  // namespace causeway::differential
