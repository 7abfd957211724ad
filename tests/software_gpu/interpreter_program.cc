// SPDX-License-Identifier: Apache-2.0
// Program: PTX text to code, placement of variables, and launches.
#include <algorithm>
#include <map>
#include <set>

#include "tests/software_gpu/interpreter_block.h"
#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {
namespace {

// Local memory a thread gets for calls whose depth the code does not bound (recursion, function pointers).
constexpr uint32_t kOpenStackBytes = 32 * 1024;
constexpr uint32_t kMaxThreadsPerBlock = 1024;

uint32_t RoundUp(uint32_t value, size_t align) {
  const auto unit = static_cast<uint32_t>(std::max<size_t>(align, 1));
  return (value + unit - 1) / unit * unit;
}

void CollectShared(const Operand& operand, std::set<const ptx::Symbol*>& found) {
  if (operand.symbol != nullptr && operand.symbol->space == Space::kShared) found.insert(operand.symbol);
  for (const Operand& element : operand.elements) CollectShared(element, found);
}

std::set<const ptx::Symbol*> SharedOf(const ptx::Function& function) {
  std::set<const ptx::Symbol*> found;
  for (const ptx::Instruction& instruction : function.body) {
    for (const Operand& operand : instruction.operands) CollectShared(operand, found);
  }
  return found;
}

// Shared variables that device functions use lie at one place for all kernels, from 0 up to
// `function_bytes`; a kernel's own ones follow, from 0 if it calls nothing. The size of dynamic shared
// memory is known at launch only, so it comes behind everything and its address is computed.
class SharedPlacement {
 public:
  explicit SharedPlacement(const ptx::Module& module) {
    for (const ptx::Function& function : module.functions) {
      if (!function.entry) function_bytes_ = Place(SharedOf(function), function_bytes_, offsets_);
    }
    common_ = offsets_;
  }

  // Offsets for `function`; the kernel's static bytes in *bytes.
  std::unordered_map<const ptx::Symbol*, uint32_t> For(const ptx::Function& function, uint32_t* bytes) const {
    std::unordered_map<const ptx::Symbol*, uint32_t> offsets = common_;
    const bool calls =
        std::any_of(function.body.begin(), function.body.end(),
                    [](const ptx::Instruction& instruction) { return instruction.base == "call"; });
    const std::set<const ptx::Symbol*> own = SharedOf(function);
    const bool shares = calls || std::any_of(own.begin(), own.end(), [&](const ptx::Symbol* symbol) {
                          return common_.count(symbol) != 0;
                        });
    *bytes = function.entry ? Place(own, shares ? function_bytes_ : 0, offsets) : 0;
    return offsets;
  }

 private:
  static uint32_t Place(const std::set<const ptx::Symbol*>& symbols, uint32_t bytes,
                        std::unordered_map<const ptx::Symbol*, uint32_t>& offsets) {
    std::vector<const ptx::Symbol*> order(symbols.begin(), symbols.end());
    std::sort(order.begin(), order.end(),
              [](const ptx::Symbol* a, const ptx::Symbol* b) { return a->index < b->index; });
    for (const ptx::Symbol* symbol : order) {
      if (symbol->external || symbol->bytes == 0 || offsets.count(symbol) != 0) continue;
      bytes = RoundUp(bytes, symbol->align);
      offsets[symbol] = bytes;
      if (symbol->bytes > (1u << 24)) throw ptx::Error(symbol->line, "'" + symbol->name + "' is too large");
      bytes += static_cast<uint32_t>(symbol->bytes);
      if (bytes > (1u << 28)) throw ptx::Error(symbol->line, "the shared variables are too large");
    }
    return bytes;
  }

  uint32_t function_bytes_ = 0;
  std::unordered_map<const ptx::Symbol*, uint32_t> offsets_, common_;
};

struct PendingAddress {
  uint32_t variable = 0;
  size_t offset = 0;
  uint32_t bytes = 0;
  int shift = 0;
  int64_t addend = 0;
  uint32_t target = 0;                     // variable, unless
  const FunctionCode* function = nullptr;  // a function is meant
};

class ProgramImplementation : public Program {
 public:
  void Build(std::string_view text) {
    const ptx::Module module = ptx::ParseModule(text);
    AddVariables(module);
    AddFunctions(module);
    ResolveInitialisers(module);
  }

  std::vector<Variable>& variables() override { return variables_; }
  const std::vector<Kernel>& kernels() const override { return kernels_; }

