// SPDX-License-Identifier: Apache-2.0
// Directions that a few groups of calls need beyond directions.h, which says what a direction is: lists whose
// length the driver writes, values whose size an attribute decides, structs with handles inside, parts of
// sparse arrays, allocation handles.
#pragma once
#include <array>

#include "ivshmem_ring/protocol/directions.h"

namespace causeway {

// A pointer that must be null, because what it would point to cannot travel.
struct NullOnly : NoReply {
  template <class P>
  struct Held : GoesToHost {
    static_assert(std::is_pointer_v<P>, "NullOnly needs a pointer");
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p != nullptr) w.Fail(CUDA_ERROR_NOT_SUPPORTED);
    }
    void Load(auto&, Reader&) {}
    P Arg(Writer&, const auto&) { return nullptr; }
  };
};

// The direction `Required` for a pointer that may be null. One byte in front of what Required sends tells the
// host whether it is null.
template <class Required>
struct OrNull : NoReply {
  static_assert(!Required::kReplies, "OrNull is for parameters that only go to the host");
  template <class P>
  struct Held : GoesToHost {
    typename Required::template Held<P> inner;
    bool present = false;
    static void Send(auto& guest, Writer& w, P p, const auto& args) {
      w.Put(static_cast<uint8_t>(p != nullptr));
      if (p != nullptr) Required::template Held<P>::Send(guest, w, p, args);
    }
    void Load(auto& host, Reader& r) {
      present = r.Get<uint8_t>() == 1;
      if (present) inner.Load(host, r);
    }
    P Arg(Writer& w, const auto& held) { return present ? inner.Arg(w, held) : nullptr; }
  };
};
using InOneOrNull = OrNull<InOne>;
template <size_t I>
using InArrayOrNull = OrNull<InArray<I>>;

// A const void* to as many bytes as parameter I says, which go to the host. With count 0 it may be null.
template <size_t I>
struct InBytes : NoReply {
  template <class P>
  struct Held : GoesToHost {
    static_assert(std::is_same_v<Pointee<P>, void>, "InBytes needs a pointer to void");
    std::vector<std::byte> bytes;
    static void Send(auto&, Writer& w, P p, const auto& args) {
      const uint64_t count = CountOf<I>(args);
      if (count > kMaxElements || (p == nullptr && count != 0)) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(count);
      w.PutBytes(p, count);
    }
    void Load(auto&, Reader& r) {
      const auto count = r.Get<uint64_t>();
      if (count > kMaxElements) return r.Fail(CUDA_ERROR_INVALID_VALUE);
      if (const std::byte* from = r.Take(count)) bytes.assign(from, from + count);
    }
    P Arg(Writer& w, const auto& held) {
      if (bytes.size() != CountOf<I>(held))
        w.Fail(CUDA_ERROR_INVALID_VALUE);  // the message states two counts
      return bytes.data();
    }
  };
};

// A T*, possibly null, for a list of which the driver writes the length. Parameter I is a later size_t*
// (InOut): at first the number of elements for which there is room, afterwards the number of elements that
// there are. The driver fills the rest of the room with null, so the whole room comes back. Handles travel as
// in OutHandle, with a fresh one for each place.
template <size_t I>
struct OutList : Replies {
  template <class P>
  struct Held {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && (kFlat<T> || Handle<T>),
                  "OutList needs a pointer to flat Ts or handles");
    std::vector<T> values;
    std::vector<WireHandle> fresh;
    bool wanted = false;

