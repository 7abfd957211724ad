// SPDX-License-Identifier: Apache-2.0
// What a test must know of each direction to try any row: how to make an argument (Make), what of it the
// driver must see (Inputs), how a driver answers through it (Fill), what of that the program must see
// (Outputs).
#pragma once
#include <cstring>
#include <deque>
#include <memory>
#include <random>

#include "tests/unit/protocol_mocks.h"

namespace causeway::test {

using Bytes = std::vector<std::byte>;

inline void Append(Bytes& to, const void* from, size_t count) {
  const auto* bytes = static_cast<const std::byte*>(from);
  if (count != 0) to.insert(to.end(), bytes, bytes + count);
}
template <class T>
void AppendValue(Bytes& to, const T& value) {
  Append(to, &value, sizeof value);
}

// A driver's handle as a number, on either side.
struct View {
  const MockHost* guest_of = nullptr;  // null: the driver's side
  template <class T>
  uint64_t operator()(T handle) const {
    const auto number = reinterpret_cast<uint64_t>(handle);
    if (guest_of == nullptr || number == 0) return number;
    const auto found = guest_of->table.find(number);
    return found == guest_of->table.end() ? ~uint64_t{0} : reinterpret_cast<uint64_t>(found->second);
  }
};

// Everything one row is tried with. Memory that arguments point to lives until the end and is exactly sized.
class Bench {
 public:
  Bench(MockGuest& guest, MockHost& host, uint64_t seed) : guest_(guest), host_(host), random_(seed) {}

  uint64_t Number() { return random_(); }
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  template <class T>
  T* Allocate(size_t count) {
    memory_.emplace_back(new std::byte[count * sizeof(T)]);
    return reinterpret_cast<T*>(memory_.back().get());
  }
  template <class T>
  void Randomise(T& value) {
    if constexpr (Handle<T>) {
      value = LiveHandle<T>();
    } else if constexpr (std::is_enum_v<T>) {
      if constexpr (requires { KnownValues<T>::kAll; }) {
        do {
          value = KnownValues<T>::kAll[Below(std::size(KnownValues<T>::kAll))];
        } while (Admit(value) != CUDA_SUCCESS);
      } else {
        value = static_cast<T>(Below(2));  // only ever an answer
      }
    } else {
      for (auto* at = reinterpret_cast<std::byte*>(&value); at != reinterpret_cast<std::byte*>(&value + 1);
           ++at) {
        *at = static_cast<std::byte>(Number());
      }
      Tame(value);
    }
  }
  // One that the guest knows and the host has bound.
  template <class T>
  T LiveHandle() {
    Writer none({});
    const T handle = guest_.template Make<T>(none);
    host_.table[reinterpret_cast<WireHandle>(handle)] = DriverHandle();
    return handle;
  }
  // The driver's handle of such a one.
  template <class T>
  T KnownToDriver() {
    return reinterpret_cast<T>(host_.table[reinterpret_cast<WireHandle>(LiveHandle<T>())]);
  }
  // A value as the driver would return it; never dereferenced.
  void* DriverHandle() { return reinterpret_cast<void*>(0x700000000000 + 64 * ++driver_handles_); }
  // The element count in parameter I: drawn once, shared by all who name it.
  template <size_t I>
  size_t Count(auto& args) {
    auto& parameter = std::get<I>(args);
    if (decided_.insert(I).second) {
      using T = std::decay_t<decltype(parameter)>;
      if constexpr (std::is_pointer_v<T>) {
        parameter = Allocate<std::remove_pointer_t<T>>(1);
        *parameter = Below(6);
      } else {
        parameter = static_cast<T>(Below(6));
      }
    }
    if constexpr (std::is_pointer_v<std::decay_t<decltype(parameter)>>) {
      return *parameter;
    } else {
      return static_cast<size_t>(parameter);
    }
  }
  // Parameters whose value another parameter has decided.
  void Decide(size_t index) { decided_.insert(index); }
  bool IsDecided(size_t index) const { return decided_.contains(index); }

