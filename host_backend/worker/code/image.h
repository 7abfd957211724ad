// SPDX-License-Identifier: Apache-2.0
// What a byte string must be before the driver parses it as code: the formats that NVIDIA documents for each
// entry point, with their tables inside of what was sent. Formats that hold addresses are none of them.
#pragma once
#include <cstddef>
#include <span>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::host {

enum class ImageFormat {
  kNone,     // none that may reach the driver
  kElf,      // a cubin or an object, tables and sections inside of the bytes
  kFatbin,   // header and entries inside of the bytes
  kText,     // could be PTX: text that ends inside of the bytes
  kArchive,  // of objects
  kNvvm,     // bitcode, or the older intermediate code of nvcc -dlto
};

ImageFormat FormatOf(std::span<const std::byte> bytes);

// Whether it begins as nvcc's fatbin wrapper, a struct with the address of a fatbin. The guest library sends
// what that address names, so a wrapper that arrives is an attack.
bool IsFatbinWrapper(std::span<const std::byte> bytes);

// Whether cuModuleLoadData and cuLibraryLoadData may get it.
bool IsImage(std::span<const std::byte> bytes);
// Whether cuLinkAddData may get it as an input of that type. `bytes` has at least one zero behind it.
bool IsLinkInput(CUjitInputType type, std::span<const std::byte> bytes);

}  // namespace causeway::host
