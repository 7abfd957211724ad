// SPDX-License-Identifier: Apache-2.0
// Values of the daemon's status, and how `causeway top` and `status` show them. What is not known is a dash, and null in JSON.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "host_backend/common/json.h"

namespace causeway::command {

// Members that another daemon's version lacks, or that are of another kind, count as 0 or empty. Text is for a terminal.
double Real(const Json& json, const char* key);
uint64_t Number(const Json& json, const char* key);
std::string Text(const Json& json, const char* key);
Json Member(const Json& json, const char* key);

std::string Format(const char* format, double value);
// "1234", "12.3k", "4.56M": five characters at most.
std::string Short(double value);
std::string Short(const std::optional<double>& value);
// Of a part of 1.
std::string Percent(const std::optional<double>& part);
// Cut or filled to the width; a negative one is that of text, which begins at the left.
std::string Padded(const std::string& text, int width);
Json OptionalJson(const std::optional<double>& value);

}  // namespace causeway::command
