// SPDX-License-Identifier: Apache-2.0
// causewayd's configuration and start: each mistake is one sentence with file and line, or file and remedy.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/region/region.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway {
namespace {

using daemon::LoadConfig;

std::string ErrorOf(const std::string& text) {
  test::TemporaryFolder folder;
  const std::string path = folder.path() + "/c.toml";
  std::ofstream(path) << text;
  const auto config = LoadConfig(path);
  if (config.ok()) return "accepted";
  // The folder's name is random: the file's stays.
  return config.error().substr(config.error().find("c.toml"));
}

TEST(ConfigTest, EachMistakeNamesItsLine) {
  const char* const cases[][2] = {
      {"soket = \"/a\"", "c.toml:1: soket is not a known key; known here are"},
      {"\nsocket = 5", "c.toml:2: socket must be a string in quotes."},
      {"socket = \"relative\"", "c.toml:1: socket must be an absolute path, but is \"relative\"."},
      {"spare_workers = -1", "c.toml:1: spare_workers is -1 but must be from 0 to 64."},
      {"spare_workers = 2\nmax_spare_workers = 1",
       "c.toml:2: max_spare_workers is 1 but must be from 2 to 64."},
      {"spare_workers = \"1\"", "c.toml:1: spare_workers must be a whole number from 0 to 64."},
      {"local_region_mib = 96", "c.toml:1: local_region_mib is 96 but must be a power of two."},
      {"local_region_mib = 32", "c.toml:1: local_region_mib is 32 but must be from 64 to 65536."},
      {"socket_mode = \"999\"", "c.toml:1: socket_mode must be an octal mode in quotes such as \"0660\"."},
      {"log_level = \"loud\"", "c.toml:1: log_level must be debug, info, warning or error, but is \"loud\"."},
      {"max_sessions = 0", "c.toml:1: max_sessions is 0 but must be from 1 to 4096."},
      {"x = = 1", "c.toml:1: not valid TOML:"},
      {"[[vm]]\nregion_file = \"/a\"", "c.toml:1: [[vm]] name is missing."},
      {"[[vm]]\nname = \"a\"", "c.toml:1: [[vm]] region_file is missing."},
      {"vm = 3", "c.toml:1: vm must be tables that begin with [[vm]]."},
      {"[[vm]]\nname = \"a\"\nregion_file = \"/a\"\nregion_mib = 100",
       "c.toml:4: [[vm]] region_mib is 100 but must be a power of two."},
      {"[[vm]]\nname = \"a\"\nregion_file = \"/a\"\n[[vm]]\nname = \"a\"\nregion_file = \"/b\"",
       "c.toml:4: vm name \"a\" is used twice."},
      {"[[vm]]\nname = \"a\"\nxen_domain = \"../a\"",
       "c.toml:3: [[vm]] xen_domain must be the name of a Xen domain as `xl list` shows it."},
      {"[[vm]]\nname = \"a\"\nxen_domain = \"a\"\nregion_mib = 4096",
       "c.toml:4: [[vm]] region_mib must be at most 2048 for a Xen domain, whose memory is granted page by "
       "page."},
      {"[[vm]]\nname = \"a\"\nxen_domain = \"a\"\n[[vm]]\nname = \"b\"\nxen_domain = \"a\"",
       "c.toml:4: vm xen_domain \"a\" is used twice; regions are never shared."},
      {"[[vm]]\nname = \"a\"\nregion_file = \"/a\"\n[[vm]]\nname = \"b\"\nregion_file = \"/a\"",
       "c.toml:4: vm region_file \"/a\" is used twice; regions are never shared."},
      {"local_device_memory_mib = 0",
       "c.toml:1: local_device_memory_mib is 0 but must be from 1 to 16777216."},
      {"local_gpus = \"GPU-1\"",
       "c.toml:1: local_gpus must be a list of 1 to 16 UUIDs such as [\"GPU-...\"]"},
      {"local_gpus = [\"0\"]", "c.toml:1: local_gpus must name GPUs by their UUIDs (GPU-... or MIG-...)"},
      {"local_gpus = [\"GPU-1,GPU-2\"]", "c.toml:1: local_gpus must name GPUs by their UUIDs"},
      {"[[vm]]\nname = \"a\"\nregion_file = \"/a\"\ngpus = [\"GPU-1\", \"GPU-1\"]",
       "c.toml:4: [[vm]] gpus names GPU-1 twice."},
      {"[tcp]\nlisten = \"localhost\"", "c.toml:2: [tcp] listen must be a numeric address and a port"},
      {"[tcp]\nlisten = \"127.0.0.1:70000\"", "c.toml:2: [tcp] listen must be a numeric address and a port"},
      {"[tcp]\nlisten = \"0.0.0.0:7470\"",
       "c.toml:2: [tcp] listen is not a loopback address: the connection is neither"},
      {"[[user]]\nown_spares = 1", "c.toml:1: [[user]] uid is missing."},
      {"[[user]]\nuid = 5\n[[user]]\nuid = 5", "c.toml:3: user uid 5 is used twice."},
      {"[[user]]\nuid = 1\nown_spares = 40\n[[user]]\nuid = 2\nown_spares = 40",
       "c.toml:1: own_spares are 80 together, more than 64."},
      {"[tcp]\nport = 3", "c.toml:1: [tcp] listen is missing."},
  };
  for (const auto& [text, wanted] : cases) {
    EXPECT_EQ(ErrorOf(text).substr(0, std::string(wanted).size()), wanted) << ErrorOf(text);
  }
}

// A VM's table with those lines, on lines 1 to 3 and from the 4th.
std::string VmTable(const std::string& name, const std::string& lines) {
  return "[[vm]]\nname = \"" + name + "\"\nregion_file = \"/" + name + "\"\n" + lines;
}

TEST(ConfigTest, MistakesOfSharesNameTheirLine) {
  const std::string reserve60 = VmTable("a", "reserve = 60\n"), two_gpus = "gpus = [\"GPU-1\", \"GPU-2\"]\n";
  const std::pair<std::string, std::string> cases[] = {
      {VmTable("a", "weight = 0"), "c.toml:4: [[vm]] weight is 0 but must be from 1 to 10000."},
      {VmTable("a", "weight = 10001"), "c.toml:4: [[vm]] weight is 10001 but must be from 1 to 10000."},
      {VmTable("a", "weight = 1.5"), "c.toml:4: [[vm]] weight must be a whole number from 1 to 10000."},
      {VmTable("a", "cap = 0"), "c.toml:4: [[vm]] cap is 0 but must be from 1 to 100."},
      {VmTable("a", "cap = 101"), "c.toml:4: [[vm]] cap is 101 but must be from 1 to 100."},
      {VmTable("a", "reserve = -1"), "c.toml:4: [[vm]] reserve is -1 but must be from 0 to 100."},
      {VmTable("a", "cap = 30\nreserve = 31"),
       "c.toml:5: [[vm]] reserve is 31 but must not be above cap, which is 30."},
      {"local_cap = 20\n[[user]]\nuid = 5\nreserve = 21",
       "c.toml:4: [[user]] reserve is 21 but must not be above cap, which is 20."},
      {VmTable("a", "class = \"fast\""),
       "c.toml:4: [[vm]] class must be latency, normal or background, but is \"fast\"."},
      {VmTable("a", "class = 1"), "c.toml:4: [[vm]] class must be a string in quotes."},
      {VmTable("a", "cap_percent = 5"), "c.toml:4: [[vm]] cap_percent is not a known key"},
      // Of how many users and peers nobody knows.
      {"local_reserve = 5", "c.toml:1: local_reserve is not a known key"},
      {"[tcp]\nlisten = \"127.0.0.1:1\"\nreserve = 5", "c.toml:3: [tcp] reserve is not a known key"},
      {"[[remote]]\nname = \"a\"\nweight = 0",
       "c.toml:3: [[remote]] weight is 0 but must be from 1 to 10000."},
      {"local_weight = 0", "c.toml:1: local_weight is 0 but must be from 1 to 10000."},
      {reserve60 + VmTable("b", "reserve = 41"),
       "c.toml:8: [[vm]] reserve with what VM a have makes 101 % of one GPU, of which 100 % is all."},
      {reserve60 + VmTable("b", "reserve = 41\n" + two_gpus),
       "c.toml:8: [[vm]] reserve with what VM a have makes 101 % of GPU-1, of which 100 % is all."},
      {VmTable("a", "reserve = 60\n" + two_gpus) + VmTable("b", "reserve = 40\ngpus = [\"GPU-2\"]\n") +
           "[[remote]]\nname = \"c\"\nreserve = 1\n[[user]]\nuid = 5\nreserve = 1\n",
       "c.toml:13: [[remote]] reserve with what VM a, VM b have makes 101 % of GPU-2, of which"},
      {"local_gpus = [\"GPU-1\"]\n" + VmTable("a", "reserve = 100\n") + "[[user]]\nuid = 5\nreserve = 1\n",
       "c.toml:8: [[user]] reserve with what VM a have makes 101 % of GPU-1"},
      {"turn_ms = 0.4", "c.toml:1: turn_ms is 0.4 but must be from 0.5 to 50."},
      {"turn_ms = 51", "c.toml:1: turn_ms is 51 but must be from 0.5 to 50."},
      {"turn_ms = nan", "c.toml:1: turn_ms must be a number from 0.5 to 50."},
      {"turn_ms = \"2\"", "c.toml:1: turn_ms must be a number from 0.5 to 50."},
      {"[[gpu]]\nturn_ms = 2", "c.toml:1: [[gpu]] uuid is missing."},
      {"[[gpu]]\nuuid = \"GPU-1\"", "c.toml:2: [[gpu]] uuid must be a GPU's whole UUID (GPU-... or MIG-...)"},
      {"[[gpu]]\nuuid = \"GPU-00000000-0000-0000-0000-000000000001\"\nturn_ms = 0",
       "c.toml:3: [[gpu]] turn_ms is 0 but must be from 0.5 to 50."},
      {"[[gpu]]\nuuid = \"GPU-00000000-0000-0000-0000-000000000001\"\n[[gpu]]\nuuid = "
       "\"GPU-00000000-0000-0000-0000-000000000001\"",
       "c.toml:3: gpu uuid \"GPU-00000000-0000-0000-0000-000000000001\" is used twice."},
      {"[[gpu]]\nuuid = \"GPU-00000000-0000-0000-0000-000000000001\"\nweight = 1",
       "c.toml:3: [[gpu]] weight is not a known key"},
      // What can be kept.
      {VmTable("a", "reserve = 60\ngpus = [\"GPU-1\"]\n") +
           VmTable("b", "reserve = 60\ngpus = [\"GPU-2\"]\n"),
       "accepted"},
      {reserve60 + VmTable("b", "reserve = 40\n"), "accepted"},
  };
  for (const auto& [text, wanted] : cases)
    EXPECT_EQ(ErrorOf(text).substr(0, wanted.size()), wanted) << ErrorOf(text) << "\n" << text;
}

TEST(ConfigTest, SharesArrive) {
  test::TemporaryFolder folder;
  const std::string path = folder.path() + "/c.toml";
  std::ofstream(path)
      << "local_weight = 50\nlocal_class = \"background\"\nlocal_pcie_mib_per_s = 9\nturn_ms = 4\n" +
             VmTable("a",
                     "weight = 10000\ncap = 30\nreserve = 10\nclass = \"latency\"\npcie_mib_per_s = 700\n") +
             "[[remote]]\nname = \"c\"\ncap = 1\n[[user]]\nuid = 5\nreserve = 7\n"
             "[tcp]\nlisten = \"127.0.0.1:1\"\nweight = 1\n"
             "[[gpu]]\nuuid = \"GPU-00000000-0000-0000-0000-000000000001\"\nturn_ms = "
             "0.5\n[[gpu]]\nuuid = \"GPU-00000000-0000-0000-0000-000000000002\"\n";
  const auto read = LoadConfig(path);
  ASSERT_TRUE(read.ok()) << read.error();
  const daemon::Config& config = read.value();
  EXPECT_EQ(config.vms[0].share.terms, (ShareTerms{10000, 30, 10, ShareClass::kLatency, false, 700}));
  EXPECT_EQ(config.remotes[0].share.terms, (ShareTerms{100, 1, 0, ShareClass::kNormal}));
  EXPECT_EQ(config.local_share.terms, (ShareTerms{50, 100, 0, ShareClass::kBackground, false, 9}));
  EXPECT_EQ(config.user_terms.at("uid:5"), (ShareTerms{50, 100, 7, ShareClass::kBackground, false, 9}));
  EXPECT_EQ(config.tcp.share.terms, (ShareTerms{1, 100, 0, ShareClass::kNormal}));
  EXPECT_EQ(config.turn_ms, 4);
  EXPECT_EQ(config.gpu_turn_ms,
            (std::map<std::string, double>{{"GPU-00000000-0000-0000-0000-000000000001", 0.5},
                                           {"GPU-00000000-0000-0000-0000-000000000002", 4}}));
}

TEST(ConfigTest, AnAddedVmKeepsItsShares) {
  test::TemporaryFolder folder;
  daemon::VmConfig vm;
  vm.name = "a";
  vm.region_file = "/dev/shm/a";
  for (const ShareTerms& terms : {ShareTerms{}, ShareTerms{200, 30, 10, ShareClass::kLatency, false, 900}}) {
    vm.share.terms = terms;
    const std::string path = folder.path() + "/a.toml";
    std::ofstream(path) << daemon::AddedVmText(vm);
    const auto read = daemon::LoadAddedVm(path);
    ASSERT_TRUE(read.ok()) << read.error();
    EXPECT_EQ(read.value().share.terms, terms);
  }
}

TEST(ConfigTest, GoodValuesArrive) {
  test::TemporaryFolder folder;
  const std::string path = folder.path() + "/c.toml";
  std::ofstream(path)
      << "socket = \"/run/x\"\nsocket_mode = \"0600\"\nspare_workers = 3\n[[vm]]\nname = \"a\"\n"
         "region_file = \"/dev/shm/a\"\nregion_mib = 256\nown_spares = 2\ndevice_memory_mib = 77\ngpus = "
         "[\"GPU-b\", "
         "\"GPU-a\"]\n"
         "[[user]]\nuid = 1000\nown_spares = 1\n[[user]]\nuid = 1001\n"
         "[tcp]\nlisten = \"0.0.0.0:1\"\nallow_plaintext_remote = true\nbridge = \"br0\"\ndevice_memory_mib "
         "= 9\n";
  const auto config = LoadConfig(path);
  ASSERT_TRUE(config.ok()) << config.error();
  EXPECT_EQ(config.value().socket, "/run/x");
  EXPECT_EQ(config.value().socket_mode, 0600u);
  EXPECT_EQ(config.value().spare_workers, 3u);
  EXPECT_EQ(config.value().max_spare_workers, daemon::kUsualMostSpares);
  ASSERT_EQ(config.value().vms.size(), 1u);
  EXPECT_EQ(config.value().vms[0].region_mib, 256u);
  EXPECT_EQ(config.value().vms[0].share.device_memory_mib, 77u);
  EXPECT_EQ(config.value().vms[0].share.gpus, (std::vector<std::string>{"GPU-b", "GPU-a"}));
  EXPECT_EQ(config.value().tcp.share.device_memory_mib, 9u);
  EXPECT_EQ(config.value().local_share.device_memory_mib, 0u);
  EXPECT_EQ(config.value().own_spares, (std::map<std::string, uint32_t>{{"uid:1000", 1}, {"vm:a", 2}}));
  EXPECT_EQ(config.value().tcp.address, "0.0.0.0");
  EXPECT_EQ(config.value().tcp.port, 1);
  EXPECT_EQ(LoadConfig("/nowhere/c.toml").error(),
            "The configuration file /nowhere/c.toml cannot be read: No such file or directory.");
}

TEST(RegionTest, Crc32IsThatOfZlib) {
  EXPECT_EQ(daemon::Crc32("123456789", 9), 0xcbf43926u);
}

class StartTest : public test::DaemonFixture {
 protected:
  std::string With(const std::string& region, const std::string& more = "region_mib = 64\n") const {
    return Config("ok", "[[vm]]\nname = \"g\"\nregion_file = \"" + region + "\"\n" + more);
  }
  std::string FailWith(const std::string& region, const std::string& more = "region_mib = 64\n") {
    return FailingDaemon(With(region, more));
  }
};

// What is wrong with a file that is there keeps one VM from being served; guests and users of the host can bring it about.
TEST_F(StartTest, RegionFileMistakes) {
  EXPECT_NE(FailWith("/nowhere/region")
                .find("cannot be created because its folder does not exist; create the folder"),
            std::string::npos);
  EXPECT_NE(WhatItSays(With(folder())).find("is a folder; name a file in region_file"), std::string::npos);

  const std::string file = folder() + "/file";
  std::ofstream(file) << "x";
  chmod(file.c_str(), 0644);
  EXPECT_NE(
      WhatItSays(With(file)).find("is accessible to every user of this host (mode 0644); run `chmod 0660"),
      std::string::npos);
  chmod(file.c_str(), 0660);
  EXPECT_NE(WhatItSays(With(file))
                .find("is 1 bytes large but region_mib says 64; correct region_mib, or shut the VM down"),
            std::string::npos);
  std::filesystem::resize_file(file, 64u << 20);
  EXPECT_NE(WhatItSays(With(file)).find("already holds something that is not a Causeway region"),
            std::string::npos);

  const std::string link = folder() + "/link";
  std::filesystem::create_symlink(file, link);
  EXPECT_NE(WhatItSays(With(link)).find("is a symbolic link; name the file itself"), std::string::npos);
  EXPECT_NE(FailWith(folder() + "/new", "region_group = \"no-such-group\"\nregion_mib = 64\n")
                .find("The group \"no-such-group\" of region_group does not exist"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder() + "/new")) << "a failed start leaves a file behind";
}

TEST_F(StartTest, PermissionDenied) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  const std::string file = folder() + "/file";
  std::ofstream(file) << "";
  chmod(file.c_str(), 0600);
  chmod(folder().c_str(), 0755);
  // The daemon runs as nobody, with a socket where nobody may write.
  const std::string open_folder = folder() + "/open";
  std::filesystem::create_directory(open_folder);
  chmod(open_folder.c_str(), 0777);
  std::ofstream(folder() + "/c.toml")
      << "socket = \"" << open_folder
      << "/s\"\nworker = \"/bin/true\"\n[[vm]]\nname = \"g\"\nregion_file = \"" << file
      << "\"\nregion_mib = 64\n";
  const std::string command = "timeout 3 setpriv --reuid 65534 --clear-groups " CAUSEWAYD_PATH " --config " +
                              folder() + "/c.toml 2>&1";
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char buffer[512];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) output += buffer;
  EXPECT_NE(pclose(pipe), 0);
  EXPECT_NE(output.find("The region file " + file +
                        " of VM g cannot be opened: permission denied; run causewayd as"),
            std::string::npos)
      << output;
}

