// SPDX-License-Identifier: Apache-2.0
// The proof by which the CUDA runtime convinces itself that it talks to a driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

// MD2 (RFC 1319).
void Md2(std::span<const uint8_t> message, uint8_t digest[16]);

// HMAC (RFC 2104) over MD2, block size 16. `key` has at most 16 bytes.
void HmacMd2(std::span<const uint8_t> key, std::span<const uint8_t> message, uint8_t digest[16]);

// The answer to the runtime's question (version, time); the addresses are those of the tables it was given.
void IntegrityAnswer(uint32_t version, uint64_t time, const void* runtime_table, const void* integrity_table,
                     const void* integrity_function, uint8_t answer[16]);

}  // namespace causeway::software_gpu
