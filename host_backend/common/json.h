// SPDX-License-Identifier: Apache-2.0
// JSON that this project writes and reads again. Keys keep the order in which they were set.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace causeway {

using Json = nlohmann::ordered_json;

// On one line, of ASCII characters alone. What is no UTF-8 becomes U+FFFD: text of other processes may be anything.
std::string JsonText(const Json& json);

// Text of other processes for a terminal, some of whose characters are commands: all but plain ASCII is escaped as in JSON.
std::string PrintableText(const std::string& text);

// Six leading digits of a measured value, and so many digits behind the point. Infinity and NaN become null.
double Rounded(double value);
double RoundedTo(double value, int digits);

}  // namespace causeway
