// SPDX-License-Identifier: Apache-2.0
#include "host_backend/common/json.h"

#include <algorithm>
#include <cstdio>

namespace causeway {

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string PrintableText(const std::string& text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; })) return text;
  const std::string quoted = JsonText(text);
  return quoted.substr(1, quoted.size() - 2);
}

double Rounded(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return std::strtod(text, nullptr);
}

double RoundedTo(double value, int digits) {
  char text[400];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return std::strtod(text, nullptr);
}

}  // namespace causeway
