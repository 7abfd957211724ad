// SPDX-License-Identifier: Apache-2.0
// The records of a TLS 1.3 connection whose handshake is over: what the kernel's own TLS does, in this process, for kernels that
// lack it. The handshake (tls_session.h) and what follows it can thereby be in two processes, so that the process that parses what
// strangers send has no GPU, and the one that has a GPU decrypts once, to where the bytes belong, without another process between it
// and the socket. The ciphers are libcrypto's.
//
// Each direction gets a new key after kRecordsOfAKey records (RFC 8446, 5.5), which the other side follows.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

#include "ivshmem_ring/tcp/stream_layer.h"

namespace causeway {

using TrafficSecret = std::array<uint8_t, 32>;

// One direction of an established connection.
struct TlsDirection {
  TrafficSecret secret;  // application_traffic_secret_N
  uint64_t sequence;     // of the next record
};
// Both, and their cipher by its number in TLS. It opens what follows on the connection, and nothing that came before the last
// change of its keys.
struct TlsTraffic {
  TlsDirection reading, writing;
  uint32_t cipher;
  uint32_t reserved;
};
static_assert(sizeof(TlsTraffic) == 88);

class TlsRecords final : public StreamLayer {
 public:
  static constexpr uint64_t kRecordsOfAKey = uint64_t{1} << 22;

  // Null: libcrypto has failed, or does not have the cipher. `records_of_a_key`: for tests.
  static std::unique_ptr<TlsRecords> Make(const TlsTraffic& traffic,
                                          uint64_t records_of_a_key = kRecordsOfAKey);
  ~TlsRecords() override;

  bool Seal(std::span<const std::byte> plain) override;
  void TakeOutput(std::vector<std::byte>& wire) override;
  size_t Wanted(size_t plain, size_t most) const override;
  void Received(std::span<const std::byte> wire) override;
  void KeepReceived() override;
  ptrdiff_t Open(std::span<std::byte> plain) override;

  // Says to the peer that nothing follows; what TakeOutput gives has to be sent.
  void Close();
  // With which another process goes on, once this object is not used any more. False: something was received that is not opened
  // yet, or the connection is over, so that none can go on.
  bool HandOver(TlsTraffic* traffic);

 private:
  struct Cipher;
  struct Direction;
  TlsRecords();
  bool SealRecord(uint8_t type, std::span<const std::byte> plain);
  bool SealKeyUpdate();
  // One record; its plaintext goes to the beginning of `plain` as far as there is room, the rest to rest_. Negative: it is no sound
  // one. Otherwise how much was put into `plain`.
  ptrdiff_t OpenRecord(std::span<const std::byte> record, std::span<std::byte> plain);
  bool TakeHandshake(std::span<const std::byte> message);
  void End();
  // The next whole record that was received; empty: more has to come. False: what comes is no record.
  bool NextRecord(std::span<const std::byte>* record);

  uint64_t records_of_a_key_ = 0;
  std::unique_ptr<Cipher> cipher_;
  std::mutex sending_;  // of these:
  std::unique_ptr<Direction> writing_;
  std::vector<std::byte> output_;
  bool answers_update_ = false;  // the peer has asked for a new key of ours
  bool failed_ = false;

  std::unique_ptr<Direction> reading_;  // these belong to the thread that reads
  std::span<const std::byte> input_;
  std::vector<std::byte> partial_;  // the beginning of a record whose end has not come
  std::vector<std::byte> kept_;
  std::vector<std::byte> rest_;  // opened, and not taken yet: from rest_at_ on
  size_t rest_at_ = 0;
  bool ended_ = false;
};

}  // namespace causeway
