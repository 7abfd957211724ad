// SPDX-License-Identifier: Apache-2.0
// What `causeway attach` reads and writes of a domain's XML, and what it says of a host that would keep QEMU from a region.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "host_backend/command/attach/host_checks.h"
#include "host_backend/command/libvirt/domain_xml.h"
#include "host_backend/command/libvirt/snippets.h"

namespace causeway::command {
namespace {

constexpr const char* kQ35 = R"(<domain type='kvm'>
  <name>one</name>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
  <devices>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'><alias name='pci.1'/></controller>
    <controller type='pci' index='2' model='pcie-root-port'><alias name='pci.2'/></controller>
    <interface type='network'><address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></interface>
    <shmem name='other-tool' role='peer'><model type='ivshmem-plain'/><size unit='M'>4</size></shmem>
  </devices>
  <seclabel type='dynamic' model='dac' relabel='yes'><label>+1:+2</label></seclabel>
  <seclabel type='dynamic' model='apparmor' relabel='yes'><label>libvirt-7</label></seclabel>
</domain>)";
constexpr uint64_t kGib = uint64_t{1} << 30;

DomainXml Parsed(const std::string& text) {
  auto xml = DomainXml::Parse(text);
  EXPECT_TRUE(xml.ok()) << (xml.ok() ? "" : xml.error());
  return std::move(xml.value());
}

TEST(DomainXml, IsReadAsLibvirtWritesIt) {
  const DomainXml xml = Parsed(kQ35);
  EXPECT_EQ(xml.Name(), "one");
  EXPECT_TRUE(xml.IsQ35() && !xml.IsPc());
  EXPECT_EQ(xml.DacLabel(), "+1:+2");
  EXPECT_EQ(xml.AppArmorProfile(), "libvirt-7");
  EXPECT_FALSE(xml.IsEmulated());
  EXPECT_TRUE(Parsed("<domain type='qemu'/>").IsEmulated());
  EXPECT_TRUE(xml.Regions().empty()) << "other tools' shared memory is not ours";
  EXPECT_FALSE(DomainXml::Parse("<domain>").ok());
  EXPECT_FALSE(DomainXml::Parse("").ok());
  EXPECT_FALSE(DomainXml::Parse("<network/>").ok());
}

TEST(DomainXml, APortIsMadeOnceAndUsedAgain) {
  DomainXml xml = Parsed(kQ35);
  EXPECT_FALSE(xml.FreePort(4 * kGib)) << "ordinary ports have no window for a region";
  const uint32_t port = xml.AddPort(4 * kGib);
  EXPECT_EQ(port, 3u);
  xml = Parsed(xml.Text());
  EXPECT_EQ(xml.FreePort(4 * kGib), 3u);
  EXPECT_FALSE(xml.FreePort(8 * kGib));
  xml.AddDevice(ShmemXml("causeway-one", 1024, "", port));
  EXPECT_FALSE(xml.FreePort(4 * kGib)) << "there is a region behind it";
  ASSERT_EQ(xml.Regions().size(), 1u);
  EXPECT_EQ(xml.Regions()[0].region, "causeway-one");
  EXPECT_EQ(xml.Regions()[0].mib, 1024u);
  EXPECT_TRUE(xml.Regions()[0].usable);
  xml.RemoveRegion("causeway-one");
  EXPECT_EQ(xml.FreePort(4 * kGib), 3u);
  // A larger region needs another port, whose name is free.
  EXPECT_EQ(xml.AddPort(8 * kGib), 4u);
  xml = Parsed(xml.Text());
  EXPECT_EQ(xml.FreePort(8 * kGib), 4u);
  EXPECT_NE(xml.Text().find("name='other-tool'") == std::string::npos ? xml.Text().find("name=\"other-tool\"")
                                                                      : size_t{0},
            std::string::npos);
}

TEST(DomainXml, SlotsOfTheFirstBusAreCounted) {
  DomainXml xml = Parsed("<domain><devices/></domain>");
  for (uint32_t slot = 3; slot < 32; ++slot) {
    EXPECT_TRUE(xml.HasFreeSlot()) << slot;
    xml.AddDevice("<interface><address type='pci' domain='0x0000' bus='0x01' slot='" + std::to_string(slot) +
                  "'/></interface>");
    EXPECT_TRUE(xml.HasFreeSlot()) << slot;
    xml.AddDevice("<interface><address type='pci' domain='0x0000' bus='0x00' slot='" + std::to_string(slot) +
                  "'/></interface>");
  }
  EXPECT_FALSE(xml.HasFreeSlot());
}

TEST(DomainXml, RegionsThatCannotWorkAreSeen) {
  std::string text = kQ35;
  text.replace(text.find("other-tool"), 10, "causeway-x");
  EXPECT_TRUE(Parsed(text).Regions()[0].usable);
  text.replace(text.find("role='peer'"), 11, "role='master'");
  EXPECT_FALSE(Parsed(text).Regions()[0].usable)
      << "with a master the guest would be migrated without its region";
}

TEST(DomainXml, ADoorbellIsReadAsItIsWritten) {
  DomainXml xml = Parsed(kQ35);
  xml.AddDevice(ShmemXml("causeway-one", 1024, "/run/causeway/doorbell-one", std::nullopt));
  const std::string text = xml.Text();
  const auto regions = Parsed(text).Regions();
  ASSERT_EQ(regions.size(), 1u);
  EXPECT_TRUE(regions[0].usable);
  EXPECT_EQ(regions[0].mib, 0u) << "libvirt refuses a size there";
  EXPECT_EQ(regions[0].doorbell, "/run/causeway/doorbell-one");
  // Without the path libvirt chooses one of its own, where nobody listens.
  std::string without = text;
  const size_t server = without.find("<server");
  without.erase(server, without.find('>', server) + 1 - server);
  EXPECT_FALSE(Parsed(without).Regions()[0].usable);
}

TEST(Snippets, APortHasRoomForTwice) {
  EXPECT_EQ(PortReserveBytes(64), 4 * kGib);
  EXPECT_EQ(PortReserveBytes(2048), 4 * kGib);
  EXPECT_EQ(PortReserveBytes(4096), 8 * kGib);
  EXPECT_EQ(PortReserveBytes(65536), 128 * kGib);
}

TEST(Capabilities, SayWhoQemuIsAndWhatConfinesIt) {
  const std::string text =
      "<capabilities><host><secmodel><model>apparmor</model><doi>0</doi></secmodel><secmodel><model>dac</"
      "model>"
      "<doi>0</doi><baselabel type='kvm'>+64055:+64056</baselabel><baselabel "
      "type='qemu'>+1:+2</baselabel></secmodel>"
      "</host></capabilities>";
  EXPECT_EQ(BaseDacLabel(text, "kvm"), "+64055:+64056");
  EXPECT_EQ(BaseDacLabel(text, "xen"), "");
  EXPECT_TRUE(HasSecurityModel(text, "apparmor"));
  EXPECT_FALSE(HasSecurityModel(text, "selinux"));
  EXPECT_FALSE(HasSecurityModel("garbage", "selinux"));
  const auto qemu = ParseDacLabel("+64055:+64056");
  ASSERT_TRUE(qemu);
  EXPECT_EQ(qemu->uid, 64055u);
  EXPECT_EQ(qemu->gid, 64056u);
  EXPECT_EQ(ParseDacLabel("root:root")->uid, 0u);
  for (const char* wrong : {"", ":", "+1", "+1:", "nobody-here:root", "+99999999999:+1", "+1:+x"})
    EXPECT_FALSE(ParseDacLabel(wrong)) << wrong;
}

class HostChecks : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_), nullptr); }
  ~HostChecks() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }
  std::string Path(const std::string& name) const { return std::string(folder_) + "/" + name; }

 private:
  char folder_[32] = "/tmp/causeway-test-XXXXXX";
};

