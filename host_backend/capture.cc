// SPDX-License-Identifier: Apache-2.0
// What stream capture needs beside the rows: errors at the call for what is posted else.
#include "host_backend/session.h"

namespace causeway::host {

CUresult Serve_kPostedResult(Session& session, Request& request) {
  const auto sequence = request.in.Get<uint64_t>();
  return request.in.ok() ? session.TakePostedResult(sequence) : request.in.error();
}

// The query of any stream is such a call; this one is idle and takes part in no capture.
CUresult Serve_kUnsafeCall(Session&, Request&) {
  Driver& driver = TheDriver();
  if (driver.cuStreamCreate == nullptr || driver.cuStreamQuery == nullptr ||
      driver.cuStreamDestroy_v2 == nullptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUstream stream = nullptr;
  if (const CUresult result = driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) return result;
  const CUresult result = driver.cuStreamQuery(stream);
  driver.cuStreamDestroy_v2(stream);
  return result;
}

}  // namespace causeway::host
