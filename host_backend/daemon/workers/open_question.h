// SPDX-License-Identifier: Apache-2.0
// The kernel's question about a worker's system call that this daemon has taken last. The kernel gives each question once,
// and the thread of the worker waits for its answer; a daemon that is killed in between would leave it waiting. So the
// kernel writes the question itself into memory that the launcher keeps, and the next daemon answers what it finds there.
// The daemon's thread alone uses it.
#pragma once
#include <linux/seccomp.h>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {

class OpenQuestion {
 public:
  // The kernel's struct may be larger than the one that this was built with.
  union Room {
    seccomp_notif value;
    char room[sizeof(seccomp_notif) + 256];
  };

  // In memory of this process alone until Use.
  OpenQuestion() = default;
  ~OpenQuestion();
  OpenQuestion(const OpenQuestion&) = delete;
  OpenQuestion& operator=(const OpenQuestion&) = delete;

  // `kept`: the file that a daemon of before has left; none: a new one is made. Before any question is taken.
  void Use(UniqueFd kept);
  // What the launcher keeps; -1 where there is no memory for it.
  int file() const { return file_.get(); }
  // An empty place for the next question.
  Room& Next();
  // What the daemon of before had taken last, answered or not. Its id is 0 where there is nothing.
  const seccomp_notif& left() const { return left_.value; }

 private:
  UniqueFd file_;
  Room* room_ = &own_;
  Room own_{};
  Room left_{};
};

}  // namespace causeway::daemon
