// SPDX-License-Identifier: Apache-2.0
// What a peer that knows a connection's keys sends after the handshake, and what somebody without them makes of it: records of
// any type, size and padding, new keys, changed and foreign bytes, in pieces of any size, opened into room of any size, with
// hand-overs between them. What comes out is always the beginning of what was sealed as content.
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "ivshmem_ring/tls/tls_records.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/guarded_buffer.h"

namespace causeway::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint32_t kAes128Gcm = 0x1301;
constexpr uint8_t kHandshake = 22, kApplication = 23;
constexpr size_t kHeaderBytes = 5, kTagBytes = 16, kMostRoom = 40'000;

// RFC 8446, 7.1, for what one HMAC gives.
template <size_t kBytes>
std::array<uint8_t, kBytes> Expand(const TrafficSecret& secret, const std::string& label) {
  const std::string name = "tls13 " + label;
  std::string info = {char(0), char(kBytes), char(name.size())};
  info += name + '\0' + '\1';
  std::array<uint8_t, 32> all;
  unsigned int size = all.size();
  HMAC(EVP_sha256(), secret.data(), int(secret.size()), reinterpret_cast<const uint8_t*>(info.data()),
       info.size(), all.data(), &size);
  std::array<uint8_t, kBytes> wanted;
  std::copy_n(all.begin(), kBytes, wanted.begin());
  return wanted;
}

// A sender that is bound by no rule but the cipher.
class Sender {
 public:
  explicit Sender(const TlsDirection& direction) { Use(direction); }
  ~Sender() { EVP_CIPHER_CTX_free(context_); }

  void Seal(const Bytes& inner, Bytes* wire) {
    std::array<uint8_t, 12> nonce = iv_;
    for (size_t i = 0; i < 8; ++i) nonce[11 - i] ^= uint8_t(direction_.sequence >> (8 * i));
    ++direction_.sequence;
    const size_t begin = wire->size(), sealed = inner.size() + kTagBytes;
    wire->resize(begin + kHeaderBytes + sealed);
    auto* const header = reinterpret_cast<uint8_t*>(wire->data() + begin);
    header[0] = kApplication;
    header[1] = header[2] = 3;
    header[3] = uint8_t(sealed >> 8);
    header[4] = uint8_t(sealed);
    int count = 0;
    EVP_EncryptInit_ex(context_, nullptr, nullptr, nullptr, nonce.data());
    EVP_EncryptUpdate(context_, nullptr, &count, header, kHeaderBytes);
    EVP_EncryptUpdate(context_, header + kHeaderBytes, &count, reinterpret_cast<const uint8_t*>(inner.data()),
                      int(inner.size()));
    EVP_EncryptFinal_ex(context_, header + kHeaderBytes + inner.size(), &count);
    EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_GET_TAG, kTagBytes, header + kHeaderBytes + inner.size());
  }
  void NextKey() { Use({Expand<32>(direction_.secret, "traffic upd"), 0}); }

 private:
  void Use(const TlsDirection& direction) {
    static EVP_CIPHER* const cipher =
        EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr);  // to look it up takes microseconds
    direction_ = direction;
    iv_ = Expand<12>(direction_.secret, "iv");
    EVP_EncryptInit_ex(context_, cipher, nullptr, Expand<16>(direction_.secret, "key").data(), nullptr);
  }

  TlsDirection direction_;
  std::array<uint8_t, 12> iv_;
  EVP_CIPHER_CTX* context_ = EVP_CIPHER_CTX_new();
};

class Harness {
 public:
  void Step(Input& input) {
    switch (input.Byte() % 8) {
      case 0:
      case 1:
        return Content(input);
      case 2:
        return AnyRecord(input);
      case 3:
        return KeyUpdate(input);
      case 4: {
        const auto bytes = input.Bytes(input.Byte());
        const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
        wire_.insert(wire_.end(), begin, begin + bytes.size());
        return;
      }
      case 5:
        if (!wire_.empty()) wire_[input.Word() % wire_.size()] ^= std::byte{input.Byte()};
        return;
      case 6:
        return HandOver(input);
      default:
        return Deliver(input);
    }
  }

