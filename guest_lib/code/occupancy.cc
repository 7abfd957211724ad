// SPDX-License-Identifier: Apache-2.0
// Occupancy: libraries ask the same again before many launches, so the host is asked once; a search that
// calls a function of the program runs here.
#include <algorithm>

#include "guest_lib/code/function.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// Everything that an answer depends on, but for what AttributeChanges() counts.
struct Question {
  Op op;
  uint64_t context = 0, settings = context_settings.load(), stream = 0;
  uint64_t given[8] = {};
  uint64_t attributes = 0;

  explicit Question(Op asked) : op(asked) {
    if (CurrentContextObject() != nullptr) context = CurrentContextObject()->id;
  }
  uint64_t Hash() const {
    uint64_t words[13] = {static_cast<uint64_t>(op), context, settings, stream, attributes};
    std::copy(std::begin(given), std::end(given), words + 5);
    return QuickHash(words, sizeof words);
  }
};

// A launch configuration as part of a question. False: too much of it.
bool Add(const CUlaunchConfig& config, Question* question) {
  if (config.numAttrs > kMaxLaunchAttributes || (config.numAttrs != 0 && config.attrs == nullptr))
    return false;
  const unsigned given[] = {config.gridDimX,  config.gridDimY,  config.gridDimZ,       config.blockDimX,
                            config.blockDimY, config.blockDimZ, config.sharedMemBytes, config.numAttrs};
  std::copy(std::begin(given), std::end(given), question->given);
  const Object* stream = Find(config.hStream);
  question->stream = stream != nullptr ? stream->id : reinterpret_cast<uintptr_t>(config.hStream);
  question->attributes = QuickHash(config.attrs, config.numAttrs * sizeof(CUlaunchAttribute));
  return true;
}

// Answers from what is known, or by `ask`, which sends.
template <class T, class Ask>
CUresult Answer(const Question& question, T* value, CUfunction handle, Ask ask) {
  constexpr size_t kMostAnswers = 1024;
  if (const CUresult result = InitialisedOrError()) return result;
  Function* function = value != nullptr && Find(handle) != nullptr ? FunctionOf(handle) : nullptr;
  if (function == nullptr) return ask();
  const uint64_t hash = question.Hash(), changes = AttributeChanges(*function);
  std::unique_lock lock(function->mutex);
  if (function->answers_at == changes) {
    const auto known = function->answers.find(hash);
    if (known != function->answers.end()) {
      const uint64_t answer = known->second;
      lock.unlock();
      const CUresult result = CheckSend();
      if (result == CUDA_SUCCESS) *value = static_cast<T>(answer);
      return result;
    }
  }
  lock.unlock();
  if (const CUresult result = ask()) return result;
  lock.lock();
  if (function->answers_at > changes) return CUDA_SUCCESS;  // of before a change
  if (function->answers_at != changes || function->answers.size() >= kMostAnswers) function->answers.clear();
  function->answers_at = changes;
  function->answers[hash] = static_cast<uint64_t>(*value);
  return CUDA_SUCCESS;
}

// The driver's own search (cuda_occupancy.h shows it): from the largest block down in steps of a warp, the
// first of those with the most threads on a multiprocessor. The caller has checked that there is a current context.
CUresult Search(int* min_grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of_block, int limit,
                unsigned flags) {
  if (min_grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto device = static_cast<size_t>(ContextOf(CurrentContextObject()).device);
  const auto& of = Session::Made().devices()[device].attribute;
  const int warp = of[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
  const int of_device = of[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
  const int processors = of[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
  const int most_threads = of[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR];
  int of_function = 0;
  if (const CUresult result =
          cuFuncGetAttribute(&of_function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function)) {
    return result;
  }
  if (warp <= 0) return CUDA_ERROR_UNKNOWN;
  int largest = std::min(of_device, of_function);
  if (limit > 0) largest = std::min(largest, limit);
  int best_block = 0, best_blocks = 0;
  for (int threads = largest; threads > 0; threads = (threads - 1) / warp * warp) {
    int blocks = 0;
    const CUresult result = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        &blocks, function, threads, shared_of_block(threads), flags);
    if (result != CUDA_SUCCESS) return result;
    if (threads * blocks <= best_block * best_blocks) continue;
    best_block = threads;
    best_blocks = blocks;
    if (best_block * best_blocks == most_threads) break;
  }
  *min_grid = best_blocks * processors;
  *block = best_block;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction function, int blocks,
                                                 int threads) {
  constexpr Op kOp = Op::cuOccupancyAvailableDynamicSMemPerBlock;
  Question question(kOp);
  question.given[0] = static_cast<uint64_t>(blocks);
  question.given[1] = static_cast<uint64_t>(threads);
  return Answer(question, bytes, function, [&] { return Wait<kOp>(bytes, function, blocks, threads); });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                     size_t shared_bytes) {
  constexpr Op kOp = Op::cuOccupancyMaxActiveBlocksPerMultiprocessor;
  Question question(kOp);
  question.given[0] = static_cast<uint64_t>(threads);
  question.given[1] = shared_bytes;
  return Answer(question, blocks, function,
                [&] { return Wait<kOp>(blocks, function, threads, shared_bytes); });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int threads,
                                                              size_t shared_bytes, unsigned int flags) {
  constexpr Op kOp = Op::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags;
  Question question(kOp);
  question.given[0] = static_cast<uint64_t>(threads);
  question.given[1] = shared_bytes;
  question.given[2] = flags;
  return Answer(question, blocks, function,
                [&] { return Wait<kOp>(blocks, function, threads, shared_bytes, flags); });
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config) {
  constexpr Op kOp = Op::cuOccupancyMaxActiveClusters;
  const auto ask = [&] { return Wait<kOp>(clusters, function, config); };
  Question question(kOp);
  if (config == nullptr || !Add(*config, &question)) return ask();
  return Answer(question, clusters, function, ask);
}

CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction function, const CUlaunchConfig* config) {
  constexpr Op kOp = Op::cuOccupancyMaxPotentialClusterSize;
  const auto ask = [&] { return Wait<kOp>(size, function, config); };
  Question question(kOp);
  if (config == nullptr || !Add(*config, &question)) return ask();
  return Answer(question, size, function, ask);
}

CUresult cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block, CUfunction function,
                                          CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
                                          int limit) {
  if (const CUresult result = NeedContext()) return result;
  if (shared_of_block != nullptr) {
    return Search(min_grid, block, function, shared_of_block, limit, CU_OCCUPANCY_DEFAULT);
  }
  return Wait<Op::cuOccupancyMaxPotentialBlockSize>(min_grid, block, function, shared_of_block, shared_bytes,
                                                    limit);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* min_grid, int* block, CUfunction function,
                                                   CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
                                                   int limit, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  if (shared_of_block != nullptr && OnlyFlags(flags, kOccupancyFlags))
    return Search(min_grid, block, function, shared_of_block, limit, flags);
  return Wait<Op::cuOccupancyMaxPotentialBlockSizeWithFlags>(min_grid, block, function, nullptr, shared_bytes,
                                                             limit, flags);
}

}  // extern "C"
