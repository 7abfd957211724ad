// SPDX-License-Identifier: Apache-2.0
// Fatbin containers: a header, then entries (PTX, cubins, ...) that may be compressed with zstd or LZ4.
#include "tests/software_gpu/fatbin.h"

#include <lz4.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/cubin_outline.h"

namespace causeway::software_gpu {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243B1;
constexpr uint32_t kFatbinMagic = 0xBA55ED50;
constexpr uint32_t kElfMagic = 0x464C457F;

struct Wrapper {
  uint32_t magic;
  uint32_t version;  // 1, or 2: `linked` is a null-terminated array of fatbins
  const void* data;
  const void* const* linked;
};
static_assert(sizeof(Wrapper) == 24);

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t entries_bytes;
};
static_assert(sizeof(FatbinHeader) == 16);

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t payload_bytes;     // with padding
  uint32_t compressed_bytes;  // without padding; 0 when stored
  uint32_t options_offset;
  uint16_t minor;
  uint16_t major;
  uint32_t architecture;
  uint32_t name_offset;
  uint32_t name_bytes;
  uint64_t flags;
  uint64_t reserved;
  uint64_t decompressed_bytes;
};
static_assert(sizeof(EntryHeader) == 64);

constexpr uint16_t kKindPtx = 1;
constexpr uint16_t kKindCubin = 2;
constexpr uint64_t kFlagLz4 = 0x2000;
constexpr uint64_t kFlagZstd = 0x8000;
constexpr uint64_t kMaxPtxBytes = uint64_t{1} << 30;

struct Entry {
  EntryHeader header;
  const char* payload;
};

uint32_t Magic(const void* image) {
  // Byte by byte: a text image may be shorter than a word.
  const auto* bytes = static_cast<const unsigned char*>(image);
  uint32_t magic = 0;
  for (int i = 0; i < 4; ++i) {
    if (i != 0 && bytes[i - 1] == 0) break;
    magic |= static_cast<uint32_t>(bytes[i]) << (8 * i);
  }
  return magic;
}

CUresult Decompress(const Entry& entry, std::string* image, std::string* error) {
  const EntryHeader& header = entry.header;
  bool zstd = (header.flags & kFlagZstd) != 0;
  bool lz4 = (header.flags & kFlagLz4) != 0;
  if (!zstd && !lz4) {
    image->assign(entry.payload, header.payload_bytes);
  } else {
    uint64_t source_bytes = header.compressed_bytes != 0 ? header.compressed_bytes : header.payload_bytes;
    if (header.decompressed_bytes > kMaxPtxBytes || source_bytes > header.payload_bytes) {
      *error = "a fatbin entry's sizes make no sense";
      return CUDA_ERROR_INVALID_IMAGE;
    }
    image->resize(header.decompressed_bytes);
    bool ok = false;
    if (zstd) {
      size_t bytes = ZSTD_decompress(image->data(), image->size(), entry.payload, source_bytes);
      ok = ZSTD_isError(bytes) == 0 && bytes == image->size();
    } else {
      int bytes = LZ4_decompress_safe(entry.payload, image->data(), static_cast<int>(source_bytes),
                                      static_cast<int>(image->size()));
      ok = bytes >= 0 && static_cast<size_t>(bytes) == image->size();
    }
    if (!ok) {
      *error = "a fatbin entry cannot be decompressed";
      return CUDA_ERROR_INVALID_IMAGE;
    }
  }
  if (header.kind == kKindPtx) image->resize(std::strlen(image->c_str()));
  return CUDA_SUCCESS;
}

// Code for this device: any PTX before all cubins, where those are wanted.
bool IsUsable(const EntryHeader& header) {
  if (header.kind == kKindPtx) return header.architecture <= kArchitecture;
  return header.kind == kKindCubin && header.architecture / 10 == kArchitecture / 10 &&
         GetConfig().outline_cubins;
}
bool IsBetter(const EntryHeader& header, const EntryHeader& than) {
  if (header.kind != than.kind) return header.kind == kKindPtx;
  return header.architecture > than.architecture;
}

