// SPDX-License-Identifier: Apache-2.0
// The sentence for a VM without a device of the kernel module names what is missing.
#include "guest_lib/connection/missing_device.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace causeway::guest {
namespace {

class MissingDevice : public testing::Test {
 protected:
  MissingDevice() {
    char folder[] = "/tmp/missing_device.XXXXXX";
    sys_ = mkdtemp(folder);
  }
  ~MissingDevice() override { std::filesystem::remove_all(sys_); }

  void Device(const std::string& address, const std::string& vendor, const std::string& device) {
    const auto folder = sys_ / "bus/pci/devices" / address;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "vendor") << vendor << "\n";
    std::ofstream(folder / "device") << device << "\n";
  }
  bool Says(const std::string& what) const { return WhyNoDevice(sys_).find(what) != std::string::npos; }

  std::filesystem::path sys_;
};

TEST_F(MissingDevice, NothingIsKnownWithoutSysfs) {
  EXPECT_TRUE(Says("no ivshmem device with a Causeway region, or the kernel module is not loaded"));
}

TEST_F(MissingDevice, TheFirstThingThatIsMissingIsNamed) {
  Device("0000:00:02.0", "0x1af4", "0x1000");
  Device("0000:00:03.0", "0x10de", "0x1110");
  EXPECT_TRUE(Says("run `causeway attach DOMAIN` on its host"));
  Device("0000:00:04.0", "0x1af4", "0x1110");
  EXPECT_TRUE(Says("run `modprobe causeway` as root"));
  std::filesystem::create_directories(sys_ / "module/causeway");
  EXPECT_TRUE(Says("`dmesg | grep causeway` says why"));
  std::filesystem::create_directories(sys_ / "class/causeway");
  EXPECT_TRUE(Says("`dmesg | grep causeway` says why"));
  std::filesystem::create_directories(sys_ / "class/causeway/causeway");
  EXPECT_TRUE(Says("give it to this container"));
}

}  // namespace
}  // namespace causeway::guest