 private:
  template <class T>
  static void Tame(T&) {}
  // Random bytes become a value that may travel. What Admit changes is changed here, so that the driver sees
  // what the program gave.
  template <class E>
  void Pick(E& value) {
    Randomise(value);
  }
  void Tame(CUmemLocation& location) { location.type = CU_MEM_LOCATION_TYPE_DEVICE; }
  void Tame(CUmemAccessDesc& access) {
    Tame(access.location);
    Pick(access.flags);
  }
  void Tame(CUmemAllocationProp& prop) {
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.win32HandleMetaData = nullptr;
    Tame(prop.location);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    prop.allocFlags = {};
    prop.allocFlags.gpuDirectRDMACapable = 1;
  }
  void Tame(CUmemPoolProps& props) {
    const size_t bytes = props.maxSize;
    props = {};
    props.maxSize = bytes;
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    Tame(props.location);
  }
  void Tame(CUmulticastObjectProp& prop) {
    prop.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    prop.flags = 0;
  }
  void Tame(CUexecAffinityParam& param) { Pick(param.type); }
  void Tame(CUDA_ARRAY_DESCRIPTOR& array) { Pick(array.Format); }
  void Tame(CUDA_ARRAY3D_DESCRIPTOR& array) {
    Pick(array.Format);
    array.Flags &= kArrayFlags;
  }
  void Tame(CUDA_TEXTURE_DESC& texture) {
    for (CUaddress_mode& mode : texture.addressMode) Pick(mode);
    Pick(texture.filterMode);
    Pick(texture.mipmapFilterMode);
    texture.flags &= kTextureFlags;
    std::fill(std::begin(texture.reserved), std::end(texture.reserved), 0);
  }
  void Tame(CUDA_RESOURCE_VIEW_DESC& view) {
    Pick(view.format);
    std::fill(std::begin(view.reserved), std::end(view.reserved), 0);
  }
  void Tame(CUDA_MEMSET_NODE_PARAMS& memset) { memset.elementSize = 1u << Below(3); }
  void Tame(CUgraphEdgeData& edge) {
    edge = {};
    edge.from_port = static_cast<unsigned char>(Below(3));
    edge.type = static_cast<unsigned char>(Below(2));
  }
  void Tame(CUstreamBatchMemOpParams& operation) {
    const uint64_t address = operation.writeValue.address, value = operation.writeValue.value64;
    operation = {};
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operation.writeValue.address = address;
    operation.writeValue.value64 = value;
    operation.writeValue.flags = static_cast<unsigned>(Below(2));
  }

  MockGuest& guest_;
  MockHost& host_;
  std::mt19937_64 random_;
  std::deque<std::unique_ptr<std::byte[]>> memory_;
  std::set<size_t> decided_;
  uint64_t driver_handles_ = 0;
};

template <class T>
void AppendElement(Bytes& to, const T& value, const View& view) {
  if constexpr (Handle<T>) {
    AppendValue(to, view(value));
  } else {
    AppendValue(to, value);
  }
}
template <class P>
auto* MutablePointer(Bench& bench, P& p, size_t count) {
  auto* made = bench.Allocate<Pointee<P>>(count);
  p = made;
  return made;
}

// Directions that only carry something one way take the other half from here.
struct NoInputs {
  static void Inputs(Bytes&, auto, const auto&, const View&) {}
};
struct NoOutputs {
  static void Fill(Bench&, auto, const auto&) {}
  static void Outputs(Bytes&, auto, const auto&, const View&) {}
};

template <class Direction>
struct Probe;

template <>
struct Probe<In> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    if (!bench.IsDecided(Index)) bench.Randomise(p);
  }
  static void Inputs(Bytes& to, auto p, const auto&, const View& view) { AppendElement(to, p, view); }
};
template <uint64_t known>
struct Probe<Flags<known>> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    p = static_cast<P>(bench.Number() & known);
  }
  static void Inputs(Bytes& to, auto p, const auto&, const View&) { AppendValue(to, p); }
};
template <>
struct Probe<Drop> : Probe<In> {};

