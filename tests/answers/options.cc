// SPDX-License-Identifier: Apache-2.0
// Options, attributes and flags, one by one.
#include <algorithm>

#include "tests/answers/questions.h"

namespace causeway::answers {
namespace {

void AskResources(const World& w, const Ask& ask) {
  ask("DevResource nul", [=]() -> CUresult {
    CUdevResource x{};
    return cuCtxGetDevResource(nullptr, &x, CU_DEV_RESOURCE_TYPE_SM);
  });
  ask("DevResource ctx", [=]() -> CUresult {
    CUdevResource x{};
    return cuCtxGetDevResource(w.context, &x, CU_DEV_RESOURCE_TYPE_SM);
  });
  ask("PrimaryState", [=]() -> CUresult {
    unsigned fl;
    int act;
    return cuDevicePrimaryCtxGetState(w.device, &fl, &act);
  });
  ask("AccessNul", [=]() -> CUresult {
    CUmemLocation l{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemAccess_flags fl;
    return cuMemPoolGetAccess(&fl, nullptr, &l);
  });
  ask("BatchAsync_v1 noctx", [=]() -> CUresult {
    CUdeviceptr x[1] = {w.memory}, y[1] = {w.memory + 4096};
    size_t b[1] = {64};
    return cuMemcpyBatchAsync_v2(x, y, b, 1, nullptr, nullptr, 0, w.non_blocking);
  });
  for (int t = -1; t < 5; ++t) {
    for (int lt = 0; lt < 5; ++lt) {
      ask("GetMemPool " + std::to_string(t) + " " + std::to_string(lt), [=]() -> CUresult {
        CUmemoryPool p;
        CUmemLocation l{CUmemLocationType(lt), {0}};
        return cuMemGetMemPool(&p, &l, CUmemAllocationType(t));
      });
      ask("GetDefaultMemPool " + std::to_string(t) + " " + std::to_string(lt), [=]() -> CUresult {
        CUmemoryPool p;
        CUmemLocation l{CUmemLocationType(lt), {0}};
        return cuMemGetDefaultMemPool(&p, &l, CUmemAllocationType(t));
      });
    }
  }
}

void AskLinker(const World&, const Ask& ask) {
  using Options = std::vector<std::pair<CUjit_option, uintptr_t>>;
  const auto create = [](const Options& given) {
    std::vector<CUjit_option> options;
    std::vector<void*> values;
    for (const auto& [option, value] : given) {
      options.push_back(option);
      values.push_back(reinterpret_cast<void*>(value));
    }
    CUlinkState state = nullptr;
    return cuLinkCreate(static_cast<unsigned>(options.size()), options.data(), values.data(), &state);
  };
  for (const long value : {0L, 1L, 16L, -1L})
    ask("Link regs " + std::to_string(value), [=] {
      return create({{CU_JIT_MAX_REGISTERS, static_cast<uintptr_t>(value)}});
    });
  ask("Link regs twice", [=] { return create({{CU_JIT_MAX_REGISTERS, 32}, {CU_JIT_MAX_REGISTERS, 32}}); });
  ask("Link regs threads", [=] {
    return create({{CU_JIT_MAX_REGISTERS, 0}, {CU_JIT_THREADS_PER_BLOCK, 1}});
  });
  ask("Link threads", [=] { return create({{CU_JIT_THREADS_PER_BLOCK, 1}, {CU_JIT_THREADS_PER_BLOCK, 1}}); });
  for (int option = 0; option < 34; ++option) {
    // These are not asked for, and have a success in the recorded answers.
    const auto left_out = {2, 3, 5, 10, 13, 21, 22, 26, 28};
    const bool asks = std::find(left_out.begin(), left_out.end(), option) == left_out.end();
    ask("Link option 0 and " + std::to_string(option), [=] {
      return asks ? create({{CU_JIT_MAX_REGISTERS, 0}, {CUjit_option(option), 1}}) : CUDA_SUCCESS;
    });
  }
}

void AskRegistrations(const World& w, const Ask& ask) {
  ask("Register io", [=]() -> CUresult {
    CUresult r = cuMemHostRegister(w.aligned, 4096, 4);
    unsigned fl = 77;
    if (r == 0) {
      noted = cuMemHostGetFlags(&fl, w.aligned) * 1000 + fl;
      CUdeviceptr p = 0;
      noted += 100000 * cuMemHostGetDevicePointer(&p, w.aligned, 0);
      cuMemHostUnregister(w.aligned);
    }
    return r;
  });
  ask("Register io odd", [=]() -> CUresult {
    CUresult r = cuMemHostRegister((char*)w.aligned + 100, 4, 4);
    if (r == 0) cuMemHostUnregister((char*)w.aligned + 100);
    return r;
  });
  ask("Register ro", [=]() -> CUresult {
    CUresult r = cuMemHostRegister(w.aligned, 4096, 8);
    if (r == 0) cuMemHostUnregister(w.aligned);
    return r;
  });
  ask("Register io map", [=]() -> CUresult {
    CUresult r = cuMemHostRegister(w.aligned, 4096, 7);
    if (r == 0) cuMemHostUnregister(w.aligned);
    return r;
  });
}

void AskOccupancy(const World& w, const Ask& ask) {
  ask("MaxPotential", [=]() -> CUresult {
    int g_ = -1, b_ = -1;
    CUresult r = cuOccupancyMaxPotentialBlockSize(&g_, &b_, w.function, CountUp, 0, 0);
    seen += " : " + std::to_string(g_) + " " + std::to_string(b_);
    return r;
  });
  ask("MaxPotential 700", [=]() -> CUresult {
    int g_ = -1, b_ = -1;
    CUresult r = cuOccupancyMaxPotentialBlockSize(&g_, &b_, w.function, CountUp, 0, 700);
    seen += " : " + std::to_string(g_) + " " + std::to_string(b_);
    return r;
  });
  ask("MaxPotential plain", [=]() -> CUresult {
    int g_ = -1, b_ = -1;
    CUresult r = cuOccupancyMaxPotentialBlockSize(&g_, &b_, w.function, nullptr, 0, 0);
    seen += " : " + std::to_string(g_) + " " + std::to_string(b_);
    return r;
  });
  ask("MaxPotential flags", [=]() -> CUresult {
    int g_ = -1, b_ = -1;
    CUresult r = cuOccupancyMaxPotentialBlockSizeWithFlags(&g_, &b_, w.function, CountUp, 0, 0, 1);
    seen += " : " + std::to_string(g_) + " " + std::to_string(b_);
    return r;
  });
  ask("MaxPotential badflags", [=]() -> CUresult {
    int g_ = -1, b_ = -1;
    return cuOccupancyMaxPotentialBlockSizeWithFlags(&g_, &b_, w.function, CountUp, 0, 0, 9);
  });
}

void AskPointers(const World& w, const Ask& ask) {
  for (int a = -1; a < 24; ++a) {
    ask("PtrAttrs " + std::to_string(a), [=]() -> CUresult {
      unsigned long long x[8]{};
      CUpointer_attribute t[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUpointer_attribute(a)};
      void* p[2] = {x, x + 2};
      return cuPointerGetAttributes(2, t, p, w.memory);
    });
    ask("PtrAttrs host " + std::to_string(a), [=]() -> CUresult {
      unsigned long long x[8]{};
      CUpointer_attribute t[1] = {CUpointer_attribute(a)};
      void* p[1] = {x};
      return cuPointerGetAttributes(1, t, p, (CUdeviceptr)w.ordinary);
    });
    ask("PtrAttrs unknown " + std::to_string(a), [=]() -> CUresult {
      unsigned long long x[8]{};
      CUpointer_attribute t[1] = {CUpointer_attribute(a)};
      void* p[1] = {x};
      return cuPointerGetAttributes(1, t, p, w.unknown);
    });
  }
}

void AskLibraries(const World&, const Ask& ask) {
  ask("LibraryFile options", [=]() -> CUresult {
    CUlibrary l;
    CUlibraryOption o[1] = {CUlibraryOption(77)};
    void* x[1] = {(void*)1};
    return cuLibraryLoadFromFile(&l, "/nowhere/at/all", nullptr, nullptr, 0, o, x, 1);
  });
  ask("LibraryFile", [=]() -> CUresult {
    CUlibrary l;
    return cuLibraryLoadFromFile(&l, "/nowhere/at/all", nullptr, nullptr, 0, 0, 0, 0);
  });
  ask("LibraryFile jit", [=]() -> CUresult {
    CUlibrary l;
    CUjit_option o[1] = {CUjit_option(99)};
    void* x[1] = {(void*)1};
    return cuLibraryLoadFromFile(&l, "/nowhere/at/all", o, x, 1, 0, 0, 0);
  });
  ask("LibraryFile nul", [=]() -> CUresult {
    CUlibrary l;
    return cuLibraryLoadFromFile(&l, nullptr, nullptr, nullptr, 0, 0, 0, 0);
  });
  ask("LibraryFile nowhere",
      [=] { return cuLibraryLoadFromFile(nullptr, "/nowhere", nullptr, nullptr, 0, 0, 0, 0); });
  for (int a = 0; a < 4; ++a)
    ask("LibraryFile option " + std::to_string(a), [=]() -> CUresult {
      CUlibrary l;
      CUlibraryOption o[1] = {CUlibraryOption(a)};
      void* x[1] = {(void*)1};
      return cuLibraryLoadFromFile(&l, "/nowhere/at/all", nullptr, nullptr, 0, o, x, 1);
    });
}

void AskInstantiations(const World& w, const Ask& ask) {
  ask("InstantiateParams ok", [=]() -> CUresult {
    CUgraphExec x;
    CUDA_GRAPH_INSTANTIATE_PARAMS p{};
    CUresult r = cuGraphInstantiateWithParams(&x, w.graph, &p);
    noted = p.result_out;
    return r;
  });
  ask("InstantiateParams flags", [=]() -> CUresult {
    CUgraphExec x;
    CUDA_GRAPH_INSTANTIATE_PARAMS p{};
    p.flags = 0x9900;
    CUresult r = cuGraphInstantiateWithParams(&x, w.graph, &p);
    noted = p.result_out;
    return r;
  });
  ask("InstantiateParams nul", [=]() -> CUresult {
    CUgraphExec x;
    return cuGraphInstantiateWithParams(&x, w.graph, nullptr);
  });
  ask("InstantiateParams nograph", [=]() -> CUresult {
    CUgraphExec x;
    CUDA_GRAPH_INSTANTIATE_PARAMS p{};
    CUresult r = cuGraphInstantiateWithParams(&x, nullptr, &p);
    noted = p.result_out;
    return r;
  });
  ask("InstantiateParams upload none", [=]() -> CUresult {
    CUgraphExec x;
    CUDA_GRAPH_INSTANTIATE_PARAMS p{};
    p.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    CUresult r = cuGraphInstantiateWithParams(&x, w.graph, &p);
    noted = p.result_out;
    return r;
  });
  ask("InstantiateParams upload bad", [=]() -> CUresult {
    CUgraphExec x;
    CUDA_GRAPH_INSTANTIATE_PARAMS p{};
    p.flags = 2;
    p.hUploadStream = w.non_blocking;
    CUresult r = cuGraphInstantiateWithParams(&x, w.graph, &p);
    noted = p.result_out;
    return r;
  });
  ask("InstantiateParams stream noflag", [=]() -> CUresult {
    CUgraphExec x;
    CUDA_GRAPH_INSTANTIATE_PARAMS p{};
    p.hUploadStream = w.non_blocking;
    CUresult r = cuGraphInstantiateWithParams(&x, w.graph, &p);
    noted = p.result_out;
    return r;
  });
  ask("InstantiateParams nul exec", [=]() -> CUresult {
    CUDA_GRAPH_INSTANTIATE_PARAMS p{};
    CUresult r = cuGraphInstantiateWithParams(nullptr, w.graph, &p);
    noted = p.result_out;
    return r;
  });
  for (int fl = 1; fl < 32; fl <<= 1)
    ask("InstantiateParams flag " + std::to_string(fl), [=]() -> CUresult {
      CUgraphExec x;
      CUDA_GRAPH_INSTANTIATE_PARAMS p{};
      p.flags = fl;
      CUresult r = cuGraphInstantiateWithParams(&x, w.graph, &p);
      noted = p.result_out;
      return r;
    });
}

}  // namespace

void AskOptions(const World& w, const Ask& ask) {
  for (const auto part : {AskResources, AskLinker, AskRegistrations, AskOccupancy, AskPointers, AskLibraries,
                          AskInstantiations})
    part(w, ask);
}

}  // namespace causeway::answers
