// SPDX-License-Identifier: Apache-2.0
// Blobs: announced, sent and fetched in pieces.
#include "guest_lib/blob.h"

#include <algorithm>
#include <cstring>

namespace causeway::guest {

CUresult SendBlob(ChannelLease& lease, uint64_t bytes, const BlobCopy& copy) {
  if (bytes > kMaxBlobBytes) return CUDA_ERROR_INVALID_VALUE;
  Writer begin = lease.Begin();
  begin.Put(BlobBody{bytes});
  CUresult result = lease.Send(Op::kBeginBlob, begin);
  Reader none;
  if (result == CUDA_SUCCESS) result = lease.Await(&none);
  if (result != CUDA_SUCCESS || bytes == 0) return result;
  const uint32_t index = lease.session().AcquireBulk();
  const Bulk bulk = lease.session().bulk(index);
  for (uint64_t at = 0; at < bytes && result == CUDA_SUCCESS;) {
    const auto piece = static_cast<uint32_t>(std::min<uint64_t>(kBulkBytes, bytes - at));
    copy(at, {bulk.bytes, piece});
    result = lease.Send(Op::kAppendBlob, lease.Begin(), kBulkToHost, bulk.offset, piece);
    if (result == CUDA_SUCCESS) result = lease.Await(&none);
    at += piece;
  }
  lease.session().ReleaseBulk(index);
  return result;
}

CUresult FetchBlob(ChannelLease& lease, uint64_t bytes, std::vector<std::byte>* to) {
  to->clear();
  if (bytes == 0) return CUDA_SUCCESS;
  if (bytes > kMaxBlobBytes) return CUDA_ERROR_UNKNOWN;
  CUresult result = CUDA_SUCCESS;
  const uint32_t index = lease.session().AcquireBulk();
  const Bulk bulk = lease.session().bulk(index);
  while (to->size() < bytes && result == CUDA_SUCCESS) {
    const auto piece = static_cast<uint32_t>(std::min<uint64_t>(kBulkBytes, bytes - to->size()));
    Writer body = lease.Begin();
    body.Put(FetchBlobBody{to->size()});
    result = lease.Send(Op::kFetchBlob, body, kBulkToGuest, bulk.offset, piece);
    Reader none;
    uint32_t written = 0;
    if (result == CUDA_SUCCESS) result = lease.Await(&none, &written);
    if (result == CUDA_SUCCESS && written != piece) result = CUDA_ERROR_UNKNOWN;
    if (result == CUDA_SUCCESS) to->insert(to->end(), bulk.bytes, bulk.bytes + piece);
  }
  lease.session().ReleaseBulk(index);
  return result;
}

void CopyPart(uint64_t at, std::span<std::byte> to, const void* from, uint64_t begin, uint64_t size) {
  const uint64_t end = at + to.size();
  const uint64_t first = std::max(at, begin), last = std::min(end, begin + size);
  if (first >= last) return;
  std::memcpy(to.data() + (first - at), static_cast<const std::byte*>(from) + (first - begin), last - first);
}

}  // namespace causeway::guest