TEST_F(HostChecks, TheRegionIsThereAndOpenToQemu) {
  const std::string file = Write("region", "12345678");
  chmod(file.c_str(), 0660);
  const QemuUser own{geteuid(), getegid()}, other{64055, 64055}, of_group{64055, getegid()};
  EXPECT_EQ(WhyNotUsable(file, 8, own), "");
  EXPECT_EQ(WhyNotUsable(file, 8, of_group), "");
  EXPECT_NE(WhyNotUsable(file, 8, other).find("QEMU runs as user 64055"), std::string::npos);
  EXPECT_NE(WhyNotUsable(file, 16, own).find("has 8 bytes instead of 16"), std::string::npos);
  EXPECT_NE(WhyNotUsable(Path("none"), 8, own).find("cannot be examined"), std::string::npos);
  chmod(file.c_str(), 0640);
  EXPECT_NE(WhyNotUsable(file, 8, of_group), "");
}

TEST_F(HostChecks, AppArmorNeedsALineForWhatIsPluggedIn) {
  const std::string file = "/dev/shm/causeway-one";
  AppArmorFiles files{Path("enabled"), Path("local"), Path("causeway")};
  EXPECT_EQ(WhyAppArmorRefuses(file, "libvirt-1234", files), "") << "a kernel without AppArmor";
  Write("enabled", "N\n");
  EXPECT_EQ(WhyAppArmorRefuses(file, "libvirt-1234", files), "");
  Write("enabled", "Y\n");
  const std::string why = WhyAppArmorRefuses(file, "libvirt-1234", files);
  EXPECT_NE(why.find("add the line `  /dev/shm/causeway-* rw,` to " + files.local), std::string::npos) << why;
  EXPECT_NE(why.find("`apparmor_parser -r /etc/apparmor.d/libvirt/libvirt-1234`"), std::string::npos) << why;
  for (const char* wrong :
       {"# /dev/shm/causeway-* rw,\n", "/dev/shm/causeway-* r,\n", "/dev/shm/causeway-onetwo rw,\n"}) {
    Write("local", wrong);
    EXPECT_NE(WhyAppArmorRefuses(file, "libvirt-1234", files), "") << wrong;
  }
  for (const char* right : {"  /dev/shm/causeway-* rw,\n", "/a r,\n/dev/shm/causeway-one rw,\n"}) {
    Write("local", right);
    EXPECT_EQ(WhyAppArmorRefuses(file, "libvirt-1234", files), "") << right;
  }
  // The socket of a doorbell has a line of its own.
  const std::string doorbell = "/run/causeway/doorbell-one";
  EXPECT_NE(WhyAppArmorRefuses(doorbell, "libvirt-1234", files).find("`  /run/causeway/doorbell-* rw,`"),
            std::string::npos);
  Write("local", "  /run/causeway/doorbell-* rw,\n");
  EXPECT_EQ(WhyAppArmorRefuses(doorbell, "libvirt-1234", files), "");
  EXPECT_NE(WhyAppArmorRefuses(file, "libvirt-1234", files), "");
}

