// SPDX-License-Identifier: Apache-2.0
// Runs calls, one at a time and in order, on the threads that they name, and turns each answer into words that are the same
// on every library.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tests/differential/plan.h"

namespace causeway::differential {

struct Answer {
  bool ran = false;  // false: running it could be a race, or would not end
  CUresult result = CUDA_SUCCESS;
  uint64_t hash = 0;  // of the result and all outputs
  std::string text;   // where it is told what was called and answered
};

class HelperThread;

// Gives permanent memory its first contents.
void ResetRegion(Region& region);

class Executor {
 public:
  // `explain`: answers have texts.
  Executor(World& world, const std::vector<RowPlan>& plans, bool explain);
  ~Executor();
  Answer Run(const Call& call);
  // Ends all that the program has made, and returns the hash of what its memory holds. World::broken says that the context
  // is lost.
  uint64_t EndProgram(std::string* text);

 private:
  struct Ready;  // a call's slots and scratch
  Answer RunHere(const Call& call);
  bool Prepare(const Call& call, const RowPlan& plan, Ready& ready);
  uint64_t Resolve(const Call& call, const RowPlan& plan, size_t i, Ready& ready);
  bool Forbidden(const Call& call, const RowPlan& plan, Ready& ready);
  void TakeOutput(const Call& call, const RowPlan& plan, size_t i, Ready& ready, Hash& hash,
                  std::string* text);
  void TakeHandles(const Call& call, const RowPlan& plan, size_t i, Ready& ready, Hash& hash,
                   std::string* text);
  static void FetchList(const Call& call, size_t i, Ready& ready);
  void TakeAllocation(const Call& call, const RowPlan& plan, size_t i, Ready& ready);
  void Apply(const Call& call, const RowPlan& plan, Ready& ready);
  Object MakeObject(const Call& call, const RowPlan& plan, size_t i, size_t element, uint64_t raw);
  Object* FirstObject(const Call& call, HandleKind kind);
  void FillArray(Object& array);
  void EndObjects();
  void LookAtMemory(Hash& hash, std::string* told);
  void EndCapture(CUstream stream);
  void EndCaptures();
  void LookAtCapture(uint64_t stream_key);
  bool AddsInOrder(const Call& call, const Object& graph);
  void OnHelper(const std::function<void()>& work);

  World& world_;
  const std::vector<RowPlan>& plans_;
  const bool explain_;
  std::unique_ptr<Ready> ready_;
  std::unique_ptr<HelperThread> helper_;
  bool helper_used_ = false, pool_set_ = false;
};

}  // namespace causeway::differential
