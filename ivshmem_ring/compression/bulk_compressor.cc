// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/compression/bulk_compressor.h"

#include <lz4.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "ivshmem_ring/transport/record.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway {
namespace {

constexpr int kAcceleration = 1;  // LZ4's own default
constexpr size_t kSampleParts = 4;

const char* Chars(std::span<const std::byte> bytes) {
  return reinterpret_cast<const char*>(bytes.data());
}

}  // namespace

// LZ4's own would lie on the stack, of which a program's thread may have little.
struct BulkCompressor::Workspace {
  LZ4_stream_t state;
  std::byte out[CompressionChoice::MostCompressed(kBulkBytes)];

  // 0: it does not become at most MostCompressed.
  size_t Compress(std::span<const std::byte> in) {
    const int most = static_cast<int>(CompressionChoice::MostCompressed(in.size()));
    return static_cast<size_t>(LZ4_compress_fast_extState(&state, Chars(in), reinterpret_cast<char*>(out),
                                                          static_cast<int>(in.size()), most, kAcceleration));
  }
};

BulkCompressor::BulkCompressor(uint64_t assumed_rate)
    : choice_(assumed_rate), received_(new std::byte[kBulkBytes]) {
  idle_.reserve(kMostIdle);
}

BulkCompressor::~BulkCompressor() = default;

std::unique_ptr<BulkCompressor::Workspace> BulkCompressor::TakeWorkspace() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Workspace> workspace = std::move(idle_.back());
      idle_.pop_back();
      return workspace;
    }
  }
  return std::unique_ptr<Workspace>(new (std::nothrow) Workspace);
}

void BulkCompressor::GiveBack(std::unique_ptr<Workspace> workspace) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(workspace));
}

// Compresses a few parts that lie evenly over the piece, because its beginning alone may shrink otherwise than the rest.
bool BulkCompressor::TrySample(std::span<const std::byte> bulk, Workspace& workspace) {
  constexpr size_t kPart = CompressionChoice::kSampleBytes / kSampleParts;
  const size_t step = (bulk.size() - kPart) / (kSampleParts - 1);
  size_t compressed = 0;
  const uint64_t began_us = NowUs();
  for (size_t i = 0; i < kSampleParts; ++i) {
    const size_t part = workspace.Compress(bulk.subspan(i * step, kPart));
    compressed += part == 0 ? kPart : part;
  }
  return choice_.NoteSample(CompressionChoice::kSampleBytes, compressed, NowUs() - began_us);
}

CompressedBulk BulkCompressor::Compress(std::span<const std::byte> bulk) {
  CompressedBulk made;
  const CompressionChoice::Plan plan = choice_.Next(bulk.size());
  if (plan == CompressionChoice::Plan::kPlain || bulk.size() > kBulkBytes) return made;
  std::unique_ptr<Workspace> workspace = TakeWorkspace();
  if (workspace == nullptr) return made;
  if (plan == CompressionChoice::Plan::kCompress || TrySample(bulk, *workspace)) {
    const uint64_t began_us = NowUs();
    const auto block = static_cast<uint32_t>(workspace->Compress(bulk));
    choice_.NotePiece(bulk.size(), block, NowUs() - began_us);
    if (block != 0) made.bytes.reset(new (std::nothrow) std::byte[sizeof block + block]);
    if (made.bytes != nullptr) {
      std::memcpy(made.bytes.get(), &block, sizeof block);
      std::memcpy(made.bytes.get() + sizeof block, workspace->out, block);
      made.size = sizeof block + block;
    }
  }
  GiveBack(std::move(workspace));
  return made;
}

bool BulkCompressor::Decompress(std::span<const std::byte> block, std::span<std::byte> out) {
  const int size = static_cast<int>(out.size());
  return LZ4_decompress_safe(Chars(block), reinterpret_cast<char*>(out.data()),
                             static_cast<int>(block.size()), size) == size;
}

}  // namespace causeway
