// SPDX-License-Identifier: Apache-2.0
// Texture and surface references of modules: they end with their module.
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

template <Op op, class Reference>
CUresult GetReference(Reference* reference, CUmodule module, const char* name) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (const CUresult result = Wait<op>(reference, module, name)) return result;
  Object* object = Find(*reference);
  const Object* owner = Find(module);
  if (object != nullptr && owner != nullptr) object->parent = WireOf(owner);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuModuleGetTexRef(CUtexref* reference, CUmodule module, const char* name) {
  return GetReference<Op::cuModuleGetTexRef>(reference, module, name);
}

CUresult cuModuleGetSurfRef(CUsurfref* reference, CUmodule module, const char* name) {
  return GetReference<Op::cuModuleGetSurfRef>(reference, module, name);
}

}  // extern "C"
