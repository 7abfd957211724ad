// SPDX-License-Identifier: Apache-2.0
// The kernel's texts on processes, in which users of the host choose names: /proc/PID/maps and /proc/PID/status, as the kernel
// writes them around names of any bytes and any length, and any bytes in their place. A text that was written for one answer
// gets that answer, whatever the names in it say.
#include <stdio.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <memory>
#include <string>

#include "host_backend/launcher/vm_search.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

constexpr unsigned kMajor = 0xfd, kMinor = 0x1a;
constexpr ino_t kInode = 4711;
constexpr gid_t kGroup = 30'001;
constexpr uid_t kOwner = 30'002;

File FileOf(const std::string& text) {
  // It reads only; a text of no bytes is none that can be opened.
  return {fmemopen(const_cast<char*>(text.data()), std::max<size_t>(text.size(), 1), "r"), &fclose};
}

template <class... Values>
std::string Format(const char* format, Values... values) {
  char text[256];
  return {text, static_cast<size_t>(snprintf(text, sizeof text, format, values...))};
}

// As long as its writer likes, of bytes of the input between repeated ones. The kernel lets no line end in a name, nor a zero byte.
std::string SomeName(Input& input) {
  constexpr size_t kMostRepeats = 300;
  static constexpr const char* kLike[] = {"7f0000000000-7f0000200000 rw-s 00000000 fd:1a 4711 ",
                                          "Uid:\t0\t0\t0\t0", "Gid:\t0\t30001\t0\t0", "Groups:\t30001 ",
                                          "PPid:\t7"};
  std::string name;
  for (int parts = input.Byte() % 4; parts > 0; --parts) {
    const uint8_t choice = input.Byte();
    if (choice < 100) name += std::string(input.Word() % kMostRepeats, char('a' + choice % 26));
    if (choice >= 100 && choice < 200) name += kLike[choice % std::size(kLike)];
    const auto bytes = input.Bytes(choice % 16);
    name.append(bytes.begin(), bytes.end());
  }
  std::replace(name.begin(), name.end(), '\n', '?');
  std::replace(name.begin(), name.end(), '\0', '?');
  return name;
}

struct Mapping {
  unsigned major_number = kMajor, minor_number = kMinor;
  unsigned long inode = kInode;

  bool is_wanted() const { return major_number == kMajor && minor_number == kMinor && inode == kInode; }
};

Mapping SomeMapping(Input& input) {
  Mapping mapping;
  const uint8_t odd = input.Byte();
  if (odd % 4 == 0) mapping.major_number = unsigned(input.Word()) & 0xfff;
  if (odd % 4 == 1) mapping.minor_number = unsigned(input.Word()) & 0xfffff;
  if (odd % 4 == 2) mapping.inode = input.Word() >> input.Byte() % 64;
  if (odd % 32 == 3) mapping = {0, 0, 0};  // of no file
  return mapping;
}

void TryMaps(Input& input) {
  std::string text;
  bool wanted = false;
  while (!input.empty()) {
    const Mapping mapping = SomeMapping(input);
    const uint64_t begin = input.Word() & ~uint64_t{0xfff}, end = input.Word() & ~uint64_t{0xfff};
    std::string line = Format("%08lx-%08lx rw-%c %08llx %02x:%02x %lu ", begin, end,
                              input.Byte() % 2 ? 's' : 'p', static_cast<unsigned long long>(input.Word()),
                              mapping.major_number, mapping.minor_number, mapping.inode);
    constexpr size_t kNameColumn = 73;
    if (mapping.inode != 0) line.resize(std::max(line.size(), kNameColumn), ' ');
    text += line + SomeName(input) + '\n';
    wanted = wanted || mapping.is_wanted();
  }
  if (text.empty()) return;
  Require(launcher::MapsFile(FileOf(text).get(), makedev(kMajor, kMinor), kInode) == wanted);
}

// What stands in a process's status, and so who it is.
struct Person {
  uint32_t user, group, parent;
  bool in_group = false;

  bool MayOpen(const struct stat& file) const {
    const auto both = [&](unsigned shift) { return (file.st_mode >> shift & 6) == 6; };
    if (user == 0) return true;
    if (user == file.st_uid) return both(6);
    return both(in_group || group == file.st_gid ? 3 : 0);
  }
};

uint32_t SomeNumber(Input& input) {
  const uint32_t numbers[] = {0, kGroup, kOwner, 1, 3000, 300'010, ~0u - 1, uint32_t(input.Word())};
  return numbers[input.Byte() % std::size(numbers)];
}

// ~0 is nobody's number: the kernel takes it for none.
uint32_t SomePerson(Input& input) {
  return std::min(SomeNumber(input), ~0u - 1);
}

void TryStatus(Input& input) {
  Person person{SomePerson(input), SomePerson(input), uint32_t(SomeNumber(input) & 0x7fffffff)};
  struct stat file {};
  file.st_uid = kOwner;
  file.st_gid = kGroup;
  file.st_mode = S_IFREG | mode_t(input.Word() & 0777);
  const auto other = [&] { return SomePerson(input); };
  std::string text = "Name:\t" + SomeName(input) + "\nUmask:\t0022\nState:\tS (sleeping)\n";
  text +=
      Format("Tgid:\t%u\nNgid:\t0\nPid:\t%u\nPPid:\t%u\nTracerPid:\t0\n", other(), other(), person.parent);
  text += Format("Uid:\t%u\t%u\t%u\t%u\n", other(), person.user, other(), other());
  text += Format("Gid:\t%u\t%u\t%u\t%u\nFDSize:\t64\nGroups:\t", other(), person.group, other(), other());
  for (size_t groups = input.Byte() < 250 ? input.Byte() % 8 : input.Word() % 3000; groups > 0; --groups) {
    const uint32_t group = other();
    person.in_group = person.in_group || group == kGroup;
    text += std::to_string(group) + ' ';
  }
  text += " \nNStgid:\t7\nVmPeak:\t   30001 kB\n";
  Require(launcher::MayOpen(FileOf(text).get(), file) == person.MayOpen(file));
  Require(launcher::ParentIn(FileOf(text).get()) == pid_t(person.parent));
}

// No kernel writes it: all that is asked is an answer.
void TryBytes(const std::string& text) {
  struct stat file {};
  file.st_mode = S_IFREG | 0660;
  launcher::MapsFile(FileOf(text).get(), makedev(kMajor, kMinor), kInode);
  launcher::MayOpen(FileOf(text).get(), file);
  launcher::ParentIn(FileOf(text).get());
  Require(!launcher::MapsFile(nullptr, 1, 1) && !launcher::MayOpen(nullptr, file) &&
          launcher::ParentIn(nullptr) == 0);
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  Input input(data, size);
  switch (input.Byte() % 3) {
    case 0:
      TryMaps(input);
      break;
    case 1:
      TryStatus(input);
      break;
    default: {
      const auto bytes = input.Bytes(size);
      TryBytes({bytes.begin(), bytes.end()});
    }
  }
  return 0;
}
