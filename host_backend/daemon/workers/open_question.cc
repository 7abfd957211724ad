// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/workers/open_question.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace causeway::daemon {
namespace {

bool HasSize(int file) {
  struct stat info {};
  return file >= 0 && fstat(file, &info) == 0 && info.st_size == off_t(sizeof(OpenQuestion::Room));
}

}  // namespace

OpenQuestion::~OpenQuestion() {
  if (room_ != &own_) munmap(room_, sizeof(Room));
}

void OpenQuestion::Use(UniqueFd kept) {
  file_ = std::move(kept);
  if (!HasSize(file_.get())) {
    file_ = UniqueFd(memfd_create("causeway-question", MFD_CLOEXEC));
    if (!file_ || ftruncate(file_.get(), sizeof(Room)) != 0) return file_.reset();
  }
  void* const at = mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (at == MAP_FAILED) return file_.reset();
  room_ = static_cast<Room*>(at);
  left_ = *room_;
}

OpenQuestion::Room& OpenQuestion::Next() {
  std::memset(room_, 0, sizeof(Room));
  return *room_;
}

}  // namespace causeway::daemon
