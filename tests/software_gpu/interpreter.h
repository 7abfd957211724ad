// SPDX-License-Identifier: Apache-2.0
// The seam between the software GPU's driver (contexts, memory, streams) and its PTX interpreter.
//
//   PTX text --Program::Parse--> Program --Program::Link--> addresses fixed --Run--> threads executed
//
// The driver owns memory and decides what is addressable; the interpreter owns instructions and threads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

namespace causeway::software_gpu {

// A texture read, as its instruction states it.
struct TextureRead {
  uint64_t texture = 0;
  uint32_t dimensions = 1;
  bool layered = false;
  bool integers = false;  // coordinates are in `index`, else in `at`
  uint32_t layer = 0;
  float at[3] = {};
  int32_t index[3] = {};
  float level = 0;
};

// A surface access; index[0] counts bytes.
struct SurfaceAccess {
  uint64_t surface = 0;
  uint32_t dimensions = 1;
  bool layered = false;
  uint32_t layer = 0;
  int32_t index[3] = {};
  uint32_t bytes = 0;
};

enum class Access { kRead, kWrite };

// What a kernel may touch. Contains() is asked once per access to generic or global memory, so
// implementations answer without locks; an access outside ends the launch with error 700. What it answered
// holds for as long as the caller keeps what Keep() gave, which blocks do for a turn.
class AddressSpace {
 public:
  virtual ~AddressSpace() = default;
  virtual bool Contains(uint64_t address, size_t bytes, Access access) const = 0;
  virtual std::shared_lock<std::shared_mutex> Keep() const { return {}; }
  // Four channels: floats' bits or integers, as the texture says. False when there is no such texture.
  virtual bool ReadTexture(const TextureRead&, uint32_t*) const { return false; }
  // Null outside, or when there is no such surface.
  virtual std::byte* FindSurfaceElement(const SurfaceAccess&) const { return nullptr; }
};

// A module-scope variable (.global or .const). `address` is set by the driver before Link().
struct Variable {
  std::string name;
  size_t bytes = 0;
  size_t align = 1;
  bool constant = false;
  bool managed = false;            // reached by the host's pointer as well
  std::vector<std::byte> initial;  // empty, or `bytes` long
  void* address = nullptr;
};

struct Parameter {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

// A .entry function. What cuFuncGetAttribute and cuFuncGetParamInfo need.
struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t local_bytes = 0;
  uint32_t max_threads_per_block = 1024;  // .maxntid when given
  const void* body = nullptr;             // the interpreter's own
};

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

struct Launch {
  Dim3 grid, block;
  uint32_t dynamic_shared_bytes = 0;
  const void* parameters = nullptr;  // kernel layout, Kernel::parameter_bytes long
  bool cooperative = false;          // grid.sync() must work: every block is resident
  // Of each block, and of all blocks a thousand times as many, before the launch ends as one that took too long;
  // 0: any number.
  uint64_t most_turns = 0;
};

// How a launch ended: 0, or the CUresult natively seen (700 bad address, 715 illegal instruction,
// 716 misaligned address, 719 trap, 710 assert) and a sentence for the log.
struct Fault {
  int cuda_error = 0;
  std::string message;
};

class Program {
 public:
  virtual ~Program() = default;
  // Returns null and sets *error to one sentence naming the line and the instruction it lacks.
  static std::unique_ptr<Program> Parse(std::string_view ptx, std::string* error);

  virtual std::vector<Variable>& variables() = 0;
  virtual const std::vector<Kernel>& kernels() const = 0;
  // After every Variable::address is set: resolves variables' addresses in code and initialisers.
  // Does not write initial values to memory, except that it stores addresses into `initial`.
  virtual bool Link(std::string* error) = 0;

  // Runs every thread of the grid to its end on the calling thread. `print` receives device printf text
  // (stdout) and assert text (stderr) in the order in which threads produced it.
  virtual Fault Run(const Kernel& kernel, const Launch& launch, const AddressSpace& memory,
                    const std::function<void(bool is_stderr, std::string_view)>& print) = 0;
};

}  // namespace causeway::software_gpu
