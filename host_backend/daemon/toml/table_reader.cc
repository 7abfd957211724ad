// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/toml/table_reader.h"

#include <cmath>
#include <cstdio>

namespace causeway::daemon {
namespace {

// As a person writes it: "0.5", "50".
std::string TextOf(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

std::optional<std::string> TableReader::String(std::string_view key) {
  const toml::node* node = Take(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_string()) Fail(*node, key, "must be a string in quotes");
  const std::string value = node->as_string()->get();
  if (value.empty()) Fail(*node, key, "must not be empty");
  if (value.find('\0') != std::string::npos) Fail(*node, key, "must not contain a NUL byte");
  return value;
}

std::optional<uint64_t> TableReader::Number(std::string_view key, uint64_t least, uint64_t most) {
  const toml::node* node = Take(key);
  if (node == nullptr) return std::nullopt;
  const auto* number = node->as_integer();
  const std::string range = "from " + std::to_string(least) + " to " + std::to_string(most);
  if (number == nullptr) Fail(*node, key, "must be a whole number " + range);
  if (number->get() < 0 || uint64_t(number->get()) < least || uint64_t(number->get()) > most) {
    Fail(*node, key, "is " + std::to_string(number->get()) + " but must be " + range);
  }
  return uint64_t(number->get());
}

std::optional<double> TableReader::Real(std::string_view key, double least, double most) {
  const toml::node* node = Take(key);
  if (node == nullptr) return std::nullopt;
  const std::string range = "from " + TextOf(least) + " to " + TextOf(most);
  const auto value = node->is_number() ? node->value<double>() : std::nullopt;
  if (!value || std::isnan(*value)) Fail(*node, key, "must be a number " + range);
  if (*value < least || *value > most) Fail(*node, key, "is " + TextOf(*value) + " but must be " + range);
  return value;
}

std::string TableReader::Required(std::string_view key) {
  const auto value = String(key);
  if (!value) Missing(key);
  return *value;
}

const toml::array* TableReader::Tables(std::string_view key) {
  const toml::node* node = Take(key);
  if (node == nullptr) return nullptr;
  const toml::array* list = node->as_array();
  if (list == nullptr || !list->is_homogeneous<toml::table>())
    Fail(*node, key, "must be tables that begin with [[" + std::string(key) + "]]");
  return list;
}

std::optional<bool> TableReader::Bool(std::string_view key) {
  const toml::node* node = Take(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_boolean()) Fail(*node, key, "must be true or false");
  return node->as_boolean()->get();
}

const toml::node* TableReader::Take(std::string_view key) {
  known_.insert(std::string(key));
  return table_.get(key);
}

void TableReader::Fail(const toml::node& node, std::string_view key, const std::string& text) const {
  throw BadValue{node.source().begin, section_ + std::string(key) + " " + text};
}

void TableReader::Missing(std::string_view key) const {
  throw BadValue{table_.source().begin, section_ + std::string(key) + " is missing"};
}

void TableReader::RefuseUnknownKeys() const {
  for (const auto& [key, node] : table_) {
    if (known_.count(std::string(key.str())) != 0) continue;
    std::string names;
    for (const auto& name : known_) names += (names.empty() ? "" : ", ") + name;
    throw BadValue{key.source().begin,
                   section_ + std::string(key.str()) + " is not a known key; known here are " + names};
  }
}

}  // namespace causeway::daemon
