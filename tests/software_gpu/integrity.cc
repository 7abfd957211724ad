// SPDX-License-Identifier: Apache-2.0
// MD2, HMAC-MD2 and the message that they sign.
#include "tests/software_gpu/integrity.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/device.h"

namespace causeway::software_gpu {
namespace {

constexpr size_t kBlockBytes = 16;

// RFC 1319's permutation of 0..255, which it builds from the digits of pi: a shuffle drawing from those
// digits. The digits come from a spigot, so no table has to be trusted.
class PiDigits {
 public:
  PiDigits() : terms_(kDigits * 10 / 3 + 2, 2) {}

  // The next decimal digit of pi: 3, 1, 4, 1, 5, ...
  int Next() {
    while (ready_.size() <= position_) Produce();
    return ready_[position_++];
  }

 private:
  static constexpr size_t kDigits = 1000;

  // One step of the Rabinowitz-Wagon spigot; runs of nines are held back until their carry is known.
  void Produce() {
    int carry = 0;
    for (size_t i = terms_.size(); i-- > 0;) {
      int value = terms_[i] * 10 + carry;
      int base = i == 0 ? 10 : static_cast<int>(2 * i + 1);
      terms_[i] = value % base;
      carry = value / base * static_cast<int>(i == 0 ? 1 : i);
    }
    if (carry == 9) {
      ++nines_;
      return;
    }
    if (has_held_) ready_.push_back(carry == 10 ? held_ + 1 : held_);
    ready_.insert(ready_.end(), nines_, carry == 10 ? 0 : 9);
    held_ = carry == 10 ? 0 : carry;
    has_held_ = true;
    nines_ = 0;
  }

  std::vector<int> terms_;
  std::vector<int> ready_;
  size_t position_ = 0;
  size_t nines_ = 0;
  int held_ = 0;
  bool has_held_ = false;
};

// A number below n from pi's digits: 1, 2 or 3 digits, drawn again when they would favour small numbers.
int BelowFromPi(PiDigits& digits, int n) {
  while (true) {
    int value = digits.Next();
    int range = 10;
    if (n > 10) {
      value = value * 10 + digits.Next();
      range = 100;
    }
    if (n > 100) {
      value = value * 10 + digits.Next();
      range = 1000;
    }
    if (value < range / n * n) return value % n;
  }
}

const std::array<uint8_t, 256>& Substitution() {
  static const std::array<uint8_t, 256> table = [] {
    std::array<uint8_t, 256> made;
    for (size_t i = 0; i < 256; ++i) made[i] = static_cast<uint8_t>(i);
    PiDigits digits;
    for (int i = 2; i <= 256; ++i) {
      int j = BelowFromPi(digits, i);
      std::swap(made[static_cast<size_t>(j)], made[static_cast<size_t>(i - 1)]);
    }
    return made;
  }();
  return table;
}

template <typename Value>
void Append(std::vector<uint8_t>& message, Value value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  message.insert(message.end(), bytes, bytes + sizeof value);
}

}  // namespace

void Md2(std::span<const uint8_t> message, uint8_t digest[16]) {
  const auto& substitution = Substitution();
  std::vector<uint8_t> padded(message.begin(), message.end());
  size_t padding = kBlockBytes - padded.size() % kBlockBytes;
  padded.insert(padded.end(), padding, static_cast<uint8_t>(padding));

  std::array<uint8_t, kBlockBytes> checksum{};
  uint8_t last = 0;
  for (size_t block = 0; block < padded.size(); block += kBlockBytes) {
    for (size_t i = 0; i < kBlockBytes; ++i) {
      last = checksum[i] ^= substitution[padded[block + i] ^ last];
    }
  }
  padded.insert(padded.end(), checksum.begin(), checksum.end());

  std::array<uint8_t, 3 * kBlockBytes> state{};
  for (size_t block = 0; block < padded.size(); block += kBlockBytes) {
    for (size_t i = 0; i < kBlockBytes; ++i) {
      state[kBlockBytes + i] = padded[block + i];
      state[2 * kBlockBytes + i] = static_cast<uint8_t>(state[kBlockBytes + i] ^ state[i]);
    }
    uint8_t mixed = 0;
    for (int round = 0; round < 18; ++round) {
      for (uint8_t& byte : state) mixed = byte ^= substitution[mixed];
      mixed = static_cast<uint8_t>(mixed + round);
    }
  }
  std::memcpy(digest, state.data(), kBlockBytes);
}

void HmacMd2(std::span<const uint8_t> key, std::span<const uint8_t> message, uint8_t digest[16]) {
  std::vector<uint8_t> inner(kBlockBytes, 0);
  std::memcpy(inner.data(), key.data(), key.size());
  std::vector<uint8_t> outer = inner;
  for (uint8_t& byte : inner) byte ^= 0x36;
  for (uint8_t& byte : outer) byte ^= 0x5c;
  inner.insert(inner.end(), message.begin(), message.end());
  uint8_t inner_digest[kBlockBytes];
  Md2(inner, inner_digest);
  outer.insert(outer.end(), inner_digest, inner_digest + kBlockBytes);
  Md2(outer, digest);
}

void IntegrityAnswer(uint32_t version, uint64_t time, const void* runtime_table, const void* integrity_table,
                     const void* integrity_function, uint8_t answer[16]) {
  static constexpr uint8_t kKey[16] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                       0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
  // Two residues of the version have constant answers.
  static constexpr uint8_t kResidue0[16] = {0x5c, 0x67, 0xcb, 0x03, 0x1c, 0x18, 0x41, 0x33,
                                            0xe8, 0xd1, 0x4c, 0x1f, 0xaa, 0x83, 0xd3, 0x8e};
  static constexpr uint8_t kResidue1[16] = {0x5c, 0x67, 0xcb, 0x03, 0x1c, 0x18, 0x41, 0x18,
                                            0xe8, 0xd1, 0x4c, 0x1f, 0xaa, 0x83, 0xd3, 0x8e};
  if (version % 10 <= 1) {
    std::memcpy(answer, version % 10 == 0 ? kResidue0 : kResidue1, 16);
    return;
  }
  std::vector<uint8_t> message;
  Append(message, static_cast<uint32_t>(kDriverVersion));
  Append(message, version);
  Append(message, static_cast<uint32_t>(getpid()));
  Append(message, static_cast<uint32_t>(pthread_self()));
  Append(message, reinterpret_cast<uint64_t>(runtime_table));
  Append(message, reinterpret_cast<uint64_t>(integrity_table));
  Append(message, reinterpret_cast<uint64_t>(integrity_function));
  Append(message, time);
  for (int device = 0; device < GetConfig().device_count; ++device) {
    Append(message, DeviceUuid(device));
    PciAddress pci = DevicePciAddress(device);
    Append(message, pci.domain);
    Append(message, pci.bus);
    Append(message, pci.device);
  }
  HmacMd2(kKey, message, answer);
}

}  // namespace causeway::software_gpu
