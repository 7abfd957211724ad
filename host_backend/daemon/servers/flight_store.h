// SPDX-License-Identifier: Apache-2.0
// What `causeway trace` shows: the flight records (ivshmem_ring/transport/layout.h) of the sessions that are
// served, and of the last ones that ended, in whatever way. The daemon copies the bytes without reading them.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/servers/services.h"

namespace causeway::daemon {

// The host's side of one session: memory that its worker writes, and that cannot shrink under the daemon.
class FlightFile {
 public:
  // Null if the system gives none; the session then has no records of the host's side.
  static std::unique_ptr<FlightFile> Make();
  // One that Make has made before, maybe of another daemon. Null: it is none.
  static std::unique_ptr<FlightFile> Of(UniqueFd fd);
  ~FlightFile();
  FlightFile(const FlightFile&) = delete;
  FlightFile& operator=(const FlightFile&) = delete;

  int fd() const { return fd_.get(); }
  std::string Copy() const;

 private:
  FlightFile(UniqueFd fd, const void* image) : fd_(std::move(fd)), image_(image) {}
  const UniqueFd fd_;
  const void* const image_;
};

struct FlightCopy {
  SessionStatus status;
  std::string end;    // how its worker ended; empty: it lives, or ended in order
  std::string guest;  // FlightImage as bytes, or empty
  std::string host;
};

class FlightStore {
 public:
  // How many ended sessions are kept, 96 KiB each; beyond, the oldest of the scope with most of them goes.
  static constexpr size_t kEnded = 16;

  // Copies a session's records. Without images it copies what a list of sessions needs.
  using Copier = std::function<FlightCopy(bool with_images)>;

  // To be called when a session begins to be served; End copies it a last time. The result is its number.
  uint64_t Begin(Copier copier);
  // A session of a daemon of before goes on under its number.
  void Resume(uint64_t number, Copier copier);
  // 0 is ignored.
  void End(uint64_t number);

  // Answers a LocalTraceRequest of that scope, which sees its own sessions ("": all): the list as JSON, and
  // behind a NUL both images of the session that was asked for. An error is one sentence.
  Result<std::string> Answer(uint64_t wanted, const std::string& scope) const;

 private:
  uint64_t last_number_ = 0;
  std::map<uint64_t, Copier> live_;
  std::deque<FlightCopy> ended_;
};

}  // namespace causeway::daemon
