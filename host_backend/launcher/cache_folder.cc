// SPDX-License-Identifier: Apache-2.0
#include "host_backend/launcher/cache_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host_backend/common/unique_fd.h"
#include "host_backend/launcher/protocol.h"
#include "host_backend/sandbox/cache_quota.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::launcher {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

bool IsOwn(int folder) {
  struct stat info {};
  return fstat(folder, &info) == 0 && info.st_uid == geteuid();
}

// The kernels in that folder, as the user whose they are. None where anything is not as it should be.
UniqueFd OpenKernels(int cache, const char* name, uint32_t user) {
  const UniqueFd outer(openat(cache, name, kFolder));
  if (!outer || !IsOwn(outer.get()) || setgroups(0, nullptr) != 0 || setresgid(user, user, user) != 0 ||
      setresuid(user, user, user) != 0)
    return {};
  UniqueFd kernels(openat(outer.get(), kKernels, kFolder));
  // A worker that was taken over may have closed it to its own user.
  if (!kernels && errno == EACCES && fchmodat(outer.get(), kKernels, 0700, 0) == 0)
    kernels.reset(openat(outer.get(), kKernels, kFolder));
  return kernels;
}

}  // namespace

int MakeCacheFolder(int cache, uint32_t user) {
  char name[16];
  snprintf(name, sizeof name, "%u", user);
  const UniqueFd outer(openat(cache, name, kFolder));
  if (!outer) return errno;
  if (!IsOwn(outer.get())) return EPERM;
  if (mkdirat(outer.get(), kKernels, 0700) != 0) return errno;
  const UniqueFd made(openat(outer.get(), kKernels, kFolder));
  if (!made) return errno;
  if (!IsOwn(made.get())) return EPERM;
  return fchown(made.get(), user, user) == 0 ? 0 : errno;
}

void HoldCacheFolder(int cache, uint32_t user, uint32_t mib, int socket) {
  char name[16];
  snprintf(name, sizeof name, "%u", user);
  const UniqueFd kernels = OpenKernels(cache, name, user);
  if (!kernels) return;
  // By now, because the kernel counts it as that user's.
  const UniqueFd changes(socket >= 0 ? inotify_init1(IN_NONBLOCK | IN_CLOEXEC) : -1);
  const auto use =
      sandbox::HoldToQuota(kernels.get(), uint64_t{mib} << 20, sandbox::kMostCacheFiles, changes.get());
  if (!use.watched) return;
  const CacheWatch watch{user, 0};
  const int descriptor = changes.get();
  fcntl(socket, F_SETFL, O_NONBLOCK);
  SendPacket(socket, &watch, sizeof watch, std::span(&descriptor, 1));
}

void EmptyDiscarded(int cache, uint32_t user, uint32_t number) {
  char name[64];
  snprintf(name, sizeof name, "%s/%u-%u", kDiscarded, user, number);
  const UniqueFd kernels = OpenKernels(cache, name, user);
  if (kernels) sandbox::EmptyFolder(kernels.get(), 16 * sandbox::kMostCacheFiles);
}

}  // namespace causeway::launcher
