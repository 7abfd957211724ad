// SPDX-License-Identifier: Apache-2.0
// Arrays that are parts of others: they end with the whole. Memory under sparse arrays.
#include <algorithm>

#include "guest_lib/session/captures.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

constexpr uint32_t kHasParts = 1;  // Object::flags of an array

// Sends the call that names a part; what is new becomes a child of the whole.
template <Op op, class Whole>
CUresult GetPart(CUarray* part, Whole whole, unsigned number) {
  if (const CUresult result = InitialisedOrError()) return result;
  const CUresult result = Wait<op>(part, whole, number);
  Object* parent = Find(whole);
  Object* child = result == CUDA_SUCCESS ? Find(*part) : nullptr;
  if (parent == nullptr || child == nullptr) return result;
  child->parent = WireOf(parent);
  parent->flags |= kHasParts;
  return CUDA_SUCCESS;
}

template <Op op, class Whole>
CUresult Destroy(Whole whole) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(whole);
  if (object != nullptr) {
    // Captures are looked at here, because the driver may not be asked: where something else still uses the array the worker answers
    // at once, and ends the array together with its last user.
    if (const CUresult refused = CaptureRefusal(CaptureRule::kUnsafe)) return refused;
  }
  const WireHandle wire = object != nullptr && (object->flags & kHasParts) != 0 ? WireOf(object) : 0;
  const CUresult result = Wait<op>(whole);
  if (result == CUDA_SUCCESS && wire != 0) FreeChildrenOf(wire, [](Object*) {});
  return result;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuArrayDestroy(CUarray array) {
  return Destroy<Op::cuArrayDestroy>(array);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return Destroy<Op::cuMipmappedArrayDestroy>(array);
}

CUresult cuArrayGetPlane(CUarray* plane, CUarray array, unsigned int number) {
  return GetPart<Op::cuArrayGetPlane>(plane, array, number);
}

CUresult cuMipmappedArrayGetLevel(CUarray* level, CUmipmappedArray array, unsigned int number) {
  return GetPart<Op::cuMipmappedArrayGetLevel>(level, array, number);
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo* maps, unsigned int count, CUstream stream) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (maps == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  unsigned done = 0;
  CUresult result;
  do {
    const unsigned now = std::min(count - done, kMaxArrayMaps);
    result = Wait<Op::cuMemMapArrayAsync>(maps + done, now, stream);
    done += now;
  } while (result == CUDA_SUCCESS && done < count);
  return result == CUDA_ERROR_INVALID_VALUE
             ? AnswerBesideCaptures(result, CaptureRule::kOutsideCaptures, stream)
             : result;
}

}  // extern "C"