  bool Link(std::string* error) override {
    for (const Variable& variable : variables_) {
      if (variable.address != nullptr) continue;
      *error = "the variable '" + variable.name + "' has no address yet";
      return false;
    }
    for (FunctionCode& function : functions_) {
      for (const GlobalRelocation& relocation : function.relocations) {
        function.frame[relocation.slot] =
            reinterpret_cast<uintptr_t>(variables_[relocation.variable].address) +
            static_cast<uint64_t>(relocation.addend);
      }
    }
    for (const PendingAddress& pending : pending_) {
      const void* target = pending.function != nullptr ? static_cast<const void*>(pending.function)
                                                       : variables_[pending.target].address;
      const uint64_t value =
          (reinterpret_cast<uintptr_t>(target) + static_cast<uint64_t>(pending.addend)) >> pending.shift;
      std::memcpy(variables_[pending.variable].initial.data() + pending.offset, &value, pending.bytes);
    }
    return true;
  }

  Fault Run(const Kernel& kernel, const Launch& launch, const AddressSpace& memory,
            const std::function<void(bool, std::string_view)>& print) override;

 private:
  void AddVariables(const ptx::Module& module) {
    for (const ptx::Symbol& symbol : module.symbols) {
      if (symbol.space == Space::kShared) continue;
      if (symbol.external) {
        throw ptx::Error(symbol.line,
                         "the external variable '" + symbol.name + "' is not defined in this text");
      }
      const auto index = static_cast<uint32_t>(variables_.size());
      layout_.variables[&symbol] = index;
      layout_.variables_by_name[symbol.name] = index;
      Variable variable;
      variable.name = symbol.name;
      variable.bytes = symbol.bytes;
      variable.align = symbol.align;
      variable.constant = symbol.space == Space::kConst;
      variable.managed = symbol.managed;
      variable.initial = symbol.initial;
      variables_.push_back(std::move(variable));
    }
  }

  void AddFunctions(const ptx::Module& module) {
    for (const ptx::Function& function : module.functions) {
      if (!function.has_body) continue;
      functions_.emplace_back();
      functions_.back().name = function.name;
      functions_.back().entry = function.entry;
      layout_.functions[functions_.back().name] = &functions_.back();
    }
    const SharedPlacement placement(module);
    size_t next = 0;
    for (const ptx::Function& function : module.functions) {
      if (!function.has_body) continue;
      FunctionCode& code = functions_[next++];
      layout_.shared_offsets = placement.For(function, &code.static_shared_bytes);
      Lowering(layout_, function, code).Run();
    }
    next = 0;
    for (const ptx::Function& function : module.functions) {
      if (!function.has_body) continue;
      const FunctionCode& code = functions_[next++];
      if (function.entry) AddKernel(function, code);
    }
  }

  void AddKernel(const ptx::Function& function, const FunctionCode& code) {
    Kernel kernel;
    kernel.name = function.name;
    for (const ptx::Symbol* symbol : function.parameters) {
      const uint32_t offset = RoundUp(kernel.parameter_bytes, symbol->align);
      kernel.parameters.push_back({offset, static_cast<uint32_t>(symbol->bytes)});
      kernel.parameter_bytes = offset + static_cast<uint32_t>(symbol->bytes);
    }
    kernel.static_shared_bytes = code.static_shared_bytes;
    kernel.local_bytes = StackBytes(code);
    kernel.max_threads_per_block = function.max_threads_per_block;
    kernel.body = &code;
    kernels_.push_back(std::move(kernel));
  }

  // Local memory of the deepest chain of calls.
  uint32_t StackBytes(const FunctionCode& code) {
    std::map<const FunctionCode*, uint64_t> known;
    std::set<const FunctionCode*> open;
    bool unbounded = false;
    const uint64_t bytes = Depth(code, known, open, &unbounded);
    return static_cast<uint32_t>(std::min<uint64_t>(bytes + (unbounded ? kOpenStackBytes : 0), 1u << 26));
  }

  uint64_t Depth(const FunctionCode& code, std::map<const FunctionCode*, uint64_t>& known,
                 std::set<const FunctionCode*>& open, bool* unbounded) {
    if (const auto done = known.find(&code); done != known.end()) return done->second;
    if (!open.insert(&code).second || open.size() > 1000) {
      *unbounded = true;
      return 0;
    }
    uint64_t deepest = 0;
    for (const CallSite& site : code.call_sites) {
      if (site.system_call != nullptr) continue;
      if (site.callee == nullptr) {
        *unbounded = true;
      } else {
        deepest = std::max(deepest, Depth(*site.callee, known, open, unbounded));
      }
    }
    open.erase(&code);
    return known[&code] = code.local_bytes + deepest;
  }