template <class Number>
struct AllocationProbe : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    p = reinterpret_cast<P>(bench.LiveHandle<Allocation>());
  }
  static void Inputs(Bytes& to, auto p, const auto&, const View& view) {
    AppendValue(to, view(reinterpret_cast<Allocation>(p)));
  }
};
template <>
struct Probe<InAllocation> : AllocationProbe<void> {};
template <>
struct Probe<DropAllocation> : AllocationProbe<void> {};

template <>
struct Probe<Out> : NoInputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    MutablePointer(bench, p, 1);
  }
  static void Fill(Bench& bench, auto p, const auto&) { bench.Randomise(*p); }
  static void Outputs(Bytes& to, auto p, const auto&, const View&) { AppendValue(to, *p); }
};
template <>
struct Probe<OutOrNull> : Probe<Out> {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    p = nullptr;
    if (bench.Below(2) == 0) MutablePointer(bench, p, 1);
  }
  static void Inputs(Bytes& to, auto p, const auto&, const View&) { AppendValue(to, p == nullptr); }
  static void Fill(Bench& bench, auto p, const auto&) {
    if (p != nullptr) bench.Randomise(*p);
  }
  static void Outputs(Bytes& to, auto p, const auto&, const View&) {
    if (p != nullptr) AppendValue(to, *p);
  }
};

template <>
struct Probe<New> : NoInputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    MutablePointer(bench, p, 1);
  }
  static void Fill(Bench& bench, auto p, const auto&) {
    *p = reinterpret_cast<std::remove_pointer_t<decltype(p)>>(bench.DriverHandle());
  }
  static void Outputs(Bytes& to, auto p, const auto&, const View& view) { AppendValue(to, view(*p)); }
};
template <>
struct Probe<OutHandle> : Probe<New> {};
template <>
struct Probe<NewAllocation> : Probe<New> {
  static void Outputs(Bytes& to, auto p, const auto&, const View& view) {
    AppendValue(to, view(reinterpret_cast<Allocation>(*p)));
  }
};

// The only InOut of the rows is the length of an OutList: the driver says that there is less than the room.
template <>
struct Probe<InOut> {
  template <size_t Index, class P>
  static void Make(Bench& bench, P&, auto& args) {
    bench.Count<Index>(args);
  }
  static void Inputs(Bytes& to, auto p, const auto&, const View&) { AppendValue(to, *p); }
  static void Fill(Bench&, auto p, const auto&) { *p /= 2; }
  static void Outputs(Bytes& to, auto p, const auto&, const View&) { AppendValue(to, *p); }
};
template <size_t I>
struct Probe<OutList<I>> {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    static_assert(I > Index, "the length must receive after the list");
    const size_t room = bench.Count<I>(args);
    p = nullptr;
    if (bench.Below(4) != 0) MutablePointer(bench, p, room);
  }
  static void Inputs(Bytes& to, auto p, const auto&, const View&) { AppendValue(to, p == nullptr); }
  static void Fill(Bench& bench, auto p, const auto& args) {
    using T = std::remove_pointer_t<decltype(p)>;
    for (size_t i = 0; p != nullptr && i < *std::get<I>(args); ++i) {
      if constexpr (Handle<T>) {
        p[i] = i < *std::get<I>(args) / 2 ? reinterpret_cast<T>(bench.DriverHandle()) : nullptr;
      } else {
        bench.Randomise(p[i]);
      }
    }
  }
  static void Outputs(Bytes& to, auto p, const auto& args, const View& view) {
    for (size_t i = 0; p != nullptr && i < *std::get<I>(args); ++i) AppendElement(to, p[i], view);
  }
};

