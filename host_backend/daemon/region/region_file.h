// SPDX-License-Identifier: Apache-2.0
// A VM's region as a file (usually in /dev/shm): created, checked, locked against other daemons, and watched.
#pragma once
#include <sys/stat.h>

#include <memory>
#include <string>

#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/process/launcher_link.h"
#include "host_backend/daemon/region/region_source.h"

namespace causeway::daemon {

class RegionFile final : public RegionSource {
 public:
  // Creates or checks the file, locks and maps it. The launcher gives it to the VMs' group. It is not
  // formatted yet. Errors are sentences that say what to do. `starts`: the daemon does, and waits a second for a lock that another
  // process has; later it waits for nothing, because the file's owner can hold the lock.
  // *was_there, unless it is null: something lay in the file's place. An error is then of what was there, which guests and users of the host can bring
  // about (the folder may be everybody's, as /dev/shm is); otherwise of the configuration.
  static Result<std::unique_ptr<RegionSource>> Open(const VmConfig& vm, LauncherLink& launcher, bool starts,
                                                    bool* was_there);

  // Compares path and open file.
  Finding Check() override;
  // Unless another file has its name by now.
  bool Delete() override;
  std::string Name() const override { return "region " + path_; }

 private:
  RegionFile(std::string path, UniqueFd lock, const struct stat& opened, std::shared_ptr<Region> region)
      : RegionSource(std::move(region)), path_(std::move(path)), lock_(std::move(lock)), opened_(opened) {}
  enum class Change { kNone, kMissing, kReplaced, kShrunk };
  Change Compare();

  const std::string path_;
  const UniqueFd
      lock_;  // an opening of its own: workers share the region's, and must not keep the lock alive
  const struct stat opened_;
};

// The id of a group by name; an error sentence that names `key`.
Result<gid_t> GroupId(const std::string& group, const std::string& key);

}  // namespace causeway::daemon
