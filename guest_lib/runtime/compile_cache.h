// SPDX-License-Identifier: Apache-2.0
// What NVRTC and nvJitLink compiled, kept in files of the guest: cuDNN and others compile the same kernel
// again for every shape of tensors, and rely on the driver to remember it. The file DIRECTORY/HASH holds a
// header and the code; HASH is the SHA-256 of all that the code depends on, in hexadecimal. DIRECTORY is
// `causeway` in CUDA_CACHE_PATH, or else in ~/.nv/ComputeCache; the files beside it are those of NVIDIA's
// driver. Processes share it without locks: a file is renamed to its name when it is complete, and one that
// does not hold what its header says counts as missing. Any thread may call these functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ivshmem_ring/messages/image_hash.h"
#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest {

class CompileCache {
 public:
  // With an empty directory nothing is kept.
  CompileCache(std::string directory, uint64_t limit_bytes);

  // By the program's CUDA_CACHE_PATH, CUDA_CACHE_MAXSIZE and CUDA_CACHE_DISABLE.
  static CompileCache FromEnvironment();

  bool enabled() const { return !directory_.empty(); }

  struct Code {
    std::byte* bytes;  // from malloc; the caller frees it
    uint32_t size;
  };
  std::optional<Code> Find(const ImageHash& key) const;

  // False when it could not be written.
  bool Keep(const ImageHash& key, std::span<const std::byte> code);

 private:
  std::string PathOf(const ImageHash& key) const;
  void Evict();

  std::string directory_;
  uint64_t limit_bytes_;
  std::atomic<uint64_t> unchecked_bytes_;  // written since the folder's size was last looked at
};

// The functions of the driver's private table for this (export_table_slots.h). A caller makes a key of what
// it will compile and asks for the code; if there is none, it compiles and hands the code over. `compiler`
// names the compiler's build. NVIDIA's driver (580.159.04) gives code of one `kind` for a key of another;
// here each kind has its own.
namespace slots {

struct CompileKey;

CUresult MakeCompileKey(CompileKey** key, int kind, const void* source, uint32_t source_bytes,
                        const char* options, const char* host, const char* compiler, uint32_t architecture,
                        uint32_t flag);
CUresult DestroyCompileKey(CompileKey* key);
CUresult FindCompiled(const CompileKey* key, const void* unused, void** code, uint32_t* code_bytes);
CUresult KeepCompiled(const CompileKey* key, const void* unused, const void* code, uint32_t code_bytes);
// Frees code of FindCompiled. CUDA_ERROR_NOT_SUPPORTED: it is none, and nothing happens.
CUresult FreeCompiled(void* code);

}  // namespace slots
}  // namespace causeway::guest