  void ResolveInitialisers(const ptx::Module& module) {
    for (const ptx::Symbol& symbol : module.symbols) {
      for (const ptx::InitialAddress& address : symbol.addresses) {
        if (symbol.space == Space::kShared)
          throw ptx::Error(address.line, "a shared variable has an initialiser");
        PendingAddress pending{layout_.variables.at(&symbol), address.offset, address.bytes, address.shift,
                               address.addend};
        const auto variable = layout_.variables_by_name.find(address.name);
        const auto function = layout_.functions.find(address.name);
        if (variable != layout_.variables_by_name.end()) {
          pending.target = variable->second;
        } else if (function != layout_.functions.end()) {
          pending.function = function->second;
        } else {
          throw ptx::Error(address.line, "unknown name '" + address.name + "' in an initialiser");
        }
        if (pending.bytes > 8)
          throw ptx::Error(address.line, "an address stands where more than 8 bytes belong");
        pending_.push_back(pending);
      }
    }
  }

  std::vector<Variable> variables_;
  std::vector<Kernel> kernels_;
  std::deque<FunctionCode> functions_;
  ModuleLayout layout_;
  std::vector<PendingAddress> pending_;
  DeviceHeap heap_;
};

Turn RunInOrder(LaunchState& state, const Dim3& grid) {
  BlockRunner runner(state);
  for (uint32_t z = 0; z < grid.z; ++z) {
    for (uint32_t y = 0; y < grid.y; ++y) {
      for (uint32_t x = 0; x < grid.x; ++x) {
        runner.Start({x, y, z});
        Turn turn = Turn::kMore;
        while (turn == Turn::kMore) turn = runner.RunTurn();
        if (turn == Turn::kFault) return turn;
      }
    }
  }
  return Turn::kFinished;
}

// Every block is resident and gets its turns, so blocks may wait for each other.
Turn RunTogether(LaunchState& state, const Dim3& grid) {
  std::deque<BlockRunner> blocks;
  for (uint32_t z = 0; z < grid.z; ++z) {
    for (uint32_t y = 0; y < grid.y; ++y) {
      for (uint32_t x = 0; x < grid.x; ++x) blocks.emplace_back(state).Start({x, y, z});
    }
  }
  std::vector<BlockRunner*> running;
  for (BlockRunner& block : blocks) running.push_back(&block);
  while (!running.empty()) {
    for (auto it = running.begin(); it != running.end();) {
      const Turn turn = (*it)->RunTurn();
      if (turn == Turn::kFault) return turn;
      it = turn == Turn::kFinished ? running.erase(it) : it + 1;
    }
  }
  return Turn::kFinished;
}

Fault ProgramImplementation::Run(const Kernel& kernel, const Launch& launch, const AddressSpace& memory,
                                 const std::function<void(bool, std::string_view)>& print) {
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads == 0 || threads > kMaxThreadsPerBlock || launch.grid.x == 0 || launch.grid.y == 0 ||
      launch.grid.z == 0) {
    return {1, "kernel '" + kernel.name + "': the launch has no threads or more than 1024 a block"};
  }
  LaunchState state;
  state.kernel = &kernel;
  state.entry = static_cast<const FunctionCode*>(kernel.body);
  state.launch = &launch;
  state.memory = &memory;
  state.print = &print;
  state.functions = &functions_;
  state.heap = &heap_;
  const auto* parameters = static_cast<const std::byte*>(launch.parameters);
  state.parameters.assign(parameters, parameters + (parameters != nullptr ? kernel.parameter_bytes : 0));
  state.parameters.resize(kernel.parameter_bytes);
  state.local_window = RoundUp(kernel.local_bytes, 16);
  state.static_shared_bytes = RoundUp(kernel.static_shared_bytes, 16);
  state.reserved_shared = std::any_of(functions_.begin(), functions_.end(),
                                      [](const FunctionCode& code) { return code.reserved_shared; });
  if (launch.cooperative) {
    RunTogether(state, launch.grid);
  } else {
    RunInOrder(state, launch.grid);
  }
  return state.fault;
}

}  // namespace

std::unique_ptr<Program> Program::Parse(std::string_view ptx, std::string* error) {
  try {
    auto program = std::make_unique<ProgramImplementation>();
    program->Build(ptx);
    return program;
  } catch (const ptx::Error& reason) {
    *error = reason.what();
    return nullptr;
  }
}

}  // namespace causeway::software_gpu
