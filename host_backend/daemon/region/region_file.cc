// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/region/region_file.h"

#include <fcntl.h>
#include <grp.h>
#include <unistd.h>

#include "host_backend/daemon/process/file_lock.h"
#include "host_backend/daemon/process/trusted_file.h"

namespace causeway::daemon {
namespace {

std::string Mib(uint64_t bytes) {
  return bytes % kMib == 0 ? std::to_string(bytes / kMib) + " MiB" : std::to_string(bytes) + " bytes";
}

struct Opened {
  UniqueFd fd;
  bool created = false;
};

Result<Opened> OpenOrCreate(const VmConfig& vm, const std::string& intro, bool* was_there) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Opened opened;
  opened.fd.reset(open(vm.region_file.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
  opened.created = bool(opened.fd);
  *was_there = !opened.fd && errno == EEXIST;
  if (*was_there) opened.fd.reset(open(vm.region_file.c_str(), kFlags));
  if (opened.fd) return opened;
  switch (errno) {
    case ENOENT:
      return Error{
          intro +
          "cannot be created because its folder does not exist; create the folder or correct region_file."};
    case EACCES:
    case EPERM:
      return Error{
          intro +
          "cannot be opened: permission denied; run causewayd as a user that may write it, or have it "
          "created with `install -m 0660 -o " +
          std::to_string(geteuid()) + " -g libvirt-qemu /dev/null " + vm.region_file + "`."};
    case ELOOP:
      return Error{intro + "is a symbolic link; name the file itself in region_file."};
    case EISDIR:
      return Error{intro + "is a folder; name a file in region_file."};
    default:
      return Error{intro + "cannot be opened: " + ErrnoText() + "; correct region_file."};
  }
}

// Size and mode of a file that this start created or found empty.
std::string Prepare(const Opened& opened, const VmConfig& vm, LauncherLink& launcher,
                    const std::string& intro, bool empty) {
  if (opened.created) {
    int problem = 0;
    if (!vm.region_group.empty()) {
      const auto id = GroupId(vm.region_group, "region_group");
      if (!id.ok()) return id.error();
      problem = launcher.GiveToGroup(opened.fd.get(), id.value());
    }
    if (problem == 0 && fchmod(opened.fd.get(), 0660) != 0) problem = errno;
    if (problem != 0) {
      return intro + "cannot be given to group " + vm.region_group + ": " + ErrnoText(problem) +
             "; run causewayd by its systemd unit or as root, or correct region_group.";
    }
    if (vm.region_user != 0) problem = launcher.GiveToUser(opened.fd.get(), vm.region_user);
    if (problem != 0) {
      return intro + "cannot be given to user " + std::to_string(vm.region_user) + ": " + ErrnoText(problem) +
             "; run causewayd by its systemd unit or as root.";
    }
  }
  if (empty && ftruncate(opened.fd.get(), off_t(vm.region_mib * kMib)) != 0) {
    return intro + "cannot be made " + Mib(vm.region_mib * kMib) + " large: " + ErrnoText() +
           "; free space in its file system or lower region_mib.";
  }
  return {};
}

// Nothing that another user could have made, or may open, is adopted.
std::string CheckExisting(int fd, const struct stat& found, const VmConfig& vm, const std::string& intro) {
  if (!S_ISREG(found.st_mode)) return intro + "is not a regular file; name another in region_file.";
  const uint32_t bits = found.st_mode & 07777u;
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", bits);
  if ((bits & 0007) != 0) {
    return intro + "is accessible to every user of this host (mode " + mode + "); run `chmod 0660 " +
           vm.region_file + "` and give it to the group that QEMU runs as.";
  }
  if (bits != 0660 && bits != 0600)
    return intro + "has mode " + mode + " instead of 0660; run `chmod 0660 " + vm.region_file + "`.";
  if (std::string text = WhyNotTrusted(fd, found, vm.region_file, vm.region_user); !text.empty())
    return intro + text;
  gid_t group = getegid();
  if (!vm.region_group.empty()) {
    const auto id = GroupId(vm.region_group, "region_group");
    if (!id.ok()) return id.error();
    group = id.value();
  }
  if (bits == 0660 && found.st_gid != group) {
    return intro + "is accessible to group " + std::to_string(found.st_gid) + " instead of " +
           std::to_string(group) +
           "; name its group in region_group, or delete it so that it is created anew.";
  }
  const uint64_t wanted = vm.region_mib * kMib;
  if (found.st_size != 0 && uint64_t(found.st_size) != wanted) {
    return intro + "is " + Mib(uint64_t(found.st_size)) + " large but region_mib says " +
           std::to_string(vm.region_mib) +
           "; correct region_mib, or shut the VM down and delete the file so that it is created anew.";
  }
  return {};
}

}  // namespace

Result<gid_t> GroupId(const std::string& group, const std::string& key) {
  errno = 0;
  const struct group* found = getgrnam(group.c_str());
  if (found == nullptr)
    return Error{"The group \"" + group + "\" of " + key + " does not exist; create it or correct " + key +
                 "."};
  return found->gr_gid;
}

Result<std::unique_ptr<RegionSource>> RegionFile::Open(const VmConfig& vm, LauncherLink& launcher,
                                                       bool starts, bool* was_there) {
  const std::string intro = "The region file " + vm.region_file + " of VM " + vm.name + " ";
  bool unused = false;
  auto opened = OpenOrCreate(vm, intro, was_there != nullptr ? was_there : &unused);
  if (!opened.ok()) return Error{opened.error()};
  const auto fail = [&](const std::string& text) {
    if (opened.value().created) unlink(vm.region_file.c_str());
    return Error{text};
  };

  struct stat found {};
  if (fstat(opened.value().fd.get(), &found) != 0)
    return fail(intro + "cannot be examined: " + ErrnoText() + ".");
  if (!opened.value().created) {
    if (std::string text = CheckExisting(opened.value().fd.get(), found, vm, intro); !text.empty())
      return Error{text};
  }
  // The lock comes first: another daemon may be serving this file right now.
  UniqueFd lock(open(vm.region_file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat locked {};
  if (lock &&
      (fstat(lock.get(), &locked) != 0 || locked.st_ino != found.st_ino || locked.st_dev != found.st_dev))
    return Error{intro + "was replaced while it was opened; start causewayd again."};
  if (!lock || !(starts ? LockExclusively(lock.get()) : LockAtOnce(lock.get()))) {
    return fail(intro +
                "is in use by another causewayd; stop that one, or give this VM a region_file of its own.");
  }
  if (std::string text = Prepare(opened.value(), vm, launcher, intro, found.st_size == 0); !text.empty())
    return fail(text);
  fstat(opened.value().fd.get(), &found);

  auto region = Region::Map(std::move(opened.value().fd), vm.region_mib * kMib, vm.region_file);
  if (!region.ok()) return fail(region.error());
  Region& mapped = *region.value();
  if (!mapped.IsBlank() && !mapped.HasMagic()) {
    return fail(intro +
                "already holds something that is not a Causeway region; if nothing needs it, delete it so "
                "that it is created anew, "
                "or name another in region_file.");
  }
  return std::unique_ptr<RegionSource>(new RegionFile(vm.region_file, std::move(lock), found,
                                                      std::shared_ptr<Region>(std::move(region.value()))));
}

RegionFile::Change RegionFile::Compare() {
  struct stat now {};
  if (fstat(region().fd(), &now) != 0 || now.st_size < off_t(region().bytes())) return Change::kShrunk;
  if (lstat(path_.c_str(), &now) != 0) return Change::kMissing;
  return now.st_ino == opened_.st_ino && now.st_dev == opened_.st_dev ? Change::kNone : Change::kReplaced;
}

RegionSource::Finding RegionFile::Check() {
  const std::string intro = "the region file " + path_ + " was ";
  switch (Compare()) {
    case Change::kNone:
      return {};
    case Change::kMissing:
      // The VM may still hold the old file; only a new VM would not find it.
      return {State::kWarning,
              intro + "deleted; sessions go on, but before the VM starts again causewayd must be restarted"};
    case Change::kReplaced:
      return {State::kLost, intro + "replaced by another; its sessions end"};
    case Change::kShrunk:
      return {State::kLost, intro + "truncated; its sessions end"};
  }
  return {};
}

bool RegionFile::Delete() {
  const Change change = Compare();
  if (change == Change::kMissing) return true;
  return change == Change::kNone && unlink(path_.c_str()) == 0;
}

}  // namespace causeway::daemon