template <>
struct Probe<InOne> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    bench.Randomise(*MutablePointer(bench, p, 1));
  }
  static void Inputs(Bytes& to, auto p, const auto&, const View&) { AppendValue(to, *p); }
};
template <>
struct Probe<InQuestion> : Probe<InOne> {};
template <>
struct Probe<InString> : NoOutputs {
  template <size_t Index>
  static void Make(Bench& bench, const char*& p, auto&) {
    const size_t length = bench.Below(40);
    char* text = MutablePointer(bench, p, length + 1);
    std::memset(text, 'x', length);
    text[length] = 0;
  }
  static void Inputs(Bytes& to, const char* p, const auto&, const View&) { Append(to, p, std::strlen(p)); }
};
template <size_t I>
struct Probe<InArray<I>> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    const size_t count = bench.Count<I>(args);
    auto* values = MutablePointer(bench, p, count);
    for (size_t i = 0; i < count; ++i) bench.Randomise(values[i]);
  }
  static void Inputs(Bytes& to, auto p, const auto& args, const View& view) {
    for (size_t i = 0; i < static_cast<size_t>(std::get<I>(args)); ++i) AppendElement(to, p[i], view);
  }
};
template <size_t I>
struct Probe<InBytes<I>> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    const size_t count = bench.Count<I>(args);
    auto* bytes = bench.Allocate<std::byte>(count);
    for (size_t i = 0; i < count; ++i) bench.Randomise(bytes[i]);
    p = bytes;
  }
  static void Inputs(Bytes& to, auto p, const auto& args, const View&) { Append(to, p, std::get<I>(args)); }
};
template <class Required>
struct Probe<OrNull<Required>> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    Probe<Required>::template Make<Index>(bench, p, args);
    if (bench.Below(2) == 0) p = nullptr;
  }
  static void Inputs(Bytes& to, auto p, const auto& args, const View& view) {
    Bytes present;  // an empty array and a null one say the same
    if (p != nullptr) Probe<Required>::Inputs(present, p, args, view);
    AppendValue(to, present.size());
    Append(to, present.data(), present.size());
  }
};
template <size_t I>
struct Probe<OutArray<I>> : NoInputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    MutablePointer(bench, p, bench.Count<I>(args));
  }
  static void Fill(Bench& bench, auto p, const auto& args) {
    for (size_t i = 0; i < static_cast<size_t>(std::get<I>(args)); ++i) bench.Randomise(p[i]);
  }
  static void Outputs(Bytes& to, auto p, const auto& args, const View&) {
    Append(to, p, static_cast<size_t>(std::get<I>(args)) * sizeof *p);
  }
};
template <>
struct Probe<NullOnly> : NoOutputs {
  template <size_t Index>
  static void Make(Bench&, auto& p, auto&) {
    p = nullptr;
  }
  static void Inputs(Bytes& to, auto p, const auto&, const View&) { AppendValue(to, p == nullptr); }
};

inline void PickAttribute(Bench& bench, CUmemPool_attribute& a) {
  a = bench.Below(2) == 0 ? CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC : CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
}
inline void PickAttribute(Bench&, CUgraphMem_attribute& a) {
  a = CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
}
inline void PickAttribute(Bench&, CUpointer_attribute& a) {
  a = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
}

