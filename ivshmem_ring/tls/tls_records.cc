// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/tls/tls_records.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace causeway {
namespace {

constexpr size_t kHeaderBytes = 5, kTagBytes = 16, kNonceBytes = 12;
constexpr size_t kMostPlainBytes = 16u << 10;               // of a record, without its type
constexpr size_t kMostSealedBytes = kMostPlainBytes + 256;  // RFC 8446, 5.2
constexpr size_t kTogetherBytes =
    2048;  // up to here a copy costs less than a call of libcrypto for the type alone
constexpr uint8_t kAlert = 21, kHandshake = 22, kApplication = 23;
constexpr uint8_t kKeyUpdate = 24;
constexpr uint32_t kAes128Gcm = 0x1301, kChaCha20Poly1305 = 0x1303;

unsigned char* Bytes(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* Bytes(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

struct TlsRecords::Cipher {
  EVP_CIPHER* cipher = nullptr;
  EVP_KDF* kdf = nullptr;
  uint32_t number = 0;
  size_t key_bytes = 0;

  ~Cipher() {
    EVP_KDF_free(kdf);
    EVP_CIPHER_free(cipher);
  }

  bool Fetch(uint32_t wanted) {
    // No configuration of the system's OpenSSL, and no work at the end of the process.
    if (OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr) != 1) return false;
    number = wanted;
    const char* name = wanted == kAes128Gcm          ? "AES-128-GCM"
                       : wanted == kChaCha20Poly1305 ? "ChaCha20-Poly1305"
                                                     : nullptr;
    // Of this process, and never ended: to make one takes milliseconds, which each connection would wait for.
    static OSSL_LIB_CTX* const library = OSSL_LIB_CTX_new();
    if (name == nullptr || library == nullptr) return false;
    cipher = EVP_CIPHER_fetch(library, name, nullptr);
    kdf = EVP_KDF_fetch(library, OSSL_KDF_NAME_HKDF, nullptr);
    if (cipher == nullptr || kdf == nullptr) return false;
    key_bytes = static_cast<size_t>(EVP_CIPHER_get_key_length(cipher));
    return true;
  }

  // HKDF-Expand-Label of RFC 8446, 7.1, without a context.
  bool Expand(const TrafficSecret& secret, const std::string& label, std::span<uint8_t> out) const {
    const std::string name = "tls13 " + label;
    std::string info = {char(out.size() >> 8), char(out.size()), char(name.size())};
    info += name + '\0';
    int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<uint8_t*>(secret.data()),
                                          secret.size()),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
        OSSL_PARAM_construct_end()};
    EVP_KDF_CTX* context = EVP_KDF_CTX_new(kdf);
    const bool done = context != nullptr && EVP_KDF_derive(context, out.data(), out.size(), parameters) == 1;
    EVP_KDF_CTX_free(context);
    return done;
  }
};

struct TlsRecords::Direction {
  struct Free {
    void operator()(EVP_CIPHER_CTX* made) const { EVP_CIPHER_CTX_free(made); }
  };
  std::unique_ptr<EVP_CIPHER_CTX, Free> context;
  TlsDirection state{};
  std::array<uint8_t, kNonceBytes> base{};
  uint64_t records = 0;  // of this key, in this process
  bool writes = false;

  ~Direction() { OPENSSL_cleanse(state.secret.data(), state.secret.size()); }

  bool SetKey(const Cipher& cipher) {
    std::array<uint8_t, 32> key{};
    context.reset(EVP_CIPHER_CTX_new());
    records = 0;
    const bool done =
        context != nullptr && cipher.Expand(state.secret, "key", std::span(key).first(cipher.key_bytes)) &&
        cipher.Expand(state.secret, "iv", base) &&
        EVP_CipherInit_ex2(context.get(), cipher.cipher, key.data(), nullptr, writes ? 1 : 0, nullptr) == 1;
    OPENSSL_cleanse(key.data(), key.size());
    return done;
  }

  bool NextKey(const Cipher& cipher) {
    TrafficSecret next{};
    if (!cipher.Expand(state.secret, "traffic upd", next)) return false;
    state = {next, 0};
    OPENSSL_cleanse(next.data(), next.size());
    return SetKey(cipher);
  }

  // Begins a record with that header, which is authenticated.
  bool Begin(const std::byte* header) {
    std::array<uint8_t, kNonceBytes> nonce = base;
    for (size_t i = 0; i < 8; ++i)
      nonce[kNonceBytes - 1 - i] ^= static_cast<uint8_t>(state.sequence >> (8 * i));
    ++state.sequence;
    ++records;
    int count = 0;
    return EVP_CipherInit_ex2(context.get(), nullptr, nullptr, nonce.data(), -1, nullptr) == 1 &&
           EVP_CipherUpdate(context.get(), nullptr, &count, Bytes(header), kHeaderBytes) == 1;
  }
  bool Update(std::byte* out, std::span<const std::byte> in) {
    int count = 0;
    return in.empty() ||
           EVP_CipherUpdate(context.get(), Bytes(out), &count, Bytes(in.data()), int(in.size())) == 1;
  }
  bool Finish() {
    unsigned char none[kTagBytes];
    int count = 0;
    return EVP_CipherFinal_ex(context.get(), none, &count) == 1;
  }
  bool Tag(int control, const std::byte* tag) {
    return EVP_CIPHER_CTX_ctrl(context.get(), control, kTagBytes, const_cast<std::byte*>(tag)) == 1;
  }
};