    // Parameter I receives after this one, so here it still has what the caller wrote.
    static size_t Room(P p, const auto& args) {
      const size_t* room = std::get<I>(args);
      return p == nullptr || room == nullptr || *room > kMaxElements ? 0 : *room;
    }
    static void Send(auto& guest, Writer& w, P p, const auto& args) {
      if (std::get<I>(args) == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      if (p != nullptr && *std::get<I>(args) > kMaxElements) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(static_cast<uint8_t>(p != nullptr));
      if constexpr (Handle<T>) {
        w.Put(static_cast<uint64_t>(Room(p, args)));
        for (size_t i = 0; i < Room(p, args); ++i) {
          p[i] = guest.template Make<T>(w);
          w.Put(guest.ToWire(p[i], w));
        }
      }
    }
    static void Receive(auto& guest, Reader& r, P p, const auto& args) {
      for (size_t i = 0; i < Room(p, args); ++i) {
        if constexpr (Handle<T>) {
          p[i] = guest.template Settle<T>(p[i], r.Get<WireHandle>());
        } else {
          p[i] = r.Get<T>();
        }
      }
    }
    static void Undo(auto& guest, P p, const auto& args) {
      if constexpr (Handle<T>) {
        for (size_t i = 0; i < Room(p, args); ++i) guest.Forget(p[i]);
      }
    }
    void Load(auto&, Reader& r) {
      wanted = r.Get<uint8_t>() == 1;
      if constexpr (Handle<T>) {
        const auto room = r.Get<uint64_t>();
        if (room > kMaxElements || room > r.left()) return r.Fail(CUDA_ERROR_INVALID_VALUE);
        fresh.resize(room);
        for (WireHandle& wire : fresh) wire = r.Get<WireHandle>();
      }
    }
    P Arg(Writer& w, const auto& held) {
      if (!wanted) return nullptr;
      const uint64_t room = CountOf<I>(held);
      if (room > kMaxElements || (Handle<T> && room != fresh.size())) {
        return w.Fail(CUDA_ERROR_INVALID_VALUE), nullptr;
      }
      values.reserve(room + 1);  // so data() is not null, by which the driver would be asked for the length
      values.resize(room);
      return values.data();
    }
    void Reply(auto& host, Writer& w) {
      for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (Handle<T>) {
          w.Put(host.BindOrKnown(kKindOf<T>, fresh[i], reinterpret_cast<void*>(values[i]), w));
        } else {
          w.Put(values[i]);
        }
      }
    }
  };
};

// The size in bytes of an attribute's value, which cuda.h has behind a void*; 0 for an attribute that cuda.h
// does not name or whose value does not travel.
constexpr size_t AttributeBytes(CUmemPool_attribute attribute) {
  if (!IsKnown(attribute)) return 0;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return sizeof(int);
    default:
      return sizeof(cuuint64_t);
  }
}
constexpr size_t AttributeBytes(CUgraphMem_attribute attribute) {
  return IsKnown(attribute) ? sizeof(cuuint64_t) : 0;
}
// Tokens of the nv-p2p interface do not travel: they are useless outside the host. Handles are the guest's.
constexpr size_t AttributeBytes(CUpointer_attribute attribute) {
  if (!IsKnown(attribute) || attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) return 0;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return sizeof(uint32_t);
    default:
      return sizeof(uint64_t);
  }
}
inline constexpr size_t kMaxAttributeBytes = sizeof(uint64_t);

// Whether the value of an attribute is a handle, which in the driver is an address of the worker's. It
// travels as 1 where there is one and as 0 where there is none, which is all that the guest needs.
constexpr bool IsHandle(CUpointer_attribute attribute) {
  return attribute == CU_POINTER_ATTRIBUTE_CONTEXT || attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
}
constexpr bool IsHandle(auto) {
  return false;
}

