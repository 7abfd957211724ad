// SPDX-License-Identifier: Apache-2.0
#include "host_backend/common/json.h"

#include <cstdio>

namespace causeway {

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
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
