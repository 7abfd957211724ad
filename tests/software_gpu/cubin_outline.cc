// SPDX-License-Identifier: Apache-2.0
// Reads the symbols of a cubin and the parameters of its kernels, and writes them down as PTX.
#include "tests/software_gpu/cubin_outline.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

namespace causeway::software_gpu {
namespace {

constexpr unsigned char kOtherEntry = 0x10;  // of a symbol's st_other: a kernel
constexpr uint8_t kFormatSized = 4;          // a record with its own size
constexpr uint8_t kParameter = 0x17;
constexpr uint8_t kLargeParameter = 0x45;

struct Parameter {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};
using Parameters = std::map<unsigned, Parameter>;  // by ordinal

bool IsIdentifier(std::string_view name) {
  return !name.empty() &&
         name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_$") ==
             name.npos;
}

class Cubin {
 public:
  explicit Cubin(std::string_view image) : image_(image) {}

  bool Read() {
    if (!Copy(0, &header_) || header_.e_shentsize != sizeof(Elf64_Shdr)) return false;
    sections_.resize(header_.e_shnum);
    for (size_t i = 0; i < sections_.size(); ++i)
      if (!Copy(header_.e_shoff + i * sizeof(Elf64_Shdr), &sections_[i])) return false;
    return header_.e_shstrndx < sections_.size();
  }

  std::string_view Bytes(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS || section.sh_offset > image_.size()) return {};
    return image_.substr(section.sh_offset, section.sh_size);
  }

  std::string Name(const Elf64_Shdr& strings, size_t offset) const {
    const std::string_view bytes = Bytes(strings);
    if (offset >= bytes.size()) return {};
    return std::string(bytes.substr(offset, bytes.find('\0', offset) - offset));
  }

  std::string Outline() const {
    std::string text = ".version 8.0\n.target sm_90\n.address_size 64\n";
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections_.size()) continue;
      const std::string_view symbols = Bytes(section);
      for (size_t at = 0; at + sizeof(Elf64_Sym) <= symbols.size(); at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        std::memcpy(&symbol, symbols.data() + at, sizeof symbol);
        Declare(symbol, Name(sections_[section.sh_link], symbol.st_name), &text);
      }
    }
    return text;
  }

 private:
  template <typename T>
  bool Copy(size_t offset, T* value) const {
    if (offset > image_.size() || image_.size() - offset < sizeof(T)) return false;
    std::memcpy(value, image_.data() + offset, sizeof(T));
    return true;
  }

  void Declare(const Elf64_Sym& symbol, const std::string& name, std::string* text) const {
    const unsigned type = ELF64_ST_TYPE(symbol.st_info);
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= sections_.size() || !IsIdentifier(name)) return;
    if (type == STT_FUNC && (symbol.st_other & kOtherEntry) != 0) {
      *text += ".visible .entry " + name + "(" + ParameterList(name) + ")\n{\n  ret;\n}\n";
    } else if (type == STT_OBJECT && symbol.st_size != 0) {
      const std::string section = Name(sections_[header_.e_shstrndx], sections_[symbol.st_shndx].sh_name);
      if (!section.starts_with(".nv.global") && !section.starts_with(".nv.constant3")) return;
      *text += std::string(".visible ") + (section.starts_with(".nv.global") ? ".global" : ".const") +
               " .align 16 .b8 " + name + "[" + std::to_string(symbol.st_size) + "];\n";
    }
  }

  // Each at its offset: the alignment is the smallest that leads there from the end of the one before.
  std::string ParameterList(const std::string& kernel) const {
    std::string list;
    uint32_t end = 0;
    for (const auto& [ordinal, parameter] : ParametersOf(kernel)) {
      uint32_t align = 1;
      while (align < 128 && (end + align - 1) / align * align != parameter.offset) align *= 2;
      list += (list.empty() ? "" : ", ") + std::string(".param .align ") + std::to_string(align) + " .b8 p" +
              std::to_string(ordinal) + "[" + std::to_string(parameter.bytes) + "]";
      end = parameter.offset + parameter.bytes;
    }
    return list;
  }

  Parameters ParametersOf(const std::string& kernel) const {
    Parameters parameters;
    for (const Elf64_Shdr& section : sections_) {
      if (Name(sections_[header_.e_shstrndx], section.sh_name) != ".nv.info." + kernel) continue;
      const std::string_view bytes = Bytes(section);
      for (size_t at = 0; at + 4 <= bytes.size();) {
        const auto format = static_cast<uint8_t>(bytes[at]);
        const auto attribute = static_cast<uint8_t>(bytes[at + 1]);
        uint16_t size = 0;
        std::memcpy(&size, bytes.data() + at + 2, sizeof size);
        at += 4;
        if (format != kFormatSized) continue;
        if ((attribute == kParameter || attribute == kLargeParameter) && size >= 12 &&
            at + 12 <= bytes.size()) {
          uint16_t ordinal = 0, offset = 0;
          uint32_t word = 0;
          std::memcpy(&ordinal, bytes.data() + at + 4, sizeof ordinal);
          std::memcpy(&offset, bytes.data() + at + 6, sizeof offset);
          std::memcpy(&word, bytes.data() + at + 8, sizeof word);
          parameters[ordinal] = {offset, attribute == kParameter ? word >> 18 : word & 0xffff};
        }
        at += size;
      }
    }
    return parameters;
  }

  std::string_view image_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
};

}  // namespace

CUresult OutlineCubin(std::string_view image, std::string* ptx, std::string* error) {
  Cubin cubin(image);
  if (!cubin.Read()) {
    *error = "the cubin's headers make no sense";
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *ptx = cubin.Outline();
  return CUDA_SUCCESS;
}

size_t CubinBytes(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  size_t bytes = std::max<size_t>(header.e_phoff + size_t{header.e_phnum} * header.e_phentsize,
                                  header.e_shoff + size_t{header.e_shnum} * header.e_shentsize);
  const auto* sections =
      reinterpret_cast<const Elf64_Shdr*>(static_cast<const char*>(image) + header.e_shoff);
  for (size_t i = 0; i < header.e_shnum; ++i)
    if (sections[i].sh_type != SHT_NOBITS)
      bytes = std::max<size_t>(bytes, sections[i].sh_offset + sections[i].sh_size);
  return bytes;
}

}  // namespace causeway::software_gpu