TlsRecords::TlsRecords() = default;
TlsRecords::~TlsRecords() = default;

std::unique_ptr<TlsRecords> TlsRecords::Make(const TlsTraffic& traffic, uint64_t records_of_a_key) {
  std::unique_ptr<TlsRecords> made(new TlsRecords());
  made->records_of_a_key_ = records_of_a_key;
  made->cipher_ = std::make_unique<Cipher>();
  made->reading_ = std::make_unique<Direction>();
  made->writing_ = std::make_unique<Direction>();
  made->reading_->state = traffic.reading;
  made->writing_->state = traffic.writing;
  made->writing_->writes = true;
  if (!made->cipher_->Fetch(traffic.cipher) || !made->reading_->SetKey(*made->cipher_) ||
      !made->writing_->SetKey(*made->cipher_))
    return nullptr;
  return made;
}

bool TlsRecords::SealRecord(uint8_t type, std::span<const std::byte> plain) {
  const size_t begin = output_.size(), sealed = plain.size() + 1 + kTagBytes;
  output_.resize(begin + kHeaderBytes + sealed);
  std::byte* const header = &output_[begin];
  header[0] = std::byte{kApplication};
  header[1] = header[2] = std::byte{3};
  header[3] = std::byte(sealed >> 8);
  header[4] = std::byte(sealed);
  std::byte* const body = header + kHeaderBytes;
  std::byte* const last = body + plain.size();
  *last = std::byte{type};
  bool done = writing_->Begin(header);
  if (plain.size() <= kTogetherBytes) {
    if (!plain.empty()) std::memcpy(body, plain.data(), plain.size());
    done = done && writing_->Update(body, std::span(body, plain.size() + 1));
  } else {
    done = done && writing_->Update(body, plain) && writing_->Update(last, std::span(last, 1));
  }
  done = done && writing_->Finish() && writing_->Tag(EVP_CTRL_AEAD_GET_TAG, last + 1);
  if (!done) failed_ = true;
  return done;
}

// The peer takes a new key for what follows, and so does this side.
bool TlsRecords::SealKeyUpdate() {
  constexpr std::byte kMessage[] = {std::byte{kKeyUpdate}, std::byte{0}, std::byte{0}, std::byte{1},
                                    std::byte{0}};
  return SealRecord(kHandshake, kMessage) && writing_->NextKey(*cipher_);
}

bool TlsRecords::Seal(std::span<const std::byte> plain) {
  const std::lock_guard lock(sending_);
  while (!plain.empty() && !failed_) {
    if ((std::exchange(answers_update_, false) || writing_->records >= records_of_a_key_) && !SealKeyUpdate())
      return false;
    const size_t bytes = std::min(plain.size(), kMostPlainBytes);
    if (!SealRecord(kApplication, plain.first(bytes))) return false;
    plain = plain.subspan(bytes);
  }
  return !failed_;
}

void TlsRecords::Close() {
  constexpr std::byte kCloseNotify[] = {std::byte{1}, std::byte{0}};
  const std::lock_guard lock(sending_);
  if (!failed_) SealRecord(kAlert, kCloseNotify);
}

void TlsRecords::TakeOutput(std::vector<std::byte>& wire) {
  wire.clear();
  const std::lock_guard lock(sending_);
  std::swap(wire, output_);
}

// A record that is cut is copied to be put together, and is rare where each wait ends with one.
size_t TlsRecords::Wanted(size_t plain, size_t most) const {
  constexpr size_t kOverhead = kHeaderBytes + 1 + kTagBytes, kRecord = kMostPlainBytes + kOverhead;
  const size_t have = std::min(partial_.size(), kRecord - 1);
  const size_t records = (plain + kMostPlainBytes - 1) / kMostPlainBytes;
  const size_t wanted = plain + records * kOverhead;
  if (wanted <= have) return 1;
  if (wanted - have <= most) return wanted - have;
  return most + have < kRecord ? most : (most + have) / kRecord * kRecord - have;
}

void TlsRecords::Received(std::span<const std::byte> wire) {
  input_ = wire;
}

void TlsRecords::KeepReceived() {
  std::vector<std::byte> kept(input_.begin(), input_.end());
  kept_.swap(kept);
  input_ = kept_;
}

bool TlsRecords::HandOver(TlsTraffic* traffic) {
  const std::lock_guard lock(sending_);
  if (failed_ || ended_ || !input_.empty() || !partial_.empty() || rest_at_ < rest_.size() ||
      !output_.empty())
    return false;
  *traffic = {reading_->state, writing_->state, cipher_->number, 0};
  return true;
}

