// SPDX-License-Identifier: Apache-2.0
// The staging buffers that one pageable copy holds, cut into staging slots ("places"), which its pieces use
// in turn. Copies that run at the same time share the session's buffers: each gives up what is more than its
// share. An object belongs to one thread.
#pragma once
#include <cstddef>
#include <cstdint>

#include "guest_lib/session/session.h"

namespace causeway::guest {

// Counts one copy of the process while it lives.
class CopyUnderWay {
 public:
  CopyUnderWay();
  ~CopyUnderWay();
  CopyUnderWay(const CopyUnderWay&) = delete;
  CopyUnderWay& operator=(const CopyUnderWay&) = delete;
  static uint32_t Count();  // by any thread
};

class StagingPlaces {
 public:
  static constexpr uint32_t kMostPlaces = 16;

  StagingPlaces(Session& session, uint32_t most_buffers, uint64_t place_bytes);

  // Takes a place for one more piece; Give returns it. False: the copy has its share, and must finish a piece
  // first. It waits only if the copy has no buffer at all.
  bool Take(uint32_t* place);
  void Give(uint32_t place);
  // Hands all buffers over to leave(buffer), even if pieces are in them. To be called at the end of the copy.
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
  const uint32_t each_;                  // how many places a buffer has
  uint32_t buffers_[kBulkBuffers] = {};  // the buffer in each slot of this array
  uint32_t held_ = 0;                    // a bit for each slot that has a buffer
  uint32_t free_ = 0;                    // a bit for each place that has no piece
  uint32_t next_ = 0;                    // the place whose turn it is
  uint32_t turn_ = 0;                    // how many places were taken since the first buffer was acquired
};

}  // namespace causeway::guest
