// SPDX-License-Identifier: Apache-2.0
// What a worker has one of, for fuzzers whose process stands for many workers, one after the other: as new
// for each input.
#pragma once
#include "host_backend/worker/process/daemon_link.h"
#include "host_backend/worker/session/session.h"
#include "tests/fuzz/script.h"

namespace causeway::fuzz {

// While one lives, this process is a worker that serves a session of `prefix`'s kind.
class OneWorker {
 public:
  explicit OneWorker(const ScriptPrefix& prefix);
  ~OneWorker();
  OneWorker(const OneWorker&) = delete;
  OneWorker& operator=(const OneWorker&) = delete;

  // In half of the inputs the session's gates follow a daemon that grants this or that, by the seed.
  void TakeTurns(host::Session& session) const;

 private:
  const uint64_t seed_;
};

// Whether that is a mark's word of the worker's own page of turns, which the GPU writes.
bool IsMarkWord(CUdeviceptr address);

// The daemon, for what processes share and for images that are kept (fake_daemon.cc, in place of the worker's
// questions on its control socket). A token means what was shared last of its kind, so that recorded ones
// mean something.
host::DaemonLink& TheFakeDaemon();
// Everything that it keeps is forgotten.
void ResetFakeDaemon();

}  // namespace causeway::fuzz
