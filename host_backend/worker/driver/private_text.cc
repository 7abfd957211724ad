// SPDX-License-Identifier: Apache-2.0
// Addresses in texts: hexadecimal numbers that are too large to be anything else.
#include "host_backend/worker/driver/private_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <map>

#include "host_backend/worker/driver/driver.h"

namespace causeway::host {
namespace {

// Nothing is mapped below: smaller numbers are counts, sizes, small handles.
constexpr uint64_t kLeastAddress = 1u << 16;

bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Device memory and what is registered: the guest has these addresses by right.
bool IsMemoryOfDriver(uint64_t address) {
  unsigned type = 0;
  return TheDriver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
}

class Numbers {
 public:
  explicit Numbers(Keep keep) : keep_(keep) {}
  uint64_t Of(uint64_t address) {
    const auto [place, fresh] = number_.try_emplace(address, 0);
    if (fresh) place->second = keep_ == Keep::kDriversMemory && IsMemoryOfDriver(address) ? address : ++last_;
    return place->second;
  }

 private:
  const Keep keep_;
  std::map<uint64_t, uint64_t> number_;
  uint64_t last_ = 0;
};

// The number in the digits' place: as many digits, in the case that they had.
void AppendDigits(uint64_t number, std::string_view digits, std::string* to) {
  const bool upper = std::any_of(digits.begin(), digits.end(), [](char c) { return c >= 'A' && c <= 'F'; });
  char text[17];
  const auto end = std::to_chars(text, text + sizeof text, number, 16).ptr;
  to->append(digits.size() - static_cast<size_t>(end - text), '0');
  for (const char* at = text; at != end; ++at)
    to->push_back(upper ? static_cast<char>(std::toupper(*at)) : *at);
}

}  // namespace

std::string WithoutAddresses(std::string_view text, Keep keep) {
  std::string result;
  result.reserve(text.size());
  Numbers numbers(keep);
  for (size_t at = 0; at < text.size();) {
    // A word of its own, with or without 0x: as long as an address is written in full, or marked as a number.
    const bool begins = at == 0 || !IsWordCharacter(text[at - 1]);
    size_t digits = at;
    const bool marked = text.substr(at, 2) == "0x" || text.substr(at, 2) == "0X";
    if (begins && marked) digits += 2;
    size_t end = digits;
    while (begins && end < text.size() && std::isxdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    const bool whole = end == text.size() || !IsWordCharacter(text[end]);
    uint64_t value = 0;
    const bool is_number =
        begins && whole && end > digits && end - digits <= 16 && (marked || end - digits >= 12) &&
        std::from_chars(text.data() + digits, text.data() + end, value, 16).ec == std::errc();
    if (!is_number || value < kLeastAddress) {
      const size_t next = std::max(end, at + 1);
      result.append(text.substr(at, next - at));
      at = next;
      continue;
    }
    result.append(text.substr(at, digits - at));
    AppendDigits(numbers.Of(value), text.substr(digits, end - digits), &result);
    at = end;
  }
  return result;
}

}  // namespace causeway::host
