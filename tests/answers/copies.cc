// SPDX-License-Identifier: Apache-2.0
// Copies and fills of every form, right and wrong.
#include "tests/answers/questions.h"

namespace causeway::answers {
namespace {

// What linear copies and fills are asked for.
struct Range {
  const char* name;
  CUdeviceptr to, from;
  size_t bytes;
};
constexpr size_t kHuge = size_t{1} << 40;

size_t Small(size_t bytes) {
  return bytes == kHuge ? 64 : bytes;
}

void AskLinear(const World& w, const Range& a, const Ask& ask) {
  const std::string n = a.name;
  ask("DtoD " + n, [=] { return cuMemcpyDtoD(a.to, a.from, a.bytes); });
  ask("memcpy " + n, [=] { return cuMemcpy(a.to, a.from, a.bytes); });
  ask("DtoD_ptds " + n, [=] {
    return Function<decltype(cuMemcpyDtoD_v2_ptds)>("cuMemcpyDtoD_v2_ptds")(a.to, a.from, a.bytes);
  });
  ask("memcpy_ptds " + n,
      [=] { return Function<decltype(cuMemcpy_ptds)>("cuMemcpy_ptds")(a.to, a.from, a.bytes); });
  ask("Peer " + n, [=] { return cuMemcpyPeer(a.to, w.context, a.from, w.context, a.bytes); });
  ask("Peer_ptds " + n, [=] {
    return Function<decltype(cuMemcpyPeer_ptds)>("cuMemcpyPeer_ptds")(a.to, w.context, a.from, w.context,
                                                                      a.bytes);
  });
  ask("HtoD " + n, [=] { return cuMemcpyHtoD(a.to, a.from == 0 ? nullptr : w.ordinary, Small(a.bytes)); });
  ask("HtoD_ptds " + n, [=] {
    return Function<decltype(cuMemcpyHtoD_v2_ptds)>("cuMemcpyHtoD_v2_ptds")(
        a.to, a.from == 0 ? nullptr : w.ordinary, Small(a.bytes));
  });
  if (a.bytes == kHuge) return;
  ask("DtoH " + n, [=] { return cuMemcpyDtoH(w.ordinary, a.from, a.bytes); });
  ask("DtoH_ptds " + n, [=] {
    return Function<decltype(cuMemcpyDtoH_v2_ptds)>("cuMemcpyDtoH_v2_ptds")(w.ordinary, a.from, a.bytes);
  });
  ask("DtoHpin " + n, [=] { return cuMemcpyDtoH(w.pinned, a.from, a.bytes); });
}

void AskLinear(const World& w, const Range& a, CUstream stream, const std::string& n, const Ask& ask) {
  ask("DtoDAsync " + n, [=] { return cuMemcpyDtoDAsync(a.to, a.from, a.bytes, stream); });
  ask("memcpyAsync " + n, [=] { return cuMemcpyAsync(a.to, a.from, a.bytes, stream); });
  ask("PeerAsync " + n,
      [=] { return cuMemcpyPeerAsync(a.to, w.context, a.from, w.context, a.bytes, stream); });
  if (a.bytes == kHuge) return;
  ask("HtoDAsync " + n,
      [=] { return cuMemcpyHtoDAsync(a.to, a.from == 0 ? nullptr : w.pinned, a.bytes, stream); });
  ask("DtoHAsync " + n, [=] { return cuMemcpyDtoHAsync(w.pinned, a.from, a.bytes, stream); });
}

template <class Box>
Box BoxOf(const Range& a) {
  Box box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = a.from;
  box.dstDevice = a.to;
  box.srcPitch = box.dstPitch = 64;
  box.WidthInBytes = a.bytes < 100 ? a.bytes : 128;
  box.Height = 1;
  if constexpr (requires { box.Depth; }) box.srcHeight = box.dstHeight = box.Depth = 1;
  return box;
}

void AskBoxes(const World& w, const Range& a, const Ask& ask) {
  const std::string n = a.name;
  const auto two = BoxOf<CUDA_MEMCPY2D>(a);
  const auto three = BoxOf<CUDA_MEMCPY3D>(a);
  const auto peer = BoxOf<CUDA_MEMCPY3D_PEER>(a);
  ask("2D " + n, [=] { return cuMemcpy2D(&two); });
  ask("2DUnaligned " + n, [=] { return cuMemcpy2DUnaligned(&two); });
  ask("2D_ptds " + n, [=] { return Function<decltype(cuMemcpy2D_v2_ptds)>("cuMemcpy2D_v2_ptds")(&two); });
  ask("3D " + n, [=] { return cuMemcpy3D(&three); });
  ask("3D_ptds " + n, [=] { return Function<decltype(cuMemcpy3D_v2_ptds)>("cuMemcpy3D_v2_ptds")(&three); });
  ask("3DPeer " + n, [=] { return cuMemcpy3DPeer(&peer); });
  for (const auto& [stream_name, stream_of_it] : w.streams) {
    const CUstream stream = stream_of_it;
    const std::string name = n + " " + stream_name;
    ask("2DAsync " + name, [=] { return cuMemcpy2DAsync(&two, stream); });
    ask("3DAsync " + name, [=] { return cuMemcpy3DAsync(&three, stream); });
    ask("3DPeerAsync " + name, [=] { return cuMemcpy3DPeerAsync(&peer, stream); });
  }
}

void AskFills(const World& w, const Range& a, const Ask& ask) {
  const std::string n = a.name;
  ask("D8 " + n, [=] { return cuMemsetD8(a.from, 1, a.bytes); });
  ask("D8_ptds " + n,
      [=] { return Function<decltype(cuMemsetD8_v2_ptds)>("cuMemsetD8_v2_ptds")(a.from, 1, a.bytes); });
  ask("D2D8 " + n, [=] { return cuMemsetD2D8(a.from, a.bytes == 64 ? 16 : 128, 1, Small(a.bytes), 4); });
  ask("D2D8_ptds " + n, [=] {
    return Function<decltype(cuMemsetD2D8_v2_ptds)>("cuMemsetD2D8_v2_ptds")(a.from, a.bytes == 64 ? 16 : 128,
                                                                            1, Small(a.bytes), 4);
  });
  for (const auto& [stream_name, stream_of_it] : w.streams) {
    const CUstream stream = stream_of_it;
    const std::string name = n + " " + stream_name;
    ask("D8Async " + name, [=] { return cuMemsetD8Async(a.from, 1, a.bytes, stream); });
    ask("D2D8Async " + name,
        [=] { return cuMemsetD2D8Async(a.from, a.bytes == 64 ? 16 : 128, 1, Small(a.bytes), 4, stream); });
    ask("D32Async odd" + name, [=] { return cuMemsetD32Async(a.from + 1, 1, a.bytes & 0xfff, stream); });
  }
}

}  // namespace

void AskCopies(const World& w, const Ask& ask) {
  const Range ranges[] = {{"ok", w.memory, w.memory + 4096, 64},
                          {"null", w.memory, 0, 64},
                          {"none", w.memory, w.memory, 0},
                          {"bad", w.memory, w.unknown, 64},
                          {"nullnone", 0, 0, 0},
                          {"big", w.memory, w.memory + 4096, kHuge}};
  for (const Range& range : ranges) {
    AskLinear(w, range, ask);
    for (const auto& [name, stream] : w.streams)
      AskLinear(w, range, stream, std::string(range.name) + " " + name, ask);
    AskBoxes(w, range, ask);
    AskFills(w, range, ask);
  }
  ask("2D nul", [=] { return cuMemcpy2D(nullptr); });
  ask("3D nul", [=] { return cuMemcpy3D(nullptr); });
  ask("3DPeer nul", [=] { return cuMemcpy3DPeer(nullptr); });
  ask("AtoD ok", [=] { return cuMemcpyAtoD(w.memory, w.array, 0, 64); });
  ask("AtoD none", [=] { return cuMemcpyAtoD(w.memory, w.array, 0, 0); });
  ask("AtoD far", [=] { return cuMemcpyAtoD(w.memory, w.array, 1 << 20, 64); });
  ask("DtoA null", [=] { return cuMemcpyDtoA(w.array, 0, 0, 64); });
  ask("AtoA none", [=] { return cuMemcpyAtoA(w.array, 0, w.array, 0, 0); });
  ask("HtoA ok", [=] { return cuMemcpyHtoA(w.array, 0, w.ordinary, 64); });
  ask("HtoA null", [=] { return cuMemcpyHtoA(w.array, 0, nullptr, 64); });
  ask("AtoH none", [=] { return cuMemcpyAtoH(w.ordinary, w.array, 0, 0); });
  for (const size_t words : {size_t{8192}, size_t{1} << 18, (size_t{1} << 18) + 1})
    ask("D32Async long " + std::to_string(words),
        [=] { return cuMemsetD32Async(w.memory, 16, words, w.non_blocking); });
  ask("D32Async end",
      [=] { return cuMemsetD32Async(w.memory + 4096, 16, (1 << 18) - 1024, w.non_blocking); });
  ask("D32Async over",
      [=] { return cuMemsetD32Async(w.memory + 4096, 16, (1 << 18) - 1023, w.non_blocking); });
}

}  // namespace causeway::answers
