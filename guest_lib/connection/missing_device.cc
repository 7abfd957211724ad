// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/connection/missing_device.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include <vector>

namespace causeway::guest {
namespace {

// A number such as 0x1af4; 0: there is none.
unsigned NumberIn(const std::string& file) {
  FILE* stream = fopen(file.c_str(), "re");
  if (stream == nullptr) return 0;
  unsigned number = 0;
  if (fscanf(stream, "%x", &number) != 1) number = 0;
  fclose(stream);
  return number;
}

// The entries of a folder, without those that begin with a dot. False: it cannot be read.
bool ListFolder(const std::string& path, std::vector<std::string>* names) {
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return false;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') names->push_back(entry->d_name);
  }
  closedir(folder);
  return true;
}

// As in the module's table of devices: QEMU's shared memory, whoever it is for.
bool IsIvshmem(const std::string& device) {
  return NumberIn(device + "/vendor") == 0x1af4 && NumberIn(device + "/device") == 0x1110;
}

}  // namespace

std::string WhyNoDevice(const std::string& sys) {
  const std::string bus = sys + "/bus/pci/devices";
  std::vector<std::string> devices, nodes;
  if (!ListFolder(bus, &devices))
    return "no ivshmem device with a Causeway region, or the kernel module is not loaded";
  bool has_ivshmem = false;
  for (const std::string& device : devices) has_ivshmem = has_ivshmem || IsIvshmem(bus + "/" + device);
  if (!has_ivshmem) return "this machine has no ivshmem device: run `causeway attach DOMAIN` on its host";
  if (access((sys + "/module/causeway").c_str(), F_OK) != 0) {
    return "the kernel module is not loaded: run `modprobe causeway` as root; the package causeway-dkms "
           "builds it, and with Secure "
           "Boot it must be signed";
  }
  ListFolder(sys + "/class/causeway", &nodes);
  if (!nodes.empty()) return "the kernel has the device, but not here: give it to this container";
  return "the kernel module found no region that it can use: `dmesg | grep causeway` says why";
}

}  // namespace causeway::guest