template <size_t I>
struct Probe<InAttribute<I>> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    PickAttribute(bench, std::get<I>(args));
    bench.Decide(I);
    const size_t bytes = AttributeBytes(std::get<I>(args));
    auto* value = bench.Allocate<std::byte>(bytes);
    for (size_t i = 0; i < bytes; ++i) bench.Randomise(value[i]);
    p = value;
  }
  static void Inputs(Bytes& to, auto p, const auto& args, const View&) {
    Append(to, p, AttributeBytes(std::get<I>(args)));
  }
};
template <size_t I>
struct Probe<OutAttribute<I>> : NoInputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    PickAttribute(bench, std::get<I>(args));
    bench.Decide(I);
    p = bench.Allocate<std::byte>(AttributeBytes(std::get<I>(args)));
  }
  static void Fill(Bench& bench, auto p, const auto& args) {
    for (size_t i = 0; i < AttributeBytes(std::get<I>(args)); ++i)
      bench.Randomise(static_cast<std::byte*>(p)[i]);
  }
  static void Outputs(Bytes& to, auto p, const auto& args, const View&) {
    Append(to, p, AttributeBytes(std::get<I>(args)));
  }
};
template <size_t I>
struct Probe<InLaunchAttribute<I>> : Probe<InOne> {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    std::get<I>(args) = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    bench.Decide(I);
    auto* value = MutablePointer(bench, p, 1);
    *value = {};
    bench.Randomise(value->clusterDim.x);
    bench.Randomise(value->clusterDim.z);
  }
};
template <size_t I>
struct Probe<OutLaunchAttribute<I>> : Probe<Out> {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto& args) {
    std::get<I>(args) = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    bench.Decide(I);
    MutablePointer(bench, p, 1);
  }
};

template <>
struct Probe<InOccupancyConfig> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    CUlaunchConfig* config = MutablePointer(bench, p, 1);
    std::memset(config, 0, sizeof *config);
    bench.Randomise(config->gridDimX);
    bench.Randomise(config->blockDimZ);
    bench.Randomise(config->sharedMemBytes);
    bench.Randomise(config->hStream);
    config->numAttrs = static_cast<unsigned>(bench.Below(4));
    config->attrs = bench.Allocate<CUlaunchAttribute>(config->numAttrs);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      config->attrs[i].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      config->attrs[i].value = {};
      bench.Randomise(config->attrs[i].value.clusterDim.y);
    }
  }
  static void Inputs(Bytes& to, const CUlaunchConfig* p, const auto&, const View& view) {
    for (const unsigned n : {p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ,
                             p->sharedMemBytes, p->numAttrs}) {
      AppendValue(to, n);
    }
    AppendValue(to, view(p->hStream));
    for (unsigned i = 0; i < p->numAttrs; ++i) {
      AppendValue(to, p->attrs[i].id);
      AppendValue(to, p->attrs[i].value);
    }
  }
};
template <>
struct Probe<InResource> : NoOutputs {
  template <size_t Index, class P>
  static void Make(Bench& bench, P& p, auto&) {
    CUDA_RESOURCE_DESC* desc = MutablePointer(bench, p, 1);
    std::memset(desc, 0, sizeof *desc);
    desc->resType = static_cast<CUresourcetype>(bench.Below(4));
    if (desc->resType == CU_RESOURCE_TYPE_ARRAY) desc->res.array.hArray = bench.LiveHandle<CUarray>();
    if (desc->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
      desc->res.mipmap.hMipmappedArray = bench.LiveHandle<CUmipmappedArray>();
    }
    if (desc->resType == CU_RESOURCE_TYPE_LINEAR) {
      bench.Randomise(desc->res.linear.format);
      bench.Randomise(desc->res.linear.sizeInBytes);
    }
    if (desc->resType == CU_RESOURCE_TYPE_PITCH2D) {
      bench.Randomise(desc->res.pitch2D.format);
      bench.Randomise(desc->res.pitch2D.pitchInBytes);
    }
  }
  static void Inputs(Bytes& to, const CUDA_RESOURCE_DESC* p, const auto&, const View& view) {
    AppendValue(to, p->resType);
    AppendValue(to, p->flags);
    if (p->resType == CU_RESOURCE_TYPE_ARRAY) AppendValue(to, view(p->res.array.hArray));
    if (p->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) AppendValue(to, view(p->res.mipmap.hMipmappedArray));
    if (p->resType == CU_RESOURCE_TYPE_LINEAR) AppendValue(to, p->res.linear);
    if (p->resType == CU_RESOURCE_TYPE_PITCH2D) AppendValue(to, p->res.pitch2D);
  }
};

}  // namespace causeway::test