// A const void* to the value of the attribute that parameter I names; the value goes to the host.
template <size_t I>
struct InAttribute : NoReply {
  template <class P>
  struct Held : GoesToHost {
    static_assert(std::is_same_v<Pointee<P>, void>, "InAttribute needs a pointer to void");
    alignas(kMaxAttributeBytes) std::array<std::byte, kMaxAttributeBytes> value{};
    uint32_t bytes = 0;
    static void Send(auto&, Writer& w, P p, const auto& args) {
      const size_t bytes = AttributeBytes(std::get<I>(args));
      if (p == nullptr || bytes == 0) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(static_cast<uint32_t>(bytes));
      w.PutBytes(p, bytes);
    }
    void Load(auto&, Reader& r) {
      bytes = r.Get<uint32_t>();
      if (bytes == 0 || bytes > value.size()) return r.Fail(CUDA_ERROR_INVALID_VALUE);
      r.GetBytes(value.data(), bytes);
    }
    P Arg(Writer& w, const auto& held) {
      if (bytes != AttributeBytes(std::get<I>(held).value)) w.Fail(CUDA_ERROR_INVALID_VALUE);
      return value.data();
    }
  };
};

// A void* through which the value of the attribute that parameter I names comes back.
template <size_t I>
struct OutAttribute : Replies {
  template <class P>
  struct Held : ComesBack {
    static_assert(std::is_same_v<P, void*>, "OutAttribute needs void*");
    alignas(kMaxAttributeBytes) std::array<std::byte, kMaxAttributeBytes> value{};
    size_t bytes = 0;
    bool is_handle = false;
    static void Send(auto&, Writer& w, P p, const auto& args) {
      if (p == nullptr || AttributeBytes(std::get<I>(args)) == 0) w.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    static void Receive(auto&, Reader& r, P p, const auto& args) {
      const size_t bytes = AttributeBytes(std::get<I>(args));
      r.GetBytes(p, bytes);
    }
    P Arg(Writer& w, const auto& held) {
      bytes = AttributeBytes(std::get<I>(held).value);
      is_handle = IsHandle(std::get<I>(held).value);
      if (bytes == 0) w.Fail(CUDA_ERROR_INVALID_VALUE);
      return value.data();
    }
    void Reply(auto&, Writer& w) {
      if (is_handle) {
        uint64_t handle = 0;
        std::memcpy(&handle, value.data(), sizeof handle);
        handle = handle != 0 ? 1 : 0;
        std::memcpy(value.data(), &handle, sizeof handle);
      }
      w.PutBytes(value.data(), bytes);
    }
  };
};

// The value of a launch attribute is a union. Two members hold events, and those do not travel here. The node
// that the driver returns for a device-updatable kernel is a value for kernels and travels as it is.
constexpr bool LaunchAttributeIsFlat(CUlaunchAttributeID id) {
  return id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT && id != CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
}

// A const CUlaunchAttributeValue* for the attribute that parameter I names; the value goes to the host. Streams and nodes have no
// attribute with a handle in it.
template <size_t I>
struct InLaunchAttribute : NoReply {
  template <class P>
  struct Held : GoesToHost {
    static_assert(std::is_same_v<Pointee<P>, CUlaunchAttributeValue>);
    CUlaunchAttributeValue value{};
    static void Send(auto&, Writer& w, P p, const auto& args) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      if (!LaunchAttributeIsFlat(std::get<I>(args))) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(*p);
    }
    void Load(auto&, Reader& r) { value = r.Get<CUlaunchAttributeValue>(); }
    P Arg(Writer& w, const auto& held) {
      const CUlaunchAttributeID id = std::get<I>(held).value;
      if (!LaunchAttributeIsFlat(id)) w.Fail(CUDA_ERROR_INVALID_VALUE);
      if (const CUresult refusal = AdmitLaunchAttribute(id, value); refusal != CUDA_SUCCESS) w.Fail(refusal);
      return &value;
    }
  };
};

