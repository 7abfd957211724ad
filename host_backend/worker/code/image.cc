// SPDX-License-Identifier: Apache-2.0
// Headers of images, as nvcc 13.0 writes them.
#include "host_backend/worker/code/image.h"

#include <elf.h>

#include <cstring>
#include <string_view>

#include "ivshmem_ring/messages/fatbin_format.h"

namespace causeway::host {
namespace {

constexpr uint32_t kNvvmMagic = 0x7F4E43ED, kBitcodeMagic = 0xDEC04342;
constexpr std::string_view kArchiveMagic = "!<arch>\n";

// A copy of what lies at `offset`. False: it is not all inside.
template <class T>
bool Read(std::span<const std::byte> bytes, uint64_t offset, T* value) {
  if (bytes.size() < sizeof *value || offset > bytes.size() - sizeof *value) return false;
  std::memcpy(value, bytes.data() + offset, sizeof *value);
  return true;
}

bool Holds(std::span<const std::byte> bytes, uint64_t offset, uint64_t size) {
  return offset <= bytes.size() && size <= bytes.size() - offset;
}

bool IsElf(std::span<const std::byte> bytes) {
  Elf64_Ehdr header;
  if (!Read(bytes, 0, &header) || header.e_ident[EI_CLASS] != ELFCLASS64) return false;
  if (header.e_phnum != 0 && header.e_phentsize != sizeof(Elf64_Phdr)) return false;
  if (header.e_shnum != 0 && header.e_shentsize != sizeof(Elf64_Shdr)) return false;
  if (!Holds(bytes, header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr)) ||
      !Holds(bytes, header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr)) ||
      (header.e_shnum != 0 && header.e_shstrndx >= header.e_shnum)) {
    return false;
  }
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!Read(bytes, header.e_phoff + i * sizeof segment, &segment)) return false;
    if (segment.p_filesz != 0 && !Holds(bytes, segment.p_offset, segment.p_filesz)) return false;
  }
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    if (!Read(bytes, header.e_shoff + i * sizeof section, &section)) return false;
    if (section.sh_type != SHT_NOBITS && !Holds(bytes, section.sh_offset, section.sh_size)) return false;
  }
  return true;
}

// Its entries one after the other, and nothing of them outside.
bool IsFatbin(std::span<const std::byte> bytes) {
  FatbinHeader header;
  if (!Read(bytes, 0, &header) || header.version != 1 || header.header_bytes < sizeof header ||
      !Holds(bytes, header.header_bytes, header.entries_bytes)) {
    return false;
  }
  auto rest = bytes.subspan(header.header_bytes, header.entries_bytes);
  while (!rest.empty()) {
    FatbinEntry entry;
    if (!Read(rest, 0, &entry) || entry.header_bytes < sizeof entry ||
        !Holds(rest, entry.header_bytes, entry.payload_bytes))
      return false;
    rest = rest.subspan(entry.header_bytes + entry.payload_bytes);
  }
  return true;
}

// Printable up to its end, or far enough to tell it from any number.
bool IsText(std::span<const std::byte> bytes) {
  constexpr size_t kLooked = 64;
  for (size_t i = 0; i < bytes.size() && i < kLooked; ++i) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    if (c == '\0') return true;
    const bool in_text = (c >= 0x20 && c != 0x7f) || c == '\n' || c == '\r' || c == '\t';
    // Comments may hold any letters; the first ones are those that drivers tell formats by.
    if (!in_text || (c >= 0x80 && i < sizeof(uint64_t))) return false;
  }
  return std::memchr(bytes.data(), 0, bytes.size()) != nullptr;
}

}  // namespace

ImageFormat FormatOf(std::span<const std::byte> bytes) {
  uint32_t magic = 0;
  if (!Read(bytes, 0, &magic)) return IsText(bytes) ? ImageFormat::kText : ImageFormat::kNone;
  if (std::memcmp(&magic, ELFMAG, SELFMAG) == 0) return IsElf(bytes) ? ImageFormat::kElf : ImageFormat::kNone;
  if (magic == kFatbinMagic) return IsFatbin(bytes) ? ImageFormat::kFatbin : ImageFormat::kNone;
  if (magic == kNvvmMagic || magic == kBitcodeMagic) return ImageFormat::kNvvm;
  if (bytes.size() >= kArchiveMagic.size() &&
      std::memcmp(bytes.data(), kArchiveMagic.data(), kArchiveMagic.size()) == 0) {
    return ImageFormat::kArchive;
  }
  return IsText(bytes) ? ImageFormat::kText : ImageFormat::kNone;
}

bool IsFatbinWrapper(std::span<const std::byte> bytes) {
  constexpr uint32_t kWrapperMagic = 0x466243B1;
  uint32_t magic = 0;
  return Read(bytes, 0, &magic) && magic == kWrapperMagic;
}

bool IsImage(std::span<const std::byte> bytes) {
  const ImageFormat format = FormatOf(bytes);
  return format == ImageFormat::kElf || format == ImageFormat::kFatbin || format == ImageFormat::kText;
}

bool IsLinkInput(CUjitInputType type, std::span<const std::byte> bytes) {
  const ImageFormat format = FormatOf(bytes);
  switch (type) {
    case CU_JIT_INPUT_PTX:
      return FormatOf({bytes.data(), bytes.size() + 1}) == ImageFormat::kText;
    case CU_JIT_INPUT_CUBIN:  // the driver looks into these by itself
    case CU_JIT_INPUT_FATBINARY:
    case CU_JIT_INPUT_OBJECT:
      return format == ImageFormat::kElf || format == ImageFormat::kFatbin;
    case CU_JIT_INPUT_LIBRARY:
      return format == ImageFormat::kArchive;
    case CU_JIT_INPUT_NVVM:
      return format == ImageFormat::kNvvm;
    default:
      return false;
  }
}

}  // namespace causeway::host
