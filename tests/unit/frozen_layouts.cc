// SPDX-License-Identifier: Apache-2.0
// What peers of different releases share has the layout that frozen_layouts.txt says (docs/versions.md). A field that is
// added gets its line there; one that is moved or resized is a mistake. With --print the text is printed.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "host_backend/common/remote/remote_hand_over.h"
#include "host_backend/common/remote/tls_hand_over.h"
#include "host_backend/common/shares/account_page.h"
#include "host_backend/common/worker_control.h"
#include "host_backend/launcher/protocol.h"
#include "ivshmem_ring/hosts/pool_messages.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/messages/resume_messages.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway {
namespace {

template <class Type>
void Describe(std::ostream& text);

#define STRUCT(type)                         \
  template <>                                \
  void Describe<type>(std::ostream & text) { \
    using Struct = type;                     \
    text << #type << " " << sizeof(Struct) << "\n";
#define FIELD(field) \
  text << "  " #field " at " << offsetof(Struct, field) << ", " << sizeof(Struct::field) << "\n";
#define END }

// clang-format off
STRUCT(Superblock) FIELD(magic) FIELD(abi_major) FIELD(abi_minor) FIELD(header_bytes) FIELD(region_bytes)
  FIELD(features) FIELD(host_epoch) FIELD(api_hash) FIELD(slot_count) FIELD(granule_bytes) FIELD(granule_count)
  FIELD(channel_count) FIELD(window_address) FIELD(uuid) FIELD(crc32) FIELD(reserved) END
STRUCT(HostPage) FIELD(beat) FIELD(state) FIELD(doorbell) FIELD(reset_acknowledged) FIELD(reserved1) FIELD(slot) END
STRUCT(GuestPage) FIELD(epoch) FIELD(features) FIELD(reserved) FIELD(slot) FIELD(pid) FIELD(uid) END
STRUCT(HotWord) FIELD(value) FIELD(padding) END
STRUCT(GuestChannelWords) FIELD(request_tail) FIELD(reply_head) FIELD(waiting) END
STRUCT(HostChannelWords) FIELD(request_head) FIELD(reply_tail) FIELD(waiting) END
STRUCT(OpenBlock) FIELD(magic) FIELD(abi_major) FIELD(abi_minor) FIELD(pid) FIELD(api_hash) FIELD(window_address)
  FIELD(environment_bytes) FIELD(kind) FIELD(environment) FIELD(release) FIELD(features) FIELD(reserved) END
STRUCT(GuestControl) FIELD(main_tail) FIELD(reserved) FIELD(channel) FIELD(open) END
STRUCT(HostControl) FIELD(main_head) FIELD(main_waiting) FIELD(async_error) FIELD(ready) FIELD(channel) FIELD(refusal)
  FIELD(open_channels) END
STRUCT(FlightClock) FIELD(ticks) FIELD(ns) END
STRUCT(FlightHeader) FIELD(version) FIELD(record_bytes) FIELD(first) FIELD(last) FIELD(reserved) END
STRUCT(FlightRecord) FIELD(begin) FIELD(end) FIELD(number) FIELD(who) FIELD(bytes) FIELD(op) FIELD(reserved) END
STRUCT(FlightImage) FIELD(header) FIELD(main) FIELD(channel) END
STRUCT(BuildStamp) FIELD(tag) FIELD(api_hash) FIELD(release) END
STRUCT(LocalRequest) FIELD(magic) FIELD(abi_major) FIELD(abi_minor) FIELD(kind) END
STRUCT(LocalTraceRequest) FIELD(request) FIELD(session) END
STRUCT(LocalReply) FIELD(magic) FIELD(accepted) FIELD(reserved) FIELD(region_bytes) FIELD(text) END
STRUCT(RemoteHandOver) FIELD(magic) FIELD(vm) FIELD(key) FIELD(peer) END
STRUCT(KeyHandOver) FIELD(who) FIELD(id) END STRUCT(KeyEnded) FIELD(magic) FIELD(id) END
STRUCT(SessionToken) FIELD(session) FIELD(secret) END
STRUCT(ResumeGrant) FIELD(magic) FIELD(token) FIELD(grace_s) FIELD(reserved) END
STRUCT(ResumeRequest) FIELD(token) FIELD(attempt) FIELD(received) END STRUCT(ResumeGreeting) FIELD(magic) FIELD(received) END
STRUCT(CompressionGrant) FIELD(magic) FIELD(method) FIELD(reserved) END
STRUCT(TlsDirection) FIELD(secret) FIELD(sequence) END
STRUCT(TlsTraffic) FIELD(reading) FIELD(writing) FIELD(cipher) FIELD(reserved) END
STRUCT(TlsHandOver) FIELD(magic) FIELD(traffic) END
STRUCT(WorkerReady) FIELD(failed) FIELD(driver_version) FIELD(device_count) FIELD(loads_lazily)
  FIELD(device_free_bytes) FIELD(api_hash) FIELD(control_version) FIELD(features) FIELD(release) FIELD(text)
  FIELD(sandbox) END
STRUCT(WorkerTellDevices) FIELD(reserved) END
STRUCT(WorkerDeviceUse) FIELD(name) FIELD(uuid) FIELD(load_percent) FIELD(reserved) FIELD(free_bytes) FIELD(memory_bytes) END
STRUCT(PoolAnswer) FIELD(sessions) FIELD(gpu_count) FIELD(gpu_bytes) FIELD(reserved) END
STRUCT(PoolGpu) FIELD(memory_bytes) FIELD(free_bytes) FIELD(load_percent) FIELD(reserved) FIELD(uuid) FIELD(name) END
STRUCT(WorkerMemoryUse) FIELD(pid) FIELD(reserved) FIELD(bytes) FIELD(uuid) END
STRUCT(WorkerConfined) FIELD(filter_instructions) FIELD(has_listener) FIELD(reserved) END
STRUCT(WorkerScope) FIELD(user) FIELD(reserved) FIELD(cache_bytes) END
STRUCT(WorkerAssignment) FIELD(kind) FIELD(slot) FIELD(session) FIELD(has_client_socket) FIELD(region_bytes)
  FIELD(window_address) FIELD(account_cell) FIELD(has_flight) FIELD(user) FIELD(has_bell) FIELD(cache_bytes) END
STRUCT(WorkerLongAssignment) FIELD(assignment) FIELD(grace_s) FIELD(compresses) END
STRUCT(WorkerLink) FIELD(waits) FIELD(reserved) END STRUCT(WorkerResume) FIELD(received) FIELD(reserved) END
STRUCT(WorkerUsage) FIELD(calls) FIELD(violations) FIELD(errors) FIELD(bytes_to_device) FIELD(bytes_to_host) END
STRUCT(SharingRequest) FIELD(action) FIELD(kind) FIELD(number) FIELD(has_descriptor) FIELD(token) FIELD(bytes) END
STRUCT(ImageRequest) FIELD(hash) FIELD(bytes) END
STRUCT(SharingReply) FIELD(result) FIELD(has_descriptor) FIELD(number) FIELD(token) FIELD(bytes) END
STRUCT(GpuPair) FIELD(from) FIELD(to) END
STRUCT(CheckpointOrder) FIELD(action) FIELD(guest_pid) FIELD(timeout_ms) FIELD(pairs) FIELD(again) FIELD(pair) END
STRUCT(CheckpointAnswer) FIELD(result) FIELD(state) FIELD(again) END
STRUCT(WorkerReach) FIELD(number) FIELD(reserved) END STRUCT(WorkerReachable) FIELD(number) FIELD(reserved) END
STRUCT(WorkerQuery) FIELD(what) END
STRUCT(WorkerPeer) FIELD(guest_pid) FIELD(worker_pid) END
STRUCT(WorkerPeers) FIELD(count) FIELD(reserved) FIELD(peer) END
STRUCT(launcher::Request) FIELD(action) FIELD(worker) FIELD(pid) FIELD(group) FIELD(user) FIELD(number)
  FIELD(worker_hash) FIELD(link) FIELD(environment_bytes) FIELD(reserved) FIELD(gpus) FIELD(environment) END
STRUCT(launcher::Answer) FIELD(error) FIELD(pid) FIELD(status) FIELD(reserved) FIELD(key) END
STRUCT(launcher::VmProcess) FIELD(pid) FIELD(reserved) END STRUCT(launcher::CacheWatch) FIELD(user) FIELD(reserved) END
    STRUCT(AccountCell) FIELD(device) FIELD(on_device) FIELD(asked) FIELD(by_kind) FIELD(refused) END
    STRUCT(TurnCell) FIELD(turns) FIELD(waits) FIELD(links) END
    STRUCT(TurnWords) FIELD(submitted) FIELD(waiting) FIELD(unmarked) FIELD(sent) FIELD(slice_us) FIELD(done) END
    STRUCT(GrantWords) FIELD(grant) FIELD(openings) FIELD(seen_ns) FIELD(slice_us) FIELD(news) FIELD(queue_us) END
    STRUCT(LinkWords) FIELD(copied) FIELD(waiting) FIELD(done) END
    STRUCT(LinkGrantWords) FIELD(grant) FIELD(window_kib) FIELD(seen_ns) FIELD(others_copy) END
    // clang-format on

    template <class... Types>
    std::string All() {
  std::ostringstream text;
  (Describe<Types>(text), ...);
  // What a control page, a slot and an account page are made of lies at these places.
  text << "granule 0: " << kSuperblockOffset << " " << kHostPageOffset << " " << kGuestPageOffset << " "
       << kOwnerTableOffset << "\n"
       << "slot: " << kGuestControlOffset << " " << kHostControlOffset << " " << kGuestFlightOffset << " "
       << kMainRingOffset << " " << kChannelRingsOffset << "\n"
       << "account page: " << sizeof(AccountPage) << ", cells " << kAccountCells << ", kinds " << kMemoryKinds
       << "\n";
  return text.str();
}

std::string Layouts() {
  return All<Superblock, HostPage, GuestPage, HotWord, GuestChannelWords, HostChannelWords, OpenBlock,
             GuestControl, HostControl, FlightClock, FlightHeader, FlightRecord, FlightImage, BuildStamp,
             LocalRequest, LocalTraceRequest, LocalReply, RemoteHandOver, KeyHandOver, KeyEnded, SessionToken,
             ResumeGrant, ResumeRequest, ResumeGreeting, CompressionGrant, TlsDirection, TlsTraffic,
             TlsHandOver, PoolAnswer, PoolGpu, WorkerReady, WorkerTellDevices, WorkerDeviceUse,
             WorkerMemoryUse, WorkerConfined, WorkerScope, WorkerAssignment, WorkerLongAssignment, WorkerLink,
             WorkerResume, WorkerUsage, SharingRequest, ImageRequest, SharingReply, GpuPair, CheckpointOrder,
             CheckpointAnswer, WorkerReach, WorkerReachable, WorkerQuery, WorkerPeer, WorkerPeers,
             launcher::Request, launcher::Answer, launcher::VmProcess, launcher::CacheWatch, AccountCell,
             TurnCell, TurnWords, GrantWords, LinkWords, LinkGrantWords>();
}

int Run(const char* file) {
  const std::string now = Layouts();
  if (std::strcmp(file, "--print") == 0) {
    std::fputs(now.c_str(), stdout);
    return 0;
  }
  std::ifstream input(file);
  const std::string frozen(std::istreambuf_iterator<char>(input), {});
  std::istringstream left(frozen), right(now);
  std::string was, is;
  while (std::getline(left, was), std::getline(right, is), left || right) {
    if (left && right && was == is) continue;
    std::printf(
        "frozen_layouts: '%s' is now '%s': peers of other releases still have the former "
        "(docs/versions.md says what may be done)\n",
        was.c_str(), is.c_str());
    return 1;
  }
  return frozen.empty() ? 1 : 0;
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  return argc == 2 ? causeway::Run(argv[1]) : 2;
}
