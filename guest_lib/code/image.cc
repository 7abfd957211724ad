// SPDX-License-Identifier: Apache-2.0
// Sizes of module images, from their own headers (checked on what nvcc 13.0 writes).
#include "guest_lib/code/image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "guest_lib/session/blob.h"
#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/session_messages.h"

namespace causeway::guest {
namespace {

constexpr uint32_t kElfMagic = 0x464C457F;
constexpr uint32_t kWrapperMagic = 0x466243B1;

struct Wrapper {
  uint32_t magic;
  uint32_t version;  // 1, or 2: linked
  const void* data;
  const void* const* linked;  // version 2: NULL-terminated; version 1: a file name or 0
};

// Byte by byte: a text may be shorter than a word.
uint32_t MagicOf(const void* image) {
  const auto* bytes = static_cast<const unsigned char*>(image);
  uint32_t magic = 0;
  for (unsigned i = 0; i < sizeof magic && (i == 0 || bytes[i - 1] != 0); ++i)
    magic |= uint32_t{bytes[i]} << 8 * i;
  return magic;
}

uint64_t ElfBytes(const std::byte* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  uint64_t end = std::max(header.e_phoff + uint64_t{header.e_phnum} * header.e_phentsize,
                          header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize);
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, image + header.e_shoff + uint64_t{i} * header.e_shentsize, sizeof section);
    if (section.sh_type != SHT_NOBITS) end = std::max(end, section.sh_offset + section.sh_size);
  }
  return end;
}

// Text that could be PTX: printable from its first character on.
bool LooksLikeText(const char* text) {
  for (int i = 0; i < 8; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '\0') return i > 0;
    if (c >= 0x80 || (c < 0x20 && c != '\n' && c != '\r' && c != '\t')) return false;
  }
  return true;
}

}  // namespace

CUresult Image::AddPart(const void* image, bool any_text) {
  const auto* bytes = static_cast<const std::byte*>(image);
  uint64_t size = 0;
  const uint32_t magic = MagicOf(image);
  if (magic == kElfMagic) {
    size = ElfBytes(bytes);
  } else if (magic == kFatbinMagic) {
    FatbinHeader header;
    std::memcpy(&header, image, sizeof header);
    size = header.header_bytes + header.entries_bytes;
  } else if (magic != kWrapperMagic && (any_text || LooksLikeText(static_cast<const char*>(image)))) {
    size = std::strlen(static_cast<const char*>(image)) + 1;
  } else {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  return AddBytes(bytes, size, magic == kFatbinMagic);
}

CUresult Image::AddBytes(const std::byte* bytes, uint64_t size, bool is_fatbin) {
  if (size > kMaxBlobBytes || parts_.size() >= kMaxImageParts) return CUDA_ERROR_INVALID_IMAGE;
  Part part{{}, size, 0};
  if (is_fatbin) part.runs = UsableEntries(bytes, devices_);
  if (part.runs.empty()) {
    part.runs.emplace_back(bytes, size);
  } else {
    FatbinHeader& header = fatbin_headers_.emplace_back();
    std::memcpy(&header, bytes, sizeof header);
    header.entries_bytes = 0;
    for (const auto& run : part.runs) header.entries_bytes += run.size();
    part.size = sizeof header + header.entries_bytes;
    part.runs.insert(part.runs.begin(), std::as_bytes(std::span(&header, 1)));
  }
  parts_.push_back(std::move(part));
  return CUDA_SUCCESS;
}

CUresult Image::Find(const void* image, bool wrapper_allowed, bool any_text) {
  if (MagicOf(image) == kWrapperMagic) {
    if (!wrapper_allowed) return CUDA_ERROR_INVALID_IMAGE;
    Wrapper wrapper;
    std::memcpy(&wrapper, image, sizeof wrapper);
    if (const CUresult result = AddPart(wrapper.data)) return result;
    for (const void* const* at = wrapper.linked; wrapper.version == 2 && at != nullptr && *at != nullptr;
         ++at) {
      if (const CUresult result = AddPart(*at)) return result;
    }
  } else if (const CUresult result = AddPart(image, any_text)) {
    return result;
  }
  Lay();
  return CUDA_SUCCESS;
}

CUresult Image::TakeFile(std::vector<std::byte>* bytes) {
  uint64_t size = bytes->size();
  bytes->resize(size + 8);  // whatever looks at its first characters finds an end
  const uint32_t magic = MagicOf(bytes->data());
  if (magic != kElfMagic && magic != kFatbinMagic) {
    if (!LooksLikeText(reinterpret_cast<const char*>(bytes->data()))) return CUDA_ERROR_INVALID_IMAGE;
    ++size;
  }
  FatbinHeader header{};
  if (magic == kFatbinMagic) std::memcpy(&header, bytes->data(), std::min<uint64_t>(sizeof header, size));
  // Its entries are looked at only where the file holds what its header promises.
  const bool whole = magic == kFatbinMagic && size >= sizeof header && header.header_bytes <= size &&
                     header.entries_bytes <= size - header.header_bytes;
  if (const CUresult result = AddBytes(bytes->data(), size, whole)) return result;
  Lay();
  return CUDA_SUCCESS;
}

void Image::Lay() {
  header_.resize(sizeof(ImageHeader) + parts_.size() * sizeof(uint64_t));
  const ImageHeader header{kImageMagic, static_cast<uint32_t>(parts_.size())};
  std::memcpy(header_.data(), &header, sizeof header);
  uint64_t offset = header_.size();
  for (size_t i = 0; i < parts_.size(); ++i) {
    std::memcpy(header_.data() + sizeof header + i * sizeof(uint64_t), &parts_[i].size, sizeof(uint64_t));
    offset = (offset + kImageAlign - 1) & ~(kImageAlign - 1);
    parts_[i].wire_offset = offset;
    offset += parts_[i].size;
  }
  wire_bytes_ = offset;
}

template <class Visit>
void Image::Walk(Visit visit) const {
  static constexpr std::byte kGap[kImageAlign] = {};
  visit(0, std::span<const std::byte>(header_));
  uint64_t begin = header_.size();
  for (const Part& part : parts_) {
    visit(begin, std::span(kGap).first(part.wire_offset - begin));
    begin = part.wire_offset;
    for (const auto& run : part.runs) {
      visit(begin, run);
      begin += run.size();
    }
  }
}

void Image::Copy(uint64_t at, std::span<std::byte> to) const {
  Walk([&](uint64_t begin, std::span<const std::byte> bytes) {
    CopyPart(at, to, bytes.data(), begin, bytes.size());
  });
}

ImageHash Image::Hash() const {
  ImageHasher hasher;
  Walk([&](uint64_t, std::span<const std::byte> bytes) { hasher.Add(bytes.data(), bytes.size()); });
  return hasher.Finish();
}

bool Image::MayPrint() const {
  // Parts are joined by the driver's linker: each may hold what another prints with.
  std::vector<std::byte> whole;
  for (const Part& part : parts_) {
    whole.clear();
    for (const auto& run : part.runs) whole.insert(whole.end(), run.begin(), run.end());
    if (guest::MayPrint(part.runs.size() == 1 ? part.runs[0] : whole, devices_)) return true;
  }
  return false;
}

}  // namespace causeway::guest
