// SPDX-License-Identifier: Apache-2.0
// What NVRTC and nvJitLink compiled, kept in files of the guest: cuDNN and others compile the same kernel
// again for every shape that they meet, and rely on the driver to remember it.
//
//   DIRECTORY/HASH   Header, code     HASH: SHA-256 of all that the code depends on, in hexadecimal
//
// DIRECTORY is `causeway` in CUDA_CACHE_PATH, or else in ~/.nv/ComputeCache; the files beside it are NVIDIA's
// driver's. Processes share it without locks: a file appears complete, by its renaming, and whoever reads one
// that is not what it says takes it for missing.
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
  // An empty directory: nothing is kept.
  CompileCache(std::string directory, uint64_t limit_bytes);

  // As the program's CUDA_CACHE_PATH, CUDA_CACHE_MAXSIZE and CUDA_CACHE_DISABLE want it.
  static CompileCache FromEnvironment();

  bool enabled() const { return !directory_.empty(); }

  struct Code {
    std::byte* bytes;  // from malloc
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

// The slots of the driver's table. A caller makes a key of what it will compile, asks for the code, and if
// there is none compiles and hands it over. The third-last parameter names the compiler's build. NVIDIA's
// driver (580.159.04) does not tell kinds apart; here they are, at the price of a compilation.
namespace slots {

struct CompileKey;

CUresult MakeCompileKey(CompileKey** key, int kind, const void* source, uint32_t source_bytes,
                        const char* options, const char* host, const char* compiler, uint32_t architecture,
                        uint32_t flag);
CUresult DestroyCompileKey(CompileKey* key);
CUresult FindCompiled(const CompileKey* key, const void* unused, void** code, uint32_t* code_bytes);
CUresult KeepCompiled(const CompileKey* key, const void* unused, const void* code, uint32_t code_bytes);
// Of FindCompiled; CUDA_ERROR_NOT_SUPPORTED for anything else, which is left alone.
CUresult FreeCompiled(void* code);

}  // namespace slots
}  // namespace causeway::guest