// A CUlaunchAttributeValue* through which the value for the attribute that parameter I names comes back.
template <size_t I>
struct OutLaunchAttribute : Replies {
  template <class P>
  struct Held : ComesBack {
    static_assert(std::is_same_v<P, CUlaunchAttributeValue*>);
    CUlaunchAttributeValue value{};
    static void Send(auto&, Writer& w, P p, const auto& args) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      if (!LaunchAttributeIsFlat(std::get<I>(args))) w.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    static void Receive(auto&, Reader& r, P p, const auto&) { *p = r.Get<CUlaunchAttributeValue>(); }
    P Arg(Writer& w, const auto& held) {
      if (!LaunchAttributeIsFlat(std::get<I>(held).value)) w.Fail(CUDA_ERROR_INVALID_VALUE);
      return &value;
    }
    void Reply(auto&, Writer& w) { w.Put(value); }
  };
};

// The const CUlaunchConfig* of the occupancy queries. Attributes with handles inside say nothing about
// occupancy and are left out.
struct InOccupancyConfig : NoReply {
  static constexpr uint32_t kMaxAttributes = 64;
  template <class P>
  struct Held : GoesToHost {
    static_assert(std::is_same_v<P, const CUlaunchConfig*>);
    CUlaunchConfig value{};
    std::vector<CUlaunchAttribute> attributes;
    static void Send(auto& guest, Writer& w, P p, const auto&) {
      if (p == nullptr || p->numAttrs > kMaxAttributes || (p->attrs == nullptr && p->numAttrs != 0)) {
        return w.Fail(CUDA_ERROR_INVALID_VALUE);
      }
      for (const unsigned n : {p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY,
                               p->blockDimZ, p->sharedMemBytes}) {
        w.Put(n);
      }
      w.Put(guest.ToWire(p->hStream, w));
      uint32_t count = 0;
      for (unsigned i = 0; i < p->numAttrs; ++i) count += LaunchAttributeIsFlat(p->attrs[i].id);
      w.Put(count);
      for (unsigned i = 0; i < p->numAttrs; ++i) {
        if (!LaunchAttributeIsFlat(p->attrs[i].id)) continue;
        w.Put(p->attrs[i].id);
        w.Put(p->attrs[i].value);
      }
    }
    void Load(auto& host, Reader& r) {
      for (unsigned* n : {&value.gridDimX, &value.gridDimY, &value.gridDimZ, &value.blockDimX,
                          &value.blockDimY, &value.blockDimZ, &value.sharedMemBytes}) {
        *n = r.Get<unsigned>();
      }
      value.hStream = reinterpret_cast<CUstream>(host.ToDriver(HandleKind::kStream, r.Get<WireHandle>(), r));
      const auto count = r.Get<uint32_t>();
      if (count > kMaxAttributes) return r.Fail(CUDA_ERROR_INVALID_VALUE);
      attributes.resize(count);
      for (CUlaunchAttribute& attribute : attributes) {
        attribute.id = r.Get<CUlaunchAttributeID>();
        attribute.value = r.Get<CUlaunchAttributeValue>();
        if (!LaunchAttributeIsFlat(attribute.id)) return r.Fail(CUDA_ERROR_NOT_SUPPORTED);
        const CUresult refusal = AdmitLaunchAttribute(attribute.id, attribute.value);
        if (refusal != CUDA_SUCCESS) return r.Fail(refusal);
      }
    }
    P Arg(Writer&, const auto&) {
      value.attrs = attributes.data();
      value.numAttrs = static_cast<unsigned>(attributes.size());
      return &value;
    }
  };
};

