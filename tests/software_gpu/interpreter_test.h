// SPDX-License-Identifier: Apache-2.0
// Runs kernels of PTX files for the interpreter's tests: host memory stands for device memory.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/software_gpu/interpreter.h"

namespace causeway::software_gpu::test {

inline std::string ReadKernelFile(const std::string& name) {
  std::ifstream file(std::string(SOFTWARE_GPU_KERNELS) + "/" + name + ".ptx");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Memory that kernels may touch: ranges added by hand.
class Ranges : public AddressSpace {
 public:
  void Add(const void* start, size_t bytes) { ranges_[reinterpret_cast<uintptr_t>(start)] = bytes; }
  bool Contains(uint64_t address, size_t bytes, Access) const override {
    auto range = ranges_.upper_bound(address);
    if (range == ranges_.begin()) return false;
    --range;
    const uint64_t offset = address - range->first;
    return offset < range->second && bytes <= range->second - offset;
  }

 private:
  std::map<uint64_t, size_t> ranges_;
};

// A module that is parsed, placed in memory and linked.
class Module {
 public:
  explicit Module(const std::string& text) {
    program_ = Program::Parse(text, &error_);
    if (program_ == nullptr) return;
    for (Variable& variable : program_->variables()) {
      storage_.emplace_back(variable.bytes / 16 + 2);
      variable.address = storage_.back().data();
      memory_.Add(variable.address, std::max<size_t>(variable.bytes, 1));
    }
    linked_ = program_->Link(&error_);
    for (const Variable& variable : program_->variables()) {
      if (!variable.initial.empty()) std::memcpy(variable.address, variable.initial.data(), variable.bytes);
    }
  }

  static std::unique_ptr<Module> Load(const std::string& name) {
    auto module = std::make_unique<Module>(ReadKernelFile(name));
    EXPECT_TRUE(module->ok()) << name << ": " << module->error();
    return module;
  }

  bool ok() const { return linked_; }
  const std::string& error() const { return error_; }
  Program& program() { return *program_; }
  Ranges& memory() { return memory_; }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  const Kernel* Find(const std::string& name) const {
    for (const Kernel& kernel : program_->kernels()) {
      if (kernel.name == name) return &kernel;
    }
    return nullptr;
  }

  void* Address(const std::string& variable) {
    for (const Variable& candidate : program_->variables()) {
      if (candidate.name == variable) return candidate.address;
    }
    return nullptr;
  }

  // Packs the arguments at the offsets of the kernel's layout.
  template <class... Arguments>
  Fault Run(const std::string& name, Dim3 grid, Dim3 block, uint32_t shared, bool cooperative,
            const Arguments&... arguments) {
    const Kernel* kernel = Find(name);
    if (kernel == nullptr) return {-1, "no kernel named " + name};
    std::vector<std::byte> buffer(kernel->parameter_bytes + 1);
    size_t index = 0;
    bool fits = sizeof...(arguments) == kernel->parameters.size();
    [[maybe_unused]] const auto pack = [&](const void* value, size_t bytes) {
      if (!fits || kernel->parameters[index].bytes != bytes) {
        fits = false;
        return;
      }
      std::memcpy(buffer.data() + kernel->parameters[index++].offset, value, bytes);
    };
    (pack(&arguments, sizeof arguments), ...);
    if (!fits) return {-1, "the arguments do not match the parameters of " + name};
    Launch launch;
    launch.grid = grid;
    launch.block = block;
    launch.dynamic_shared_bytes = shared;
    launch.cooperative = cooperative;
    launch.parameters = buffer.data();
    return program_->Run(*kernel, launch, memory_, [this](bool is_stderr, std::string_view text) {
      (is_stderr ? err_ : out_) += text;
    });
  }

  template <class... Arguments>
  void Launch1D(const std::string& name, uint32_t grid, uint32_t block, const Arguments&... arguments) {
    const Fault fault = Run(name, {grid, 1, 1}, {block, 1, 1}, 0, false, arguments...);
    EXPECT_EQ(fault.cuda_error, 0) << fault.message;
  }

 private:
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  std::unique_ptr<Program> program_;
  std::string error_, out_, err_;
  bool linked_ = false;
  Ranges memory_;
  std::vector<std::vector<Unit>> storage_;
};

// A device array: its elements are accessible to kernels of `module`.
template <class T>
class Array {
 public:
  Array(Module& module, size_t count, T value = T{}) : values_(count, value) {
    module.memory().Add(values_.data(), count * sizeof(T));
  }
  template <class F>
  void Fill(F make) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = make(i);
  }
  T* pointer() { return values_.data(); }
  T& operator[](size_t index) { return values_[index]; }
  size_t size() const { return values_.size(); }

 private:
  std::vector<T> values_;
};

}  // namespace causeway::software_gpu::test
