// SPDX-License-Identifier: Apache-2.0
// The bulk buffers that one pageable copy holds, cut into places for its pieces, which take their turn.
// Copies that are under way together share the session's buffers: each gives up what is more than its share.
#pragma once
#include <cstddef>
#include <cstdint>

#include "guest_lib/session/session.h"

namespace causeway::guest {

// Of the process, as long as it lives.
class CopyUnderWay {
 public:
  CopyUnderWay();
  ~CopyUnderWay();
  CopyUnderWay(const CopyUnderWay&) = delete;
  CopyUnderWay& operator=(const CopyUnderWay&) = delete;
  static uint32_t Count();
};

class StagingPlaces {
 public:
  static constexpr uint32_t kMostPlaces = 16;

  StagingPlaces(Session& session, uint32_t most_buffers, uint64_t place_bytes);

  // A place for one more piece. False: the copy has its share. Waits only if it has no buffer at all.
  bool Take(uint32_t* place);
  void Give(uint32_t place);
  // At the end, whatever is in the places: leave(buffer) for each.
  template <typename F>
  void DropBuffers(F leave) {
    for (uint32_t slot = 0; slot < kBulkBuffers; ++slot) {
      if ((held_ >> slot & 1) != 0) leave(buffers_[slot]);
    }
    held_ = 0;
  }

  uint32_t buffer(uint32_t place) const { return buffers_[place / each_]; }
  uint32_t offset(uint32_t place) const { return static_cast<uint32_t>(place % each_ * place_bytes_); }
  std::byte* bytes(uint32_t place) const { return session_.bulk(buffer(place)).bytes + offset(place); }

 private:
  uint32_t Share() const;
  uint32_t PlacesOf(uint32_t slot) const { return ((1u << each_) - 1) << slot * each_; }
  void Add(uint32_t buffer);
  void GiveUpSurplus();

  const CopyUnderWay under_way_;
  Session& session_;
  const uint32_t most_buffers_;
  const uint64_t place_bytes_;
  const uint32_t each_;                  // places of a buffer
  uint32_t buffers_[kBulkBuffers] = {};  // by slot
  uint32_t held_ = 0;                    // slots, a bit each
  uint32_t free_ = 0;                    // places, a bit each
  uint32_t next_ = 0;                    // whose turn it is
  uint32_t turn_ = 0;                    // places taken since the first buffer was got
};

}  // namespace causeway::guest