 private:
  static GuardedBuffer& Room() {
    static GuardedBuffer room(kMostRoom);
    return room;
  }
  // Bytes that count up; two rounds, so that one may begin anywhere.
  static constexpr size_t kPattern = 256;
  static const std::byte* Pattern() {
    static const auto pattern = [] {
      std::array<std::byte, 2 * kPattern> bytes;
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i);
      return bytes;
    }();
    return pattern.data();
  }
  static size_t SomeSize(Input& input) { return input.Word() % (input.Byte() < 230 ? 600 : 17'500); }

  void Content(Input& input) {
    Bytes inner(SomeSize(input));
    for (size_t at = 0; at < inner.size(); at += kPattern) {
      std::memcpy(inner.data() + at, Pattern() + next_, std::min(kPattern, inner.size() - at));
    }
    next_ = uint8_t(next_ + inner.size());
    expected_.insert(expected_.end(), inner.begin(), inner.end());
    inner.push_back(std::byte{kApplication});
    inner.resize(inner.size() + (input.Byte() < 200 ? 0 : SomeSize(input)));
    sender_.Seal(inner, &wire_);
  }
  // It may happen to be content.
  void SendAny(const Bytes& inner) {
    size_t end = inner.size();
    while (end != 0 && inner[end - 1] == std::byte{0}) --end;
    if (end != 0 && inner[end - 1] == std::byte{kApplication})
      expected_.insert(expected_.end(), inner.begin(), inner.begin() + ptrdiff_t(end - 1));
    sender_.Seal(inner, &wire_);
  }
  void AnyRecord(Input& input) {
    const auto bytes = input.Bytes(input.Byte());
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    Bytes inner(begin, begin + bytes.size());
    inner.push_back(std::byte{input.Byte()});
    SendAny(inner);
  }
  void KeyUpdate(Input& input) {
    Bytes inner = {std::byte{24},           std::byte{0},         std::byte{0}, std::byte{1},
                   std::byte{input.Byte()}, std::byte{kHandshake}};
    if (input.Byte() > 230) inner[input.Byte() % inner.size()] = std::byte{input.Byte()};
    SendAny(inner);
    sender_.NextKey();
  }
  void HandOver(Input& input) {
    TlsTraffic traffic{};
    if (!records_->HandOver(&traffic)) return;
    Require(!ended_);
    records_ = TlsRecords::Make(traffic, 1 + input.Byte());
    Require(records_ != nullptr);
  }
  void Deliver(Input& input) {
    Bytes part(wire_.begin(), wire_.begin() + ptrdiff_t(std::min<size_t>(wire_.size(), SomeSize(input))));
    wire_.erase(wire_.begin(), wire_.begin() + ptrdiff_t(part.size()));
    records_->Received(part);
    for (size_t calls = 0;; ++calls) {
      const std::span<std::byte> room = Room().Hold(calls < 100 ? 1 + SomeSize(input) : kMostRoom);
      const ptrdiff_t opened = records_->Open(room);
      Require(opened <= ptrdiff_t(room.size()) && (opened < 0 || !ended_));
      if (opened < 0) ended_ = true;
      if (opened <= 0) break;
      Require(got_ + size_t(opened) <= expected_.size());
      Require(std::equal(room.begin(), room.begin() + opened, expected_.begin() + ptrdiff_t(got_)));
      got_ += size_t(opened);
    }
    records_->KeepReceived();
    if (input.Byte() < 100) {
      Require(records_->Seal(expected_) || ended_);
      Bytes sent;
      records_->TakeOutput(sent);
    }
  }

  static constexpr TlsTraffic kTraffic = {{{1}, 0}, {{2}, 0}, kAes128Gcm, 0};
  std::unique_ptr<TlsRecords> records_ = TlsRecords::Make(kTraffic, 3);
  Sender sender_{kTraffic.reading};
  Bytes wire_, expected_;
  size_t got_ = 0;
  uint8_t next_ = 0;
  bool ended_ = false;
};

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::Input input(data, size);
  causeway::fuzz::Harness harness;
  for (int steps = 0; steps < 100 && !input.empty(); ++steps) harness.Step(input);
  return 0;
}
