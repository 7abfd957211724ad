// SPDX-License-Identifier: Apache-2.0
// From opcode to handler: generic rows run through their shape, the others through a function written by
// hand.
#include "host_backend/worker/session/session.h"

namespace causeway::host {
namespace {

using Handler = CUresult (*)(Session&, Request&);

template <Op op>
CUresult ServeRow(Session& session, Request& request) {
  return RowShape<op>::Serve(session, TheDriver().row[static_cast<size_t>(op)], request.in, request.out);
}

struct HandlerTable {
  Handler at[static_cast<size_t>(Op::kCount)] = {};
  constexpr HandlerTable() {
#define SESSION_HANDLER(name) at[static_cast<size_t>(Op::name)] = &Serve_##name;
    SESSION_HANDLER(kOpen)
    SESSION_HANDLER(kOpenChannel)
    SESSION_HANDLER(kAddArena)
    SESSION_HANDLER(kDropArena)
    SESSION_HANDLER(kBeginBlob)
    SESSION_HANDLER(kAppendBlob)
    SESSION_HANDLER(kFetchOutput)
    SESSION_HANDLER(kCopyToDevice)
    SESSION_HANDLER(kCopyToHost)
    SESSION_HANDLER(kDescribeFunction)
    SESSION_HANDLER(kDrainDevice)
    SESSION_HANDLER(kAwaitCallback)
    SESSION_HANDLER(kFetchBlob)
    SESSION_HANDLER(kAgreeOnAddresses)
    SESSION_HANDLER(kFindManaged)
    SESSION_HANDLER(kWriteManaged)
    SESSION_HANDLER(kReadManaged)
    SESSION_HANDLER(kPostedResult)
    SESSION_HANDLER(kUnsafeCall)
    SESSION_HANDLER(kMark)
    SESSION_HANDLER(kQueuedCopy)
    SESSION_HANDLER(kDropShared)
    SESSION_HANDLER(kRegisterHost)
    SESSION_HANDLER(kUnregisterHost)
#define CALL(fn, ...) at[static_cast<size_t>(Op::fn)] = &ServeRow<Op::fn>;
#define POST CALL
#define GUEST CALL
#define CUSTOM(fn) at[static_cast<size_t>(Op::fn)] = &Serve_##fn;
#include "ivshmem_ring/calls.def"
  }
};
constexpr HandlerTable kHandlers;

}  // namespace

CUresult ServeRecord(Session& session, Request& request) {
  const size_t op = request.header.op;
  if (op >= static_cast<size_t>(Op::kCount) || kHandlers.at[op] == nullptr) {
    return session.Breach("a message has no meaning: opcode " + std::to_string(op));
  }
  return kHandlers.at[op](session, request);
}

}  // namespace causeway::host
