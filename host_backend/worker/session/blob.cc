// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/session/blob.h"

#include <algorithm>

namespace causeway::host {

uint64_t Blobs::MostFor(uint64_t region_bytes) {
  return std::clamp(region_bytes, uint64_t{1} << 30, kMaxBlobBytes);
}

void Blobs::Begin(uint32_t channel, uint64_t bytes) {
  taken_.fetch_sub(sent_[channel].size());
  sent_[channel] = {};
  // Grown by what arrives, not by what is announced.
  sent_[channel].reserve(std::min<uint64_t>(bytes + kEnd, 64u << 20));
}

bool Blobs::Append(uint32_t channel, std::span<const std::byte> bytes) {
  uint64_t taken = taken_.load();
  do {
    if (taken > most_ || bytes.size() > most_ - taken) return false;
  } while (!taken_.compare_exchange_weak(taken, taken + bytes.size()));
  sent_[channel].insert(sent_[channel].end(), bytes.begin(), bytes.end());
  return true;
}

std::shared_ptr<std::vector<std::byte>> Blobs::Take(const Request& request, uint64_t* bytes) {
  auto taken = std::make_shared<std::vector<std::byte>>();
  if (!request.bulk.empty()) {
    *bytes = request.bulk.size();
    taken->reserve(*bytes + kEnd);
    taken->assign(request.bulk.begin(), request.bulk.end());
  } else {
    std::swap(*taken, sent_[request.channel]);
    *bytes = taken->size();
    taken_.fetch_sub(*bytes);
  }
  taken->resize(*bytes + kEnd);
  return taken;
}

CUresult Serve_kBeginBlob(Session& session, Request& request) {
  const auto body = request.in.Get<BlobBody>();
  if (!request.in.ok() || request.channel >= kChannelCount || body.bytes > kMaxBlobBytes)
    return CUDA_ERROR_INVALID_VALUE;
  session.part<Blobs>().Begin(request.channel, body.bytes);
  return CUDA_SUCCESS;
}

CUresult Serve_kAppendBlob(Session& session, Request& request) {
  if (request.channel >= kChannelCount || request.bulk.empty()) return CUDA_ERROR_INVALID_VALUE;
  return session.part<Blobs>().Append(request.channel, request.bulk) ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult Serve_kFetchBlob(Session& session, Request& request) {
  const auto body = request.in.Get<FetchBlobBody>();
  if (!request.in.ok() || request.channel >= kChannelCount) return CUDA_ERROR_INVALID_VALUE;
  auto& left = session.part<Blobs>().left(request.channel);
  if (body.offset > left.size() || request.bulk.size() > left.size() - body.offset) {
    return session.Breach("a result is fetched beyond its end");
  }
  std::copy_n(left.begin() + static_cast<ptrdiff_t>(body.offset), request.bulk.size(), request.bulk.begin());
  request.bulk_written = static_cast<uint32_t>(request.bulk.size());
  if (body.offset + request.bulk.size() == left.size()) left = {};
  return CUDA_SUCCESS;
}

}  // namespace causeway::host
