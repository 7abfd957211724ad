// SPDX-License-Identifier: Apache-2.0
// MD2 against the vectors of RFC 1319, HMAC against its own definition, and the message of the integrity
// value.
#include "guest_lib/runtime/integrity.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>

#include "guest_lib/runtime/md2.h"

namespace causeway::guest {
namespace {

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Hex(const Md2Digest& digest) {
  std::string hex;
  for (const uint8_t byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

Md2Digest Digest(std::string_view text) {
  Md2 md2;
  md2.Update(Bytes(text));
  return md2.Finish();
}

TEST(Md2, VectorsOfRfc1319) {
  EXPECT_EQ(Hex(Digest("")), "8350e5a3e24c153df2275c9f80692773");
  EXPECT_EQ(Hex(Digest("a")), "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  EXPECT_EQ(Hex(Digest("abc")), "da853b0d3f88d99b30283a69e6ded6bb");
  EXPECT_EQ(Hex(Digest("message digest")), "ab4f496bfb2a530b219ff33031fe06b0");
  EXPECT_EQ(Hex(Digest("abcdefghijklmnopqrstuvwxyz")), "4e8ddff3650292ab5a4108c3aa47940b");
  EXPECT_EQ(Hex(Digest("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")),
            "da33def2a42df13975352846c30338cd");
  EXPECT_EQ(Hex(Digest("12345678901234567890123456789012345678901234567890123456789012345678901234567890")),
            "d5976f79d83d3a0dc9806c3c66f3efd8");
}

TEST(Md2, PiecesGiveTheSameDigest) {
  const std::string text(100, 'x');
  for (size_t split = 0; split <= text.size(); ++split) {
    Md2 md2;
    md2.Update(Bytes(text).first(split));
    md2.Update(Bytes(text).subspan(split));
    EXPECT_EQ(md2.Finish(), Digest(text)) << split;
  }
}

// RFC 2104 spelt out with strings.
Md2Digest SlowHmac(std::string key, const std::string& message) {
  const auto as_text = [](const Md2Digest& digest) { return std::string(digest.begin(), digest.end()); };
  if (key.size() > 16) key = as_text(Digest(key));
  key.resize(16, '\0');
  std::string inner;
  std::string outer;
  for (const char c : key) {
    inner += static_cast<char>(c ^ 0x36);
    outer += static_cast<char>(c ^ 0x5c);
  }
  return Digest(outer + as_text(Digest(inner + message)));
}

TEST(HmacMd2, ShortFullAndLongKeys) {
  for (const size_t key_bytes : {0, 1, 15, 16, 17, 80}) {
    const std::string key(key_bytes, 'k');
    for (const size_t message_bytes : {0, 1, 16, 76, 104}) {
      const std::string message(message_bytes, 'm');
      EXPECT_EQ(HmacMd2(Bytes(key), Bytes(message)), SlowHmac(key, message))
          << key_bytes << " " << message_bytes;
    }
  }
}

TEST(Integrity, ConstantVersions) {
  IntegrityInput input{};
  input.version = 13000;
  EXPECT_EQ(Hex(IntegrityValue(input, {})), "5c67cb031c184133e8d14c1faa83d38e");
  input.version = 13001;
  EXPECT_EQ(Hex(IntegrityValue(input, {})), "5c67cb031c184118e8d14c1faa83d38e");
}

TEST(Integrity, MessageLayout) {
  const IntegrityInput input = {13000, 13002, 0x11223344, 0x55667788, 0xa1, 0xb2, 0xc3, 0xd4};
  DeviceIdentity device{};
  std::memcpy(device.uuid.bytes, "0123456789abcdef", 16);
  device.pci_domain = 1;
  device.pci_bus = 0x42;
  device.pci_device = 3;
  const DeviceIdentity devices[] = {device, device};
  const std::vector<uint8_t> message = IntegrityMessage(input, devices);
  ASSERT_EQ(message.size(), 48u + 2 * 28);
  EXPECT_EQ(std::memcmp(&message[4], "\xca\x32\0\0\x44\x33\x22\x11\x88\x77\x66\x55", 12), 0);
  EXPECT_EQ(message[16], 0xa1);
  EXPECT_EQ(message[40], 0xd4);
  EXPECT_EQ(std::memcmp(&message[48],
                        "0123456789abcdef\1\0\0\0\x42\0\0\0\3\0\0\0"
                        "0123",
                        32),
            0);

  const std::string text(message.begin(), message.end());
  const std::string key = "\x14\x6a\xdd\xae\x53\xa9\xa7\x52\xaa\x08\x41\x36\x0b\xf5\x5a\x9f";
  EXPECT_EQ(IntegrityValue(input, devices), SlowHmac(key, text));
}

}  // namespace
}  // namespace causeway::guest