TEST_F(HostChecks, ThePackagesLineIsSeen) {
  const AppArmorFiles files{Write("enabled", "Y\n"),
                            Write("local", "include if exists <abstractions/causeway>  # by causeway-host\n"),
                            Path("causeway")};
  EXPECT_NE(WhyAppArmorRefuses("/dev/shm/causeway-one", "libvirt-1234", files), "")
      << "the package's file is gone";
  Write("causeway", "# what QEMU needs\n  /dev/shm/causeway-* rw,\n");
  EXPECT_EQ(WhyAppArmorRefuses("/dev/shm/causeway-one", "libvirt-1234", files), "");
  Write("local", "include if exists <abstractions/other>\n");
  EXPECT_NE(WhyAppArmorRefuses("/dev/shm/causeway-one", "libvirt-1234", files), "");
}

TEST_F(HostChecks, SelinuxNeedsItsLabel) {
  const std::string file = "/dev/shm/causeway-one";
  EXPECT_EQ(WhySelinuxRefuses(file, "system_u:object_r:svirt_tmpfs_t:s0"), "");
  EXPECT_EQ(WhySelinuxRefuses(file, "system_u:object_r:svirt_image_t:s0:c1,c2"), "");
  for (const char* label : {"", "system_u:object_r:tmpfs_t:s0"}) {
    const std::string why = WhySelinuxRefuses(file, label);
    EXPECT_NE(why.find("chcon -t svirt_tmpfs_t " + file), std::string::npos) << why;
    EXPECT_NE(why.find("semanage fcontext"), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace causeway::command
