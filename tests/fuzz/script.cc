// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/script.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/protocol/call.h"
#include "ivshmem_ring/protocol/operation.h"

namespace causeway::fuzz {

ScriptPrefix ReadPrefix(std::span<const uint8_t> input) {
  ScriptPrefix prefix{};
  if (!input.empty()) std::memcpy(&prefix, input.data(), std::min(input.size(), sizeof prefix));
  return prefix;
}

namespace {

constexpr uint64_t kLargeRoomOneIn = 64;
constexpr uint64_t kMostRoom = 64u << 10;

constexpr size_t kScriptBlock = 1u << 20;
std::vector<std::unique_ptr<std::byte[]>> script_blocks, large_blocks;
size_t next_block = 0, used_of_block = kScriptBlock;  // of the one before next_block

}  // namespace

void* ScriptMemory::Take(size_t bytes) {
  bytes = (bytes + 15) & ~size_t{15};
  if (bytes > kScriptBlock) return large_blocks.emplace_back(new std::byte[bytes]).get();
  if (used_of_block + bytes > kScriptBlock) {
    if (next_block == script_blocks.size()) script_blocks.emplace_back(new std::byte[kScriptBlock]);
    ++next_block;
    used_of_block = 0;
  }
  void* taken = script_blocks[next_block - 1].get() + used_of_block;
  used_of_block += bytes;
  return taken;
}

void ScriptMemory::Reset() {
  large_blocks.clear();
  next_block = 0;
  used_of_block = kScriptBlock;
}

ScriptReader::ScriptReader(std::span<const uint8_t> input)
    : left_(input.subspan(std::min(input.size(), kScriptPrefix))),
      keeps_room_small_(ReadPrefix(input).seed % kLargeRoomOneIn != 1) {}

bool ScriptReader::Next(View* message) {
  if (left_.size() < sizeof(MessageHead) || messages_ == kMostMessages) return false;
  ++messages_;
  MessageHead& head = message->head;
  std::memcpy(&head, left_.data(), sizeof head);
  left_ = left_.subspan(sizeof head);
  const auto take = [this](size_t bytes) {
    const auto taken = std::as_bytes(left_.first(bytes));
    left_ = left_.subspan(bytes);
    return taken;
  };
  head.link %= kScriptChannels + 1;
  const size_t most = head.link == kMainScriptLink ? kMaxMainRecordBytes : kMaxChannelRecordBytes;
  head.body_bytes =
      static_cast<uint16_t>(std::min({size_t{head.body_bytes}, most - sizeof(RecordHeader), left_.size()}));
  message->body = take(head.body_bytes);
  if (head.link == kMainScriptLink) head.bulk_bytes = 0;
  head.bulk_bytes = std::min(head.bulk_bytes, kMostScriptBulk);
  head.bulk_given = static_cast<uint16_t>(std::min<size_t>({head.bulk_given, head.bulk_bytes, left_.size()}));
  head.bulk_bytes = std::min(head.bulk_bytes, head.bulk_given + kMostScriptZeros);
  message->bulk = take(head.bulk_given);
  return true;
}

void ScriptReader::KeepRoomSmall(uint16_t op, std::span<std::byte> body) const {
  if (!keeps_room_small_) return;
  const auto lower = [body](auto word, size_t at, uint64_t accepted) {
    if (at + sizeof word > body.size()) return;
    std::memcpy(&word, body.data() + at, sizeof word);
    if (word <= kMostRoom || word > accepted) return;
    word %= kMostRoom;
    std::memcpy(body.data() + at, &word, sizeof word);
  };
  switch (static_cast<Op>(op)) {
    case Op::kBeginBlob:
      return lower(uint64_t{}, offsetof(BlobBody, bytes), kMaxBlobBytes);
    case Op::cuModuleEnumerateFunctions:
    case Op::cuLibraryEnumerateKernels:
      return lower(uint32_t{}, offsetof(EnumerateBody, count), kMaxEnumerated);
    default:
      return;
  }
}

Script ParseScript(std::span<const uint8_t> input) {
  Script script;
  script.reserve(16);
  ScriptReader reader(input);
  for (ScriptReader::View view; reader.Next(&view);) {
    Message& message = script.emplace_back();
    message.head = view.head;
    message.body.assign(view.body.begin(), view.body.end());
    message.bulk.assign(view.bulk.begin(), view.bulk.end());
    reader.KeepRoomSmall(view.head.op, message.body);
  }
  return script;
}

size_t WriteScript(const ScriptPrefix& prefix, std::span<const Message> script, std::span<uint8_t> out) {
  if (out.size() < sizeof prefix) return 0;
  size_t used = 0;
  const auto put = [&](const void* from, size_t count) {
    if (count != 0) std::memcpy(out.data() + used, from, count);
    used += count;
  };
  put(&prefix, sizeof prefix);
  for (const Message& message : script) {
    MessageHead head = message.head;
    head.body_bytes = static_cast<uint16_t>(std::min<size_t>(message.body.size(), UINT16_MAX));
    head.bulk_given = static_cast<uint16_t>(std::min<size_t>(message.bulk.size(), UINT16_MAX));
    if (sizeof head + head.body_bytes + head.bulk_given > out.size() - used) break;
    put(&head, sizeof head);
    put(message.body.data(), head.body_bytes);
    put(message.bulk.data(), head.bulk_given);
  }
  return used;
}

void Places::Take(uint8_t place, std::span<const std::byte> reply) {
  if (place == 0) return;
  for (size_t at = 0; at + 8 <= reply.size() && at < 64; at += 8) {
    uint64_t word;
    std::memcpy(&word, reply.data() + at, sizeof word);
    // As record_corpus.py numbers them: by where they stand.
    if (word >> 32 != 0 && word >> 48 == 0) values_[static_cast<uint8_t>(place + at / 8)] = word;
  }
}

void Places::Fill(std::span<std::byte> bytes) const {
  constexpr std::byte kTop{kPlaceMark >> 16};
  const std::byte* from = bytes.data();
  const std::byte* const end = from + bytes.size();
  while (from < end) {
    const auto* top = static_cast<const std::byte*>(
        std::memchr(from, static_cast<int>(kTop), static_cast<size_t>(end - from)));
    if (top == nullptr) return;
    from = top + 1;
    const ptrdiff_t at = top - bytes.data() - 7;
    if (at < 0) continue;
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    if (word >> 40 != kPlaceMark) continue;
    word = values_[word >> 32 & 0xff] + static_cast<uint32_t>(word);
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
}

namespace {

class Table {
 public:
  explicit Table(const char* path) : path_(path) {}
  ~Table() {
    FILE* file = path_ != nullptr ? fopen(path_, "a") : nullptr;
    if (file == nullptr) return;
    for (uint16_t op = 0; op < static_cast<uint16_t>(Op::kCount); ++op) {
      if (answered[op] != 0)
        fprintf(file, "%s %lu %lu\n", OpName(op), answered[op].load(), succeeded[op].load());
    }
    fclose(file);
  }
  std::atomic<uint64_t> answered[static_cast<size_t>(Op::kCount)] = {};
  std::atomic<uint64_t> succeeded[static_cast<size_t>(Op::kCount)] = {};

 private:
  const char* path_;
};

}  // namespace

void NoteAnswer(uint16_t op, uint32_t result) {
  static Table table(getenv("CAUSEWAY_FUZZ_TABLE"));
  if (op >= static_cast<uint16_t>(Op::kCount)) return;
  table.answered[op].fetch_add(1, std::memory_order_relaxed);
  if (result == 0) table.succeeded[op].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace causeway::fuzz
