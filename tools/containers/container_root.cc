// SPDX-License-Identifier: Apache-2.0
#include "tools/containers/container_root.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "host_backend/common/result.h"
#include "tools/containers/own_ldconfig.h"

namespace causeway::containers {
namespace {

constexpr const char* kLibraries[] = {"libcuda.so.1", "libnvidia-ml.so.1"};
constexpr const char* kNames[] = {"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"};

// Below `root`, as a process of the container would find it; with `within`, on the root's own mount alone.
UniqueFd Find(int root, const std::string& path, int flags, bool within) {
  open_how how{};
  how.flags = unsigned(flags) | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | (within ? RESOLVE_NO_XDEV : 0);
  return UniqueFd(int(syscall(SYS_openat2, root, path.c_str(), &how, sizeof(how))));
}

// A further mount of what `file` is, which is nowhere yet; of that mount alone and nothing below it.
UniqueFd CloneMount(int file) {
  return UniqueFd(int(syscall(SYS_open_tree, file, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
}

bool Attach(int mount, int target) {
  return syscall(SYS_move_mount, mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) ==
         0;
}

bool Same(int a, int b) {
  struct stat first {
  }, second{};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

bool IsFile(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

// The name of the file that `name` leads to in the libraries' folder.
const char* LibraryOf(const std::string& name) {
  return name.starts_with("libcuda") ? kLibraries[0] : kLibraries[1];
}

// Whether what is written to the container's root goes into a layer of the container's own over the image. Any other root, of
// podman's --rootfs for example, may be a folder of the host that others use.
bool IsOwnLayer(const struct statfs& root) {
  return root.f_type == OVERLAYFS_SUPER_MAGIC;
}

// By the mount whose root is the current folder, no device, no program and no right of a program's owner is reached from now on. A
// container's own layer becomes writable, although the container will see it read-only; another root that is read-only is refused.
// This is mount() and not mount_setattr(), which Linux has from 5.12 on.
std::string RestrictMount() {
  struct statfs found {};
  if (statfs(".", &found) != 0) return "its root cannot be examined: " + ErrnoText();
  if ((found.f_flags & ST_RDONLY) != 0 && !IsOwnLayer(found)) {
    return "its root is read-only, and not an overlay of the container's own, where it could be written; "
           "start it without --read-only, or from an image in place of --rootfs";
  }
  if (mount(nullptr, ".", nullptr, MS_REMOUNT | MS_BIND | MS_NODEV | MS_NOSUID | MS_NOEXEC, nullptr) != 0)
    return "its root cannot be mounted without devices and programs: " + ErrnoText();
  return {};
}

// Leaves this process in a mount namespace of its own, where the root's mount without all others, and the libraries, are at
// `root`; the current folder then is that root. Empty, or what failed.
std::string SeparateImage(int root) {
  // Of what is open, the current folder alone goes over into the namespace.
  if (fchdir(root) != 0 || unshare(CLONE_NEWNS) != 0)
    return "a mount namespace cannot be made: " + ErrnoText();
  const UniqueFd own(open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd libraries = Find(own.get(), kLibraryFolder, O_PATH | O_DIRECTORY, false);
  if (!libraries) return std::string("the folder /") + kLibraryFolder + " is not in it: " + ErrnoText();
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return "mounts cannot be made private: " + ErrnoText();
  const UniqueFd image = CloneMount(own.get());
  const UniqueFd clone = CloneMount(libraries.get());
  if (!image || !clone || !Attach(image.get(), own.get()) || fchdir(image.get()) != 0)
    return "its root cannot be mounted: " + ErrnoText();
  if (std::string text = RestrictMount(); !text.empty()) return text;
  const UniqueFd place = Find(image.get(), kLibraryFolder, O_PATH | O_DIRECTORY, true);
  if (!place || !Attach(clone.get(), place.get())) return "the libraries cannot be mounted: " + ErrnoText();
  return {};
}

}  // namespace

std::string CoverOtherLibraries(int root, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    for (const char* name : kNames) {
      const UniqueFd other = Find(root, folder + "/" + name, O_PATH, true);
      if (!other || !IsFile(other.get())) continue;
      const std::string own_path = std::string(kLibraryFolder) + "/" + LibraryOf(name);
      const UniqueFd own = Find(root, own_path, O_PATH, false);
      if (!own) return "/" + own_path + " is not in it: " + ErrnoText();
      if (Same(own.get(), other.get())) continue;
      const UniqueFd clone = CloneMount(own.get());
      if (!clone || !Attach(clone.get(), other.get()))
        return "its " + folder + "/" + name + " cannot be covered: " + ErrnoText();
    }
  }
  return {};
}

std::string RefreshLoaderCache(int root) {
  // Else the cache would be made where no program of the container sees it.
  if (!Find(root, "etc", O_PATH | O_DIRECTORY, true)) {
    return errno == EXDEV ? "its /etc is a mount of its own, where the loader's cache is not written"
                          : "it has no folder /etc for the loader's cache: " + ErrnoText();
  }
  const UniqueFd program = CopyOwnLdconfig();
  if (!program) return "this system has no ldconfig that is a static program, which makes the loader's cache";
  return RunApart(program.get(), [root](std::string* why) {
    *why = SeparateImage(root);
    if (why->empty() && chroot(".") != 0) *why = "its root cannot be entered: " + ErrnoText();
  });
}

}  // namespace causeway::containers
