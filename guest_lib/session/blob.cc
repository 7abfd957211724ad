// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/session/blob.h"

#include <algorithm>
#include <cstring>

namespace causeway::guest {

Blob::~Blob() {
  if (bulk_ >= 0) lease_.session().ReleaseBulk(static_cast<uint32_t>(bulk_));
}

CUresult Blob::Fill(uint64_t bytes, const BlobCopy& copy) {
  if (bytes > kMaxBlobBytes) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) return Begin(0);
  bulk_ = static_cast<int>(lease_.session().AcquireBulk());
  if (bytes > kBulkBytes) return SendPieces(bytes, copy);
  bytes_ = static_cast<uint32_t>(bytes);
  copy(0, {lease_.session().bulk(static_cast<uint32_t>(bulk_)).bytes, bytes_});
  return CUDA_SUCCESS;
}

CUresult Blob::Begin(uint64_t bytes) {
  Writer begin = lease_.Begin();
  begin.Put(BlobBody{bytes});
  Reader none;
  return lease_.AwaitSent(lease_.Send(Op::kBeginBlob, begin), &none);
}

CUresult Blob::SendPieces(uint64_t bytes, const BlobCopy& copy) {
  CUresult result = Begin(bytes);
  const Bulk bulk = lease_.session().bulk(static_cast<uint32_t>(bulk_));
  Reader none;
  for (uint64_t at = 0; at < bytes && result == CUDA_SUCCESS;) {
    const auto piece = static_cast<uint32_t>(std::min<uint64_t>(kBulkBytes, bytes - at));
    copy(at, {bulk.bytes, piece});
    result = lease_.Send(Op::kAppendBlob, lease_.Begin(), kBulkToHost, bulk.offset, piece);
    result = lease_.AwaitSent(result, &none);
    at += piece;
  }
  return result;
}

CUresult Blob::Send(Op op, const Writer& body, const Submission& submission) {
  if (bytes_ == 0) return lease_.Send(op, body, 0, 0, 0, submission);
  const Bulk bulk = lease_.session().bulk(static_cast<uint32_t>(bulk_));
  return lease_.Send(op, body, kBulkToHost, bulk.offset, bytes_, submission);
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
