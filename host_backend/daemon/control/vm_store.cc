// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/control/vm_store.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/process/trusted_file.h"

namespace causeway::daemon {
namespace {

constexpr const char* kSuffix = ".toml";

// Whether the change of a folder's entries is on the disk.
bool SyncFolder(const std::string& folder) {
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd && fsync(fd.get()) == 0;
}

bool WriteWhole(const std::string& path, const std::string& text) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  return file && write(file.get(), text.data(), text.size()) == ssize_t(text.size()) &&
         fsync(file.get()) == 0;
}

Result<VmConfig> LoadFile(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat found {};
  if (!file || fstat(file.get(), &found) != 0) return Error{path + " cannot be read: " + ErrnoText() + "."};
  if (const std::string why = WhyNotTrusted(file.get(), found, path); !why.empty())
    return Error{path + " " + why};
  auto vm = LoadAddedVm(path);
  if (vm.ok() && vm.value().name + kSuffix != std::filesystem::path(path).filename())
    return Error{path + ": holds a VM of another name, " + vm.value().name + "; rename it, or delete it."};
  return vm;
}

}  // namespace

VmStore::VmStore(const std::string& state_folder)
    : folder_(state_folder.empty() ? "" : state_folder + "/vms.d") {}

std::vector<VmConfig> VmStore::Load(std::vector<std::string>& problems) const {
  std::vector<std::string> paths;
  std::error_code error;
  if (!folder_.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
      if (entry.path().extension() == kSuffix) paths.push_back(entry.path());
    }
  }
  if (error && error != std::errc::no_such_file_or_directory)
    problems.push_back("The VMs in " + folder_ + " cannot be read: " + error.message() + ".");
  std::sort(paths.begin(), paths.end());
  std::vector<VmConfig> vms;
  for (const std::string& path : paths) {
    auto vm = LoadFile(path);
    if (vm.ok()) {
      vms.push_back(std::move(vm.value()));
    } else {
      problems.push_back(vm.error());
    }
  }
  return vms;
}

std::string VmStore::Save(const VmConfig& vm) const {
  if (folder_.empty())
    return "The configuration of causewayd has no state_folder, so that no VM can be added.";
  const auto failed = [&](const std::string& path) {
    return "The file " + path + " cannot be written: " + ErrnoText() +
           "; make its folder, writable for causewayd, or correct state_folder.";
  };
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return failed(folder_);
  const std::string path = folder_ + "/" + vm.name + kSuffix, fresh = path + ".new";
  if (WriteWhole(fresh, AddedVmText(vm)) && rename(fresh.c_str(), path.c_str()) == 0 && SyncFolder(folder_))
    return {};
  const std::string why = failed(path);
  unlink(fresh.c_str());
  return why;
}

std::string VmStore::Delete(const std::string& name) const {
  const std::string path = folder_ + "/" + name + kSuffix;
  if ((unlink(path.c_str()) == 0 || errno == ENOENT) && SyncFolder(folder_)) return {};
  return "The file " + path + " cannot be deleted: " + ErrnoText() + ".";
}

}  // namespace causeway::daemon
