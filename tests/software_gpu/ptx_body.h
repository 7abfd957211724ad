// SPDX-License-Identifier: Apache-2.0
// Parses a function's body: declarations, labels and instructions, with nested scopes.
#pragma once
#include <string_view>
#include <unordered_map>

#include "tests/software_gpu/ptx_cursor.h"
#include "tests/software_gpu/ptx_syntax.h"

namespace causeway::software_gpu::ptx {

// Module-scope symbols by name.
using SymbolTable = std::unordered_map<std::string, const Symbol*>;

// The cursor stands on '{'; fills registers, symbols, body and branch targets of `function` and reads the
// closing '}'. Shared and constant variables of the body are added to `module`.
void ParseBody(Cursor& cursor, Function& function, Module& module, const SymbolTable& globals);

}  // namespace causeway::software_gpu::ptx