// The best entry of those that this device can use; null payload when there is none.
CUresult FindBestEntry(const void* fatbin, Entry* best, std::string* error) {
  FatbinHeader header;
  std::memcpy(&header, fatbin, sizeof header);
  const char* position = static_cast<const char*>(fatbin) + header.header_bytes;
  uint64_t left = header.entries_bytes;
  best->payload = nullptr;
  while (left >= sizeof(EntryHeader)) {
    Entry entry;
    std::memcpy(&entry.header, position, sizeof entry.header);
    uint64_t header_bytes = entry.header.header_bytes;
    if (header_bytes < sizeof(EntryHeader) || header_bytes > left ||
        entry.header.payload_bytes > left - header_bytes) {
      *error = "a fatbin entry reaches beyond the fatbin";
      return CUDA_ERROR_INVALID_IMAGE;
    }
    entry.payload = position + header_bytes;
    bool better = best->payload == nullptr || IsBetter(entry.header, best->header);
    if (IsUsable(entry.header) && better) *best = entry;
    position += header_bytes + entry.header.payload_bytes;
    left -= header_bytes + entry.header.payload_bytes;
  }
  return CUDA_SUCCESS;
}

// The best PTX of each fatbin, one after another: that links relocatable code, because the parser takes a
// declaration before or after what it declares.
CUresult ExtractFromFatbins(const std::vector<const void*>& fatbins, std::string* ptx, std::string* error) {
  bool found = false;
  for (const void* fatbin : fatbins) {
    if (Magic(fatbin) != kFatbinMagic) {
      *error = "the wrapper does not point to a fatbin";
      return CUDA_ERROR_INVALID_IMAGE;
    }
    Entry entry{};
    if (CUresult result = FindBestEntry(fatbin, &entry, error); result != CUDA_SUCCESS) return result;
    if (entry.payload == nullptr) continue;
    std::string text;
    if (CUresult result = Decompress(entry, &text, error); result != CUDA_SUCCESS) return result;
    if (entry.header.kind == kKindCubin) {
      if (CUresult result = OutlineCubin(text, &text, error); result != CUDA_SUCCESS) return result;
    }
    // The device runtime, linked to every program of older toolkits: kernels launch no kernels here.
    if (text.find("cnpGetLastError") != text.npos) continue;
    found = true;
    *ptx += text + "\n";
  }
  if (found) return CUDA_SUCCESS;
  *error = "the image holds no PTX for sm_90 or older; compile with -arch=compute_80 or similar";
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

// PTX begins with its .version directive, after comments and white space.
bool LooksLikePtx(const char* text) {
  std::string_view rest(text);
  while (!rest.empty()) {
    if (rest.starts_with("//")) {
      size_t end = rest.find('\n');
      rest.remove_prefix(end == rest.npos ? rest.size() : end);
    } else if (rest.starts_with("/*")) {
      size_t end = rest.find("*/");
      rest.remove_prefix(end == rest.npos ? rest.size() : end + 2);
    } else if (std::strchr(" \t\r\n", rest.front()) != nullptr) {
      rest.remove_prefix(1);
    } else {
      return rest.starts_with(".version");
    }
  }
  return false;
}

// Whether an ELF file is a 64-bit one for NVIDIA's GPUs.
bool IsCubin(const unsigned char* image) {
  constexpr unsigned char kClass64 = 2;
  constexpr unsigned char kLittleEndian = 1;
  constexpr unsigned char kMachineCuda = 190;
  return image[4] == kClass64 && image[5] == kLittleEndian && image[18] == kMachineCuda && image[19] == 0;
}

}  // namespace

CUresult ExtractPtx(const void* image, bool accept_wrapper, std::string* ptx, std::string* error) {
  switch (Magic(image)) {
    case kElfMagic:
      if (!IsCubin(static_cast<const unsigned char*>(image))) break;
      if (GetConfig().outline_cubins)
        return OutlineCubin({static_cast<const char*>(image), CubinBytes(image)}, ptx, error);
      *error = "the image is a cubin without PTX; the software GPU runs PTX only";
      return CUDA_ERROR_NO_BINARY_FOR_GPU;
    case kFatbinMagic:
      return ExtractFromFatbins({image}, ptx, error);
    case kWrapperMagic: {
      if (!accept_wrapper) break;
      Wrapper wrapper;
      std::memcpy(&wrapper, image, sizeof wrapper);
      std::vector<const void*> fatbins{wrapper.data};
      if (wrapper.version == 2 && wrapper.linked != nullptr) {
        for (const void* const* fatbin = wrapper.linked; *fatbin != nullptr; ++fatbin)
          fatbins.push_back(*fatbin);
      }
      return ExtractFromFatbins(fatbins, ptx, error);
    }
    default:
      if (!LooksLikePtx(static_cast<const char*>(image))) break;
      ptx->assign(static_cast<const char*>(image));
      return CUDA_SUCCESS;
  }
  *error = "the image is neither PTX text nor a fatbin";
  return CUDA_ERROR_INVALID_IMAGE;
}

}  // namespace causeway::software_gpu
