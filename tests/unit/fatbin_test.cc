// SPDX-License-Identifier: Apache-2.0
// Which entries of a fatbin travel.
#include "guest_lib/code/fatbin.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace causeway::guest {
namespace {

constexpr uint16_t kPtx = 1, kElf = 2;
constexpr uint64_t kZstd = 0x8000, kFor90a = 0x100000;

struct Fatbin {
  std::vector<std::byte> bytes = std::vector<std::byte>(sizeof(FatbinHeader));

  // `name` fills the payload, to be found again.
  void Add(uint16_t kind, uint32_t architecture, char name, uint64_t flags = 0x11, uint64_t payload = 72,
           uint32_t header_bytes = 80) {
    FatbinEntry entry{};
    entry.kind = kind;
    entry.version = 0x101;
    entry.header_bytes = header_bytes;
    entry.payload_bytes = payload;
    entry.architecture = architecture;
    entry.flags = flags;
    const size_t at = bytes.size();
    bytes.resize(at + header_bytes + payload);
    std::memset(bytes.data() + at, name, header_bytes + payload);
    std::memcpy(bytes.data() + at, &entry, sizeof entry);
  }
  // The names that are chosen for the devices; "all" if the fatbin travels as it is.
  std::string Chosen(std::vector<Capability> devices) {
    const FatbinHeader header{kFatbinMagic, 1, sizeof(FatbinHeader), bytes.size() - sizeof(FatbinHeader)};
    std::memcpy(bytes.data(), &header, sizeof header);
    return ChosenAsIs(devices);
  }
  std::string ChosenAsIs(const std::vector<Capability>& devices) {
    std::string names;
    for (const auto& run : UsableEntries(bytes.data(), devices)) {
      EXPECT_GE(run.data(), bytes.data() + sizeof(FatbinHeader));
      EXPECT_LE(run.data() + run.size(), bytes.data() + bytes.size());
      for (size_t at = 0; at < run.size();) {
        FatbinEntry entry;
        std::memcpy(&entry, run.data() + at, sizeof entry);
        at += entry.header_bytes + entry.payload_bytes;
        names += static_cast<char>(run[at - 1]);
      }
    }
    return names.empty() ? "all" : names;
  }
};

Fatbin Library() {
  Fatbin library;
  library.Add(kElf, 75, 'a');
  library.Add(kElf, 80, 'b', 0x11 | kZstd, 4096);
  library.Add(kElf, 86, 'c');
  library.Add(kElf, 90, 'd');
  library.Add(kElf, 90, 'e', 0x11 | kFor90a);
  library.Add(kElf, 100, 'f', 0x1000011, 200, 112);
  library.Add(kPtx, 75, 'g');
  library.Add(kPtx, 120, 'h', 0x11 | kZstd);
  return library;
}

TEST(Fatbin, KeepsWhatADeviceCanUse) {
  EXPECT_EQ(Library().Chosen({{9, 0}}), "deg");
  EXPECT_EQ(Library().Chosen({{8, 0}}), "bg");
  EXPECT_EQ(Library().Chosen({{8, 9}}), "bcg");
  EXPECT_EQ(Library().Chosen({{7, 5}}), "ag");
  EXPECT_EQ(Library().Chosen({{10, 3}}), "fg");
  EXPECT_EQ(Library().Chosen({{12, 1}}), "gh");
  EXPECT_EQ(Library().Chosen({{7, 5}, {9, 0}}), "adeg");
}

TEST(Fatbin, GoesWholeInDoubt) {
  EXPECT_EQ(Library().Chosen({}), "all");
  EXPECT_EQ(Library().Chosen({{13, 0}}), "all") << "a generation whose rules are not known";
  EXPECT_EQ(Library().Chosen({{9, 0}, {13, 0}}), "all");
  EXPECT_EQ(Library().Chosen({{7, 0}}), "all") << "nothing fits: the driver says so of what it was given";
  Fatbin only;
  only.Add(kElf, 90, 'a');
  EXPECT_EQ(only.Chosen({{9, 0}}), "all");
  Fatbin strange = Library();
  strange.Add(77, 1, 'z');
  EXPECT_EQ(strange.Chosen({{9, 0}}), "degz") << "an entry of an unknown kind";
}

TEST(Fatbin, BrokenOnesGoWhole) {
  Fatbin library = Library();
  EXPECT_EQ(library.Chosen({{9, 0}}), "deg");
  for (size_t cut = 1; cut < 300; ++cut) {
    Fatbin broken = library;
    broken.bytes.resize(library.bytes.size() - cut);
    EXPECT_EQ(broken.Chosen({{9, 0}}), cut == 152 ? "deg" : "all") << cut;
  }
  Fatbin huge = library;
  FatbinEntry entry;
  std::memcpy(&entry, huge.bytes.data() + sizeof(FatbinHeader), sizeof entry);
  entry.payload_bytes = ~uint64_t{0} - 16;
  std::memcpy(huge.bytes.data() + sizeof(FatbinHeader), &entry, sizeof entry);
  EXPECT_EQ(huge.ChosenAsIs({{9, 0}}), "all");
  FatbinHeader header;
  std::memcpy(&header, library.bytes.data(), sizeof header);
  header.version = 2;
  std::memcpy(library.bytes.data(), &header, sizeof header);
  EXPECT_EQ(library.ChosenAsIs({{9, 0}}), "all");
}

}  // namespace
}  // namespace causeway::guest
