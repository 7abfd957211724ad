// SPDX-License-Identifier: Apache-2.0
// Directions for calls about arrays, textures and surfaces: pointers to a fixed number of values, resource
// descriptions that come back, parts of sparse arrays. directions.h says what a direction is.
#pragma once
#include <array>

#include "ivshmem_ring/protocol/directions.h"

namespace causeway {

// A pointer to N flat values that go to the host; it must not be null.
template <size_t N>
struct InFixed : NoReply {
  template <class P>
  struct Held : GoesToHost {
    using T = Pointee<P>;
    static_assert(std::is_pointer_v<P> && kFlat<T>, "InFixed needs a pointer to flat Ts");
    std::array<T, N> values{};
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.PutBytes(p, N * sizeof(T));
    }
    void Load(auto&, Reader& r) {
      for (T& value : values) GetAdmitted(r, value);
    }
    P Arg(Writer&, const auto&) { return values.data(); }
  };
};

// A pointer to N flat values that come back; it must not be null.
template <size_t N>
struct OutFixed : Replies {
  template <class P>
  struct Held : ComesBack {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "OutFixed needs a pointer to flat Ts");
    std::array<T, N> values{};
    static void Receive(auto&, Reader& r, P p, const auto&) { r.GetBytes(p, N * sizeof(T)); }
    P Arg(Writer&, const auto&) { return values.data(); }
    void Reply(auto&, Writer& w) { w.PutBytes(values.data(), sizeof values); }
  };
};

// A CUDA_RESOURCE_DESC* that the driver fills. An array inside comes back as the guest's own handle, or as
// null if that was destroyed.
struct OutResource : Replies {
  template <class P>
  struct Held : ComesBack {
    static_assert(std::is_same_v<P, CUDA_RESOURCE_DESC*>);
    CUDA_RESOURCE_DESC value{};
    static void Receive(auto& guest, Reader& r, P p, const auto&) {
      CUDA_RESOURCE_DESC desc{};
      desc.resType = r.Get<CUresourcetype>();
      desc.flags = r.Get<unsigned>();
      if (desc.resType == CU_RESOURCE_TYPE_ARRAY) {
        desc.res.array.hArray = guest.template FromWire<CUarray>(r.Get<WireHandle>());
      } else if (desc.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        desc.res.mipmap.hMipmappedArray = guest.template FromWire<CUmipmappedArray>(r.Get<WireHandle>());
      } else if (desc.resType == CU_RESOURCE_TYPE_LINEAR) {
        desc.res.linear = r.Get<decltype(desc.res.linear)>();
      } else {
        desc.res.pitch2D = r.Get<decltype(desc.res.pitch2D)>();
      }
      if (r.ok()) *p = desc;
    }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto& host, Writer& w) {
      w.Put(value.resType);
      w.Put(value.flags);
      switch (value.resType) {
        case CU_RESOURCE_TYPE_ARRAY:
          return w.Put(host.Known(HandleKind::kArray, reinterpret_cast<void*>(value.res.array.hArray)));
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
          return w.Put(host.Known(HandleKind::kMipmappedArray,
                                  reinterpret_cast<void*>(value.res.mipmap.hMipmappedArray)));
        case CU_RESOURCE_TYPE_LINEAR:
          return w.Put(value.res.linear);
        case CU_RESOURCE_TYPE_PITCH2D:
          return w.Put(value.res.pitch2D);
      }
      w.Fail(CUDA_ERROR_NOT_SUPPORTED);  // a kind of resource that this version does not know
    }
  };
};

// A CUarrayMapInfo* to as many elements as parameter I says. Each names an array and, where it maps, memory.
inline constexpr uint32_t kMaxArrayMaps = 32;  // elements in one message
template <size_t I>
struct InArrayMaps : NoReply {
  template <class P>
  struct Held : GoesToHost {
    static_assert(std::is_same_v<P, CUarrayMapInfo*>);
    std::vector<CUarrayMapInfo> values;
    static void Send(auto& guest, Writer& w, P p, const auto& args) {
      const uint64_t count = CountOf<I>(args);
      if (p == nullptr || count == 0 || count > kMaxArrayMaps) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(static_cast<uint32_t>(count));
      for (uint64_t i = 0; i < count && w.ok(); ++i) {
        CUarrayMapInfo map = p[i];
        map.resource = {};
        map.memHandle = {};
        w.Put(map);
        if (map.resourceType == CU_RESOURCE_TYPE_ARRAY) {
          w.Put(guest.ToWire(p[i].resource.array, w));
        } else if (map.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
          w.Put(guest.ToWire(p[i].resource.mipmap, w));
        } else {
          w.Fail(CUDA_ERROR_INVALID_VALUE);
        }
        w.Put(guest.ToWire(reinterpret_cast<Allocation>(p[i].memHandle.memHandle), w));
      }
    }
    void Load(auto& host, Reader& r) {
      const auto count = r.Get<uint32_t>();
      if (count > kMaxArrayMaps) return r.Fail(CUDA_ERROR_INVALID_VALUE);
      values.resize(count);
      for (CUarrayMapInfo& map : values) {
        map = r.Get<CUarrayMapInfo>();
        map.resource = {};
        std::fill(std::begin(map.reserved), std::end(map.reserved), 0);
        const CUresult refusal = AdmitAll(map.subresourceType, map.memOperationType, map.memHandleType);
        if (refusal != CUDA_SUCCESS) return r.Fail(refusal);
        if (!OnlyFlags(map.flags, kNoFlags)) return r.Fail(CUDA_ERROR_INVALID_VALUE);
        const auto resource = r.Get<WireHandle>();
        if (map.resourceType == CU_RESOURCE_TYPE_ARRAY) {
          map.resource.array = reinterpret_cast<CUarray>(host.ToDriver(HandleKind::kArray, resource, r));
        } else if (map.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
          map.resource.mipmap =
              reinterpret_cast<CUmipmappedArray>(host.ToDriver(HandleKind::kMipmappedArray, resource, r));
        } else {
          return r.Fail(CUDA_ERROR_INVALID_VALUE);
        }
        map.memHandle.memHandle = reinterpret_cast<CUmemGenericAllocationHandle>(
            host.ToDriver(HandleKind::kAllocation, r.Get<WireHandle>(), r));
      }
    }
    P Arg(Writer& w, const auto& held) {
      if (values.size() != CountOf<I>(held)) w.Fail(CUDA_ERROR_INVALID_VALUE);
      return values.data();
    }
  };
};

}  // namespace causeway