bool TlsRecords::NextRecord(std::span<const std::byte>* record) {
  *record = {};
  const auto size_of = [](std::span<const std::byte> bytes) {
    return kHeaderBytes + (std::to_integer<size_t>(bytes[3]) << 8 | std::to_integer<size_t>(bytes[4]));
  };
  const auto collect = [&](size_t wanted) {
    const size_t taken = std::min(wanted - std::min(wanted, partial_.size()), input_.size());
    partial_.insert(partial_.end(), input_.begin(), input_.begin() + static_cast<ptrdiff_t>(taken));
    input_ = input_.subspan(taken);
    return partial_.size() >= wanted;
  };
  if (!partial_.empty() || input_.size() < kHeaderBytes) {
    if (input_.empty() || !collect(kHeaderBytes)) return true;
    const size_t bytes = size_of(partial_);
    if (bytes > kHeaderBytes + kMostSealedBytes) return false;
    if (collect(bytes)) *record = partial_;
    return true;
  }
  const size_t bytes = size_of(input_);
  if (bytes > kHeaderBytes + kMostSealedBytes) return false;
  if (input_.size() < bytes) {
    collect(bytes);
    return true;
  }
  *record = input_.first(bytes);
  input_ = input_.subspan(bytes);
  return true;
}

ptrdiff_t TlsRecords::Open(std::span<std::byte> plain) {
  size_t total = 0;
  while (total < plain.size()) {
    if (rest_at_ < rest_.size()) {
      const size_t taken = std::min(rest_.size() - rest_at_, plain.size() - total);
      std::memcpy(&plain[total], &rest_[rest_at_], taken);
      rest_at_ += taken;
      total += taken;
      continue;
    }
    std::span<const std::byte> record;
    if (!ended_ && !NextRecord(&record)) End();
    if (ended_ || record.empty()) break;
    const ptrdiff_t opened = OpenRecord(record, plain.subspan(total));
    if (record.data() == partial_.data()) partial_.clear();
    if (opened < 0)
      End();
    else
      total += static_cast<size_t>(opened);
  }
  return ended_ && total == 0 ? -1 : static_cast<ptrdiff_t>(total);
}

// Nothing more is sent to a peer that has ended the connection, or that somebody else may be; and nothing is handed out of a
// record that may be forged: what of it was decrypted before its tag was seen is forgotten.
void TlsRecords::End() {
  ended_ = true;
  rest_.clear();
  rest_at_ = 0;
  const std::lock_guard lock(sending_);
  failed_ = true;
}

// The plaintext is content, one byte that says its type, and any number of zeros.
ptrdiff_t TlsRecords::OpenRecord(std::span<const std::byte> record, std::span<std::byte> plain) {
  if (std::to_integer<uint8_t>(record[0]) != kApplication || record.size() < kHeaderBytes + 1 + kTagBytes)
    return -1;
  const std::span<const std::byte> sealed =
      record.subspan(kHeaderBytes, record.size() - kHeaderBytes - kTagBytes);
  const size_t direct = std::min(plain.size(), sealed.size());  // with the type, where there is room
  rest_.resize(sealed.size() - direct);
  rest_at_ = 0;
  if (!reading_->Begin(record.data()) || !reading_->Update(plain.data(), sealed.first(direct)) ||
      !reading_->Update(rest_.data(), sealed.subspan(direct)) ||
      !reading_->Tag(EVP_CTRL_AEAD_SET_TAG, record.data() + record.size() - kTagBytes) || !reading_->Finish())
    return -1;
  size_t end = rest_.size();
  while (end != 0 && rest_[end - 1] == std::byte{0}) --end;
  size_t direct_end = direct;
  if (end == 0)
    while (direct_end != 0 && plain[direct_end - 1] == std::byte{0}) --direct_end;
  if (end == 0 && direct_end == 0) return -1;  // it says no type
  const auto type = std::to_integer<uint8_t>(end != 0 ? rest_[end - 1] : plain[direct_end - 1]);
  const size_t content = end != 0 ? direct + end - 1 : direct_end - 1;
  if (type == kApplication) {
    rest_.resize(content > direct ? content - direct : 0);
    return static_cast<ptrdiff_t>(std::min(content, direct));
  }
  std::vector<std::byte> message(plain.begin(),
                                 plain.begin() + static_cast<ptrdiff_t>(std::min(content, direct)));
  if (content > direct)
    message.insert(message.end(), rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(content - direct));
  rest_.clear();
  // An alert ends the connection, whatever it says.
  return type == kHandshake && TakeHandshake(message) ? 0 : -1;
}

// After the handshake nothing is sent but this.
bool TlsRecords::TakeHandshake(std::span<const std::byte> message) {
  constexpr size_t kBytes = 5;
  if (message.size() != kBytes || message[0] != std::byte{kKeyUpdate} || message[1] != std::byte{0} ||
      message[2] != std::byte{0} || message[3] != std::byte{1} || message[4] > std::byte{1})
    return false;
  if (message[4] == std::byte{1}) {
    const std::lock_guard lock(sending_);
    answers_update_ = true;
  }
  return reading_->NextKey(*cipher_);
}

}  // namespace causeway
