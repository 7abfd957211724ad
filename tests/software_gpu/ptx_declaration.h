// SPDX-License-Identifier: Apache-2.0
// Parses variable and parameter declarations with their initialisers.
#pragma once
#include "tests/software_gpu/ptx_cursor.h"
#include "tests/software_gpu/ptx_syntax.h"

namespace causeway::software_gpu::ptx {

// The cursor stands behind the space (".global"); reads alignment, type, name, array bounds and
// initialiser, not the ';' or ',' behind. Limits: 1 GiB a variable.
Symbol ParseDeclaration(Cursor& cursor, Space space);

}  // namespace causeway::software_gpu::ptx
