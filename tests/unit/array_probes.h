// SPDX-License-Identifier: Apache-2.0
// Probes of directions about arrays, and of pointers to a fixed number of values.
#pragma once
#include "tests/unit/protocol_probes.h"

namespace causeway::test {

template <size_t N>
struct Probe<InFixed<N>> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    auto* values = MutablePointer(bench, p, N);
    for (size_t i = 0; i < N; ++i) bench.Randomise(values[i]);
  }
  static void Inputs(Bytes& to, auto p, const auto&, const View&) { Append(to, p, N * sizeof *p); }
};
template <size_t N>
struct Probe<OutFixed<N>> : NoInputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    MutablePointer(bench, p, N);
  }
  static void Fill(Bench& bench, auto p, const auto&) {
    for (size_t i = 0; i < N; ++i) bench.Randomise(p[i]);
  }
  static void Outputs(Bytes& to, auto p, const auto&, const View&) { Append(to, p, N * sizeof *p); }
};

template <>
struct Probe<OutResource> : NoInputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    std::memset(MutablePointer(bench, p, 1), 0, sizeof *p);
  }
  static void Fill(Bench& bench, CUDA_RESOURCE_DESC* p, const auto&) {
    p->resType = static_cast<CUresourcetype>(bench.Below(4));
    bench.Randomise(p->flags);
    if (p->resType == CU_RESOURCE_TYPE_ARRAY) p->res.array.hArray = bench.KnownToDriver<CUarray>();
    if (p->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
      p->res.mipmap.hMipmappedArray = bench.KnownToDriver<CUmipmappedArray>();
    }
    if (p->resType == CU_RESOURCE_TYPE_LINEAR) bench.Randomise(p->res.linear.sizeInBytes);
    if (p->resType == CU_RESOURCE_TYPE_PITCH2D) bench.Randomise(p->res.pitch2D.pitchInBytes);
  }
  static void Outputs(Bytes& to, const CUDA_RESOURCE_DESC* p, const auto& args, const View& view) {
    Probe<InResource>::Inputs(to, p, args, view);
  }
};

template <size_t I>
struct Probe<InArrayMaps<I>> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    const size_t count = std::get<I>(args) = 1 + static_cast<unsigned>(bench.Below(4));
    bench.Decide(I);
    CUarrayMapInfo* maps = MutablePointer(bench, p, count);
    for (size_t i = 0; i < count; ++i) {
      std::memset(&maps[i], 0, sizeof maps[i]);
      maps[i].resourceType = static_cast<CUresourcetype>(bench.Below(2));
      if (maps[i].resourceType == CU_RESOURCE_TYPE_ARRAY) {
        maps[i].resource.array = bench.LiveHandle<CUarray>();
      } else {
        maps[i].resource.mipmap = bench.LiveHandle<CUmipmappedArray>();
      }
      bench.Randomise(maps[i].subresource.sparseLevel.extentWidth);
      bench.Randomise(maps[i].memOperationType);
      bench.Randomise(maps[i].offset);
      maps[i].memHandle.memHandle =
          reinterpret_cast<CUmemGenericAllocationHandle>(bench.LiveHandle<Allocation>());
    }
  }
  static void Inputs(Bytes& to, const CUarrayMapInfo* p, const auto& args, const View& view) {
    for (size_t i = 0; i < std::get<I>(args); ++i) {
      AppendValue(to, p[i].resourceType);
      AppendValue(to, view(p[i].resource.array));
      AppendValue(to, p[i].subresource.sparseLevel.extentWidth);
      AppendValue(to, p[i].offset);
      AppendValue(to, view(reinterpret_cast<Allocation>(p[i].memHandle.memHandle)));
    }
  }
};

}  // namespace causeway::test
