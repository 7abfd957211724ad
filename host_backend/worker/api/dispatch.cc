// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/api/dispatch.h"

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/device/context_calls.h"
#include "host_backend/worker/device/device_resources.h"
#include "host_backend/worker/host_register/host_register.h"
#include "host_backend/worker/session/blob.h"
#include "host_backend/worker/session/channels.h"
#include "host_backend/worker/session/dispatcher.h"
#include "host_backend/worker/staging/queued_copy.h"
#include "host_backend/worker/stream/callbacks.h"

namespace causeway::host {
namespace {

template <Op op, auto entry>
CUresult ServeRow(Session& session, Request& request) {
  return RowShape<op>::Serve(session.objects(), TheDriver().*entry, request.in, request.out);
}

struct HandlerTable {
  Session::Handler at[static_cast<size_t>(Op::kCount)] = {};
  constexpr HandlerTable() {
#define OPERATION(name, ...) at[static_cast<size_t>(Op::name)] = &Serve_##name;
#include "ivshmem_ring/operations.def"
#define CALL(fn, ...) at[static_cast<size_t>(Op::fn)] = &ServeRow<Op::fn, &Driver::fn>;
#define GUEST CALL
#define CUSTOM(fn, ...) at[static_cast<size_t>(Op::fn)] = &Serve_##fn;
#include "ivshmem_ring/calls.def"
  }
};
constexpr HandlerTable kHandlers;

}  // namespace

std::unique_ptr<Session> MakeSession(std::unique_ptr<ServerTransport> transport, const RegionView& region) {
  ServerTransport& connection = *transport;
  auto session = std::make_unique<Session>(std::move(transport), kHandlers.at);
  // First: what these two execute uses all the others.
  auto dispatcher = std::make_shared<Dispatcher>(*session, connection);
  session->Own(std::make_shared<Channels>(*session, *dispatcher, connection));
  session->Own(std::move(dispatcher));
  session->Own(std::make_shared<Blobs>(Blobs::MostFor(region.bytes)));
  auto arenas = std::make_shared<Arenas>(*session, region);
  auto callbacks = std::make_shared<Callbacks>();
  SetCurrentCallbacks(callbacks);
  session->Own(std::make_shared<CopyQueues>());
  session->Own(std::make_shared<DeviceResources>());
  session->Own(std::make_shared<Primaries>());
  session->Own(std::make_shared<HostRanges>(*session, *arenas));
  session->Own(std::move(arenas));
  session->Own(std::move(callbacks));  // last: what it releases meets a session that takes no more requests
  return session;
}

}  // namespace causeway::host