TEST_F(StartTest, SocketMistakes) {
  const auto with_socket = [&](const std::string& path) {
    return FailingDaemon("socket = \"" + path + "\"\nworker = \"/bin/true\"\n");
  };
  EXPECT_NE(with_socket("/nowhere/s").find("cannot be made because its folder does not exist"),
            std::string::npos);
  std::ofstream(folder() + "/plain") << "";
  EXPECT_NE(with_socket(folder() + "/plain").find("a file of another kind has that name"), std::string::npos);
}

TEST_F(StartTest, SecondDaemonIsRefused) {
  StartDaemon("ok", VmConfig());
  EXPECT_NE(FailingDaemon(Config("ok", ""))
                .find("is in use by another causewayd; stop that one or give this one another `socket`"),
            std::string::npos);
  const std::string other = "socket = \"" + folder() + "/other\"\nworker = \"/bin/true\"\n" + VmConfig();
  EXPECT_NE(WhatItSays(other).find(
                "is in use by another causewayd; stop that one, or give this VM a region_file of its own"),
            std::string::npos);
}

TEST_F(StartTest, RestartReplacesStaleSocketAndFormatsAnew) {
  StartDaemon("ok", VmConfig());
  const Superblock first = test::GuestRegion(region_file()).superblock();
  EXPECT_EQ(first.magic, kRegionMagic);
  EXPECT_EQ(first.crc32, daemon::Crc32(&first, offsetof(Superblock, crc32)));
  EXPECT_EQ(first.slot_count, 4u);
  EXPECT_EQ(first.granule_count, 32u);
  struct stat found {};
  ASSERT_EQ(stat(region_file().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0660u);
  KillDaemon();
  EXPECT_TRUE(std::filesystem::exists(socket())) << "a killed daemon leaves its socket";
  std::filesystem::remove(folder() + "/log");
  StartDaemon("ok", VmConfig());
  EXPECT_NE(test::GuestRegion(region_file()).superblock().host_epoch, first.host_epoch);
  EXPECT_EQ(StopDaemon(), 0);
  EXPECT_FALSE(std::filesystem::exists(socket()));
  EXPECT_EQ(test::GuestRegion(region_file()).host_page().state, HostState::kStopped);
}

}  // namespace
}  // namespace causeway
