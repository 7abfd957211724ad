// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/top/cells.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace causeway::command {

double Real(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : 0;
}

uint64_t Number(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::string Text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? PrintableText(found->get<std::string>()) : std::string();
}

Json Member(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() ? *found : Json::object();
}

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string Short(double value) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  for (; value >= 9999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  if (unit == 0) return Format(value < 9.95 && value != std::floor(value) ? "%.1f" : "%.0f", value);
  return Format(value < 99.95 ? "%.1f" : "%.0f", value) + kUnits[unit];
}

std::string Short(const std::optional<double>& value) {
  return value ? Short(*value) : "-";
}

std::string Percent(const std::optional<double>& value) {
  return value ? Format("%.1f", 100 * *value) : "-";
}

std::string Padded(const std::string& text, int width) {
  char cell[128];
  std::snprintf(cell, sizeof cell, "%*.*s", width, std::abs(width), text.c_str());
  return cell;
}

Json OptionalJson(const std::optional<double>& value) {
  return value ? Json(Rounded(*value)) : Json();
}

}  // namespace causeway::command
