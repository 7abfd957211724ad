// SPDX-License-Identifier: Apache-2.0
// Text for the guest: what kernels have printed and the driver has logged, and what the driver's log kept.
#include <algorithm>
#include <cstring>
#include <string>

#include "host_backend/worker/driver/private_text.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/callback_messages.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {

CUresult Serve_kFetchOutput(Session& session, Request& request) {
  std::byte text[2048];
  size_t bytes = session.logs().Take(text);
  if (bytes == 0) bytes = session.output().Take(text);
  request.out.PutBytes(text, bytes);
  return request.out.error();
}

CUresult Serve_cuLogsRegisterCallback(Session& session, Request&) {
  return session.logs().Listen();
}

CUresult Serve_cuLogsUnregisterCallback(Session& session, Request&) {
  return session.logs().Forget();
}

// The text lies in the bulk buffer, without the driver's ending zero.
CUresult Serve_cuLogsDumpToMemory(Session&, Request& request) {
  const auto body = request.in.Get<LogDumpBody>();
  if (!request.in.ok()) return request.in.error();
  if (body.bytes == 0 || body.bytes > request.bulk.size() || !OnlyFlags(body.flags, kNoFlags))
    return CUDA_ERROR_INVALID_VALUE;
  // The driver writes into memory that the guest cannot change meanwhile.
  std::string text(body.bytes, '\0');
  size_t bytes = body.bytes;
  CUlogIterator iterator = body.iterator;
  const CUresult result = TheDriver().cuLogsDumpToMemory(body.has_iterator != 0 ? &iterator : nullptr,
                                                         text.data(), &bytes, body.flags);
  const size_t filled = std::min(bytes, text.size());
  text.resize(filled);
  text = WithoutAddresses(text, Keep::kNothing);  // as long as before
  std::memcpy(request.bulk.data(), text.data(), filled);
  request.bulk_written = static_cast<uint32_t>(filled);
  request.out.Put(LogDumpReply{bytes, iterator, 0});
  return result != CUDA_SUCCESS ? result : request.out.error();
}

}  // namespace causeway::host