// A const CUDA_RESOURCE_DESC*: the array or piece of device memory that a texture or surface object reads.
struct InResource : NoReply {
  template <class P>
  struct Held : GoesToHost {
    static_assert(std::is_same_v<P, const CUDA_RESOURCE_DESC*>);
    CUDA_RESOURCE_DESC value{};
    static void Send(auto& guest, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(p->resType);
      w.Put(p->flags);
      switch (p->resType) {
        case CU_RESOURCE_TYPE_ARRAY:
          return w.Put(guest.ToWire(p->res.array.hArray, w));
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
          return w.Put(guest.ToWire(p->res.mipmap.hMipmappedArray, w));
        case CU_RESOURCE_TYPE_LINEAR:
          return w.Put(p->res.linear);
        case CU_RESOURCE_TYPE_PITCH2D:
          return w.Put(p->res.pitch2D);
      }
      w.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    void Load(auto& host, Reader& r) {
      value.resType = r.Get<CUresourcetype>();
      value.flags = r.Get<unsigned>();
      if (!OnlyFlags(value.flags, kNoFlags)) r.Fail(CUDA_ERROR_INVALID_VALUE);
      const auto admit = [&r](CUarray_format& format) {
        if (const CUresult refusal = Admit(format); refusal != CUDA_SUCCESS) r.Fail(refusal);
      };
      switch (value.resType) {
        case CU_RESOURCE_TYPE_ARRAY:
          value.res.array.hArray =
              reinterpret_cast<CUarray>(host.ToDriver(HandleKind::kArray, r.Get<WireHandle>(), r));
          return;
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
          value.res.mipmap.hMipmappedArray = reinterpret_cast<CUmipmappedArray>(
              host.ToDriver(HandleKind::kMipmappedArray, r.Get<WireHandle>(), r));
          return;
        case CU_RESOURCE_TYPE_LINEAR:
          value.res.linear = r.Get<decltype(value.res.linear)>();
          return admit(value.res.linear.format);
        case CU_RESOURCE_TYPE_PITCH2D:
          value.res.pitch2D = r.Get<decltype(value.res.pitch2D)>();
          return admit(value.res.pitch2D.format);
      }
      r.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    P Arg(Writer&, const auto&) { return &value; }
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

// CUmemGenericAllocationHandle shares its C type with plain numbers, so it has directions of its own. They
// are those of handles, for an Allocation that is cast to a number.
struct InAllocation : NoReply {
  template <class P>
  struct Held : In::Held<Allocation> {
    static_assert(std::is_same_v<P, CUmemGenericAllocationHandle>);
    using Inner = In::Held<Allocation>;
    static void Send(auto& guest, Writer& w, P p, const auto& args) {
      Inner::Send(guest, w, reinterpret_cast<Allocation>(p), args);
    }
    P Arg(Writer&, const auto&) { return reinterpret_cast<P>(this->value); }
  };
};

// An allocation that the call releases.
struct DropAllocation : NoReply {
  static constexpr bool kEnds = true;
  template <class P>
  struct Held : Drop::Held<Allocation> {
    static_assert(std::is_same_v<P, CUmemGenericAllocationHandle>);
    using Inner = Drop::Held<Allocation>;
    static void Send(auto& guest, Writer& w, P p, const auto& args) {
      Inner::Send(guest, w, reinterpret_cast<Allocation>(p), args);
    }
    static void Receive(auto& guest, Reader& r, P p, const auto& args) {
      Inner::Receive(guest, r, reinterpret_cast<Allocation>(p), args);
    }
    P Arg(Writer&, const auto&) { return reinterpret_cast<P>(this->value); }
  };
};

// An allocation that the call creates.
struct NewAllocation : NoReply {
  template <class P>
  struct Held {
    static_assert(std::is_same_v<P, CUmemGenericAllocationHandle*>);
    CUmemGenericAllocationHandle value{};
    WireHandle wire = 0;
    static void Send(auto& guest, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      const auto made = guest.template Make<Allocation>(w);
      *p = reinterpret_cast<CUmemGenericAllocationHandle>(made);
      w.Put(guest.ToWire(made, w));
    }
    static void Receive(auto&, Reader&, P, const auto&) {}
    static void Undo(auto& guest, P p, const auto&) {
      if (p != nullptr) guest.Forget(reinterpret_cast<Allocation>(*p));
    }
    void Load(auto&, Reader& r) { wire = GetFresh(r, HandleKind::kAllocation); }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto& host, Writer& w) {
      host.Bind(HandleKind::kAllocation, wire, reinterpret_cast<void*>(value), w);
    }
  };
};

}  // namespace causeway
