// SPDX-License-Identifier: Apache-2.0
// Keys of remote guests: what `causeway keys` writes, the host's TLS process looks up and a guest proves to have. A key is a
// secret of 32 random bytes that both sides know (TLS 1.3, external pre-shared key): there is no authority that signs, and
// before a peer has proved its secret the host parses no certificate. Its file is text, one field a line:
//
//   causeway-key 1
//   id 5f1c...                       32 hexadecimal digits, chosen at random; travels unencrypted, so it is no name
//   vm guest1                        only on the host, as are the next three
//   created 2026-01-31T12:00:00Z
//   expires 2026-12-31T12:00:00Z     missing: it does not
//   revoked 2026-02-01T12:00:00Z     missing: it is not; a revoked key has no secret any more
//   secret 9a3b...                   64 hexadecimal digits
//
// All functions may be called from any thread.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace causeway {

inline constexpr size_t kKeyIdDigits = 32;
inline constexpr size_t kKeySecretBytes = 32;
inline constexpr size_t kMaxKeyFileBytes = 4096;
inline constexpr char kGuestKeyFile[] = "/etc/causeway/key";  // CAUSEWAY_KEY names another one

using KeySecret = std::array<uint8_t, kKeySecretBytes>;

// Times are seconds since 1970; 0: there is none.
struct Key {
  std::string id;
  std::string vm;
  int64_t created = 0;
  int64_t expires = 0;
  int64_t revoked = 0;
  bool has_secret = false;
  KeySecret secret{};
};

bool IsKeyId(std::string_view text);

// The result is empty, or what is wrong with the text: the rest of a sentence that begins with the file's name.
std::string ParseKey(std::string_view text, Key* key);
// The same for a file, with its name: a whole sentence without its full stop. A file that others than its owner and group may
// write is refused.
std::string ReadKeyFile(const std::string& path, Key* key);

// The file's text. `for_guest`: without what stays on the host.
std::string KeyText(const Key& key, bool for_guest);

// "2026-01-31T12:00:00Z", and back; 0: `text` is no such time.
std::string TimeText(int64_t seconds);
int64_t ParseTime(std::string_view text);

}  // namespace causeway
