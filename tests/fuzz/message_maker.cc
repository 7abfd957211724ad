// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/message_maker.h"

#include <array>

#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/copy_messages.h"
#include "ivshmem_ring/messages/registration.h"
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/messages/sharing_messages.h"
#include "tests/fuzz/fuzz_graph.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

// One parameter as its direction sends it, with values from the input.
template <class D>
struct Shaped {
  template <class P>
  static void Make(Input& input, Bytes& body) {  // a direction that this file does not know: words
    for (int words = input.Byte() % 4; words > 0; --words) {
      const uint64_t word = SomeNumber(input);
      Put(body, &word, sizeof word);
    }
  }
};
template <>
struct Shaped<In> {
  template <class P>
  static void Make(Input& input, Bytes& body) {
    if constexpr (Handle<P>) {
      const WireHandle wire = SomeHandle(input, kKindOf<P>);
      Put(body, &wire, sizeof wire);
    } else {
      for (size_t done = 0; done < sizeof(P); done += 8) {
        const uint64_t word = SomeNumber(input);
        Put(body, &word, std::min<size_t>(8, sizeof(P) - done));
      }
    }
  }
};
template <>
struct Shaped<Drop> : Shaped<In> {};
template <>
struct Shaped<New> {
  template <class P>
  static void Make(Input& input, Bytes& body) {
    Shaped<In>::Make<std::remove_pointer_t<P>>(input, body);
  }
};
template <>
struct Shaped<OutHandle> : Shaped<New> {};
template <>
struct Shaped<InOut> : Shaped<New> {};
template <>
struct Shaped<InOne> {
  template <class P>
  static void Make(Input& input, Bytes& body) {
    Shaped<In>::Make<Pointee<P>>(input, body);
  }
};
template <>
struct Shaped<InQuestion> : Shaped<InOne> {};
template <>
struct Shaped<Out> {
  template <class P>
  static void Make(Input&, Bytes&) {}
};
template <size_t I>
struct Shaped<OutArray<I>> : Shaped<Out> {};
template <>
struct Shaped<OutOrNull> {
  template <class P>
  static void Make(Input& input, Bytes& body) {
    body.push_back(static_cast<std::byte>(input.Byte() % 3));
  }
};
template <>
struct Shaped<InString> {
  template <class P>
  static void Make(Input& input, Bytes& body) {
    const auto text = input.Bytes(input.Byte() % 16);
    const auto bytes = static_cast<uint32_t>(text.size() + 1);
    Put(body, &bytes, sizeof bytes);
    Put(body, text.data(), text.size());
    body.push_back(static_cast<std::byte>(input.Byte() / 128));
  }
};
template <size_t I>
struct Shaped<InArray<I>> {
  template <class P>
  static void Make(Input& input, Bytes& body) {
    const uint64_t count = SomeNumber(input);
    Put(body, &count, sizeof count);
    for (uint64_t i = 0; i < std::min<uint64_t>(count, 4); ++i) Shaped<In>::Make<Pointee<P>>(input, body);
  }
};

template <class Row>
struct BodyOf;
template <class... P, class... D>
struct BodyOf<Shape<CUresult (*)(P...), D...>> {
  static void Make(Input& input, Bytes& body) { (Shaped<D>::template Make<P>(input, body), ...); }
};

using Maker = void (*)(Input&, Bytes&);
std::array<Maker, static_cast<size_t>(Op::kCount)> MakersOfRows() {
  std::array<Maker, static_cast<size_t>(Op::kCount)> makers{};
#define CALL(fn, ...) makers[static_cast<size_t>(Op::fn)] = &BodyOf<RowShape<Op::fn>>::Make;
#define GUEST CALL
#include "ivshmem_ring/calls.def"
  return makers;
}

void MakeBox(Input& input, Bytes& body) {
  BoxBody box{};
  auto number = [&] { return SomeNumber(input); };
  box.box.srcMemoryType = static_cast<CUmemorytype>(1 + input.Byte() % 4);
  box.box.dstMemoryType = static_cast<CUmemorytype>(1 + input.Byte() % 4);
  box.box.srcHost = reinterpret_cast<void*>(number());
  box.box.dstHost = reinterpret_cast<void*>(number());
  for (size_t* value :
       {&box.box.srcXInBytes, &box.box.srcY, &box.box.srcZ, &box.box.dstXInBytes, &box.box.dstY,
        &box.box.dstZ, &box.box.srcPitch, &box.box.srcHeight, &box.box.dstPitch, &box.box.dstHeight,
        &box.box.WidthInBytes, &box.box.Height, &box.box.Depth}) {
    *value = number();
  }
  box.source_array = SomeHandle(input, HandleKind::kArray);
  box.destination_array = SomeHandle(input, HandleKind::kArray);
  box.stream = SomeHandle(input, HandleKind::kStream);
  box.form = static_cast<CopyForm>(input.Byte() % 4);
  box.packed_side = static_cast<PackedSide>(input.Byte() % 4);
  Put(body, &box, sizeof box);
}

void MakeCopy(Input& input, Bytes& body) {
  CopyBody copy{};
  copy.device = SomeNumber(input);
  copy.bytes = SomeNumber(input) + input.Byte();
  copy.stream = SomeHandle(input, HandleKind::kStream);
  copy.form = static_cast<CopyForm>(input.Byte() % 4);
  copy.bytes_in = static_cast<BytesIn>(input.Byte() % 5);
  Put(body, &copy, sizeof copy);
  if (copy.bytes_in == BytesIn::kRegion) Append<LentBody>(body) = {SomeNumber(input), SomeNumber(input)};
  body.resize(body.size() + input.Byte());
}

// Pieces that mostly lie in memory of the session, with words that mostly exist.
void MakeQueuedCopy(Input& input, Bytes& body) {
  const uint32_t count = input.Byte() % 6;
  Append<QueuedCopyBody>(body) = {
      SomeNumber(input), SomeHandle(input, HandleKind::kStream),
      input.Byte() % 2u, input.Byte() < 240 ? count : static_cast<uint32_t>(SomeNumber(input)),
      input.Byte() % 4u, 0};
  for (uint32_t i = 0; i < count; ++i) {
    QueuedPiece piece{};
    const bool near = input.Byte() < 240;
    piece.offset =
        near ? kGranuleBytes * (8 + input.Byte() % 9) + 4096 * (input.Byte() % 64) : SomeNumber(input);
    piece.turn = SomeNumber(input);
    piece.done = SomeNumber(input);
    piece.bytes = near ? 4096u * input.Byte() : static_cast<uint32_t>(SomeNumber(input));
    piece.place = static_cast<uint16_t>(input.Byte() % kQueuedPlaces + (near ? 0 : 1));
    piece.stream = static_cast<uint16_t>(input.Byte() % kQueueStreams + (near ? 0 : 1));
    Put(body, &piece, sizeof piece);
  }
  if (input.Byte() > 240) body.resize(body.size() - std::min<size_t>(body.size(), input.Byte()));
}

void MakeLaunch(Input& input, Bytes& body) {
  LaunchBody launch{};
  launch.function = SomeHandle(input, HandleKind::kFunction);
  launch.stream = SomeHandle(input, HandleKind::kStream);
  launch.parameter_bytes = static_cast<uint32_t>(SomeNumber(input));
  launch.attribute_count = input.Byte() < 200 ? input.Byte() % 3 : static_cast<uint32_t>(SomeNumber(input));
  launch.form = input.Byte() % 4;
  Put(body, &launch, sizeof launch);
  for (uint32_t i = 0; i < std::min(launch.attribute_count, 33u); ++i) {
    CUlaunchAttribute attribute{};
    attribute.id = static_cast<CUlaunchAttributeID>(input.Byte() % 20);
    const WireHandle event = SomeHandle(input, HandleKind::kEvent);
    std::memcpy(&attribute.value, &event, sizeof event);
    Put(body, &attribute, sizeof attribute);
  }
  body.resize(body.size() + input.Byte() % 8);
}

void MakeLoad(Input& input, Bytes& body, HandleKind kind) {
  LoadBody load{};
  load.handle = SomeHandle(input, kind);
  const uint8_t options = input.Byte();
  load.option_count = options < 128 ? options % 3 : static_cast<uint32_t>(SomeNumber(input));
  load.option_bytes = options < 200 ? sizeof(JitOption) * (options % 3) : SomeNumber(input);
  if (options % 4 == 0) load.known_bytes = SomeNumber(input);
  Put(body, &load, sizeof load);
}

void MakeLink(Input& input, Bytes& body) {
  LinkBody link{};
  link.link = SomeHandle(input, HandleKind::kLink);
  const uint8_t options = input.Byte();
  link.option_count = options < 128 ? options % 3 : static_cast<uint32_t>(SomeNumber(input));
  link.input_type = input.Byte() % 8;
  link.option_bytes = options < 200 ? sizeof(JitOption) * (options % 3) : SomeNumber(input);
  link.name_bytes = input.Byte() % 2 == 0 ? 0 : SomeNumber(input);
  link.data_bytes = SomeNumber(input);
  Put(body, &link, sizeof link);
}

void MakeEnumerate(Input& input, Bytes& body, HandleKind owner) {
  EnumerateBody enumerate{};
  enumerate.owner = SomeHandle(input, owner);
  enumerate.count = static_cast<uint32_t>(SomeNumber(input)) + 3;
  enumerate.first = input.Byte() < 200 ? 0 : static_cast<uint32_t>(SomeNumber(input));
  enumerate.here = input.Byte() < 200 ? 3 : static_cast<uint32_t>(SomeNumber(input));
  Put(body, &enumerate, sizeof enumerate);
  MakeHandles(input, body, {HandleKind::kFunction, HandleKind::kFunction, HandleKind::kFunction});
}

void MakeLaunches(Input& input, Bytes& body) {
  Append<uint32_t>(body) = input.Byte() % 4;
  Append<uint32_t>(body) = input.Byte() % 4;
  MakeLaunch(input, body);
}

void MakeRegister(Input& input, Bytes& body) {
  Append<RegisterBody>(body) = {0x7000'0000'0000 + 1000 * uint64_t{input.Byte()},
                                1000 * uint64_t{input.Byte()},
                                kPageBytes * (1024 + uint64_t{input.Byte()}) + input.Byte() / 250,
                                input.Byte() % 16u, input.Byte() % 2u};
}

// Contexts, device resources, the settings of core dumps; words for all that has no form here.
void MakeContexts(Op op, Input& input, Bytes& body) {
  const uint32_t few = input.Byte() < 240 ? input.Byte() % 3 : static_cast<uint32_t>(SomeNumber(input));
  auto number = [&] { return input.Byte() < 200 ? 1 + input.Byte() % 3u : SomeNumber(input); };
  switch (op) {
    case Op::cuCtxCreate_v2:
      Append<CreateContextBody>(body) = {SomeHandle(input, HandleKind::kContext), 0, 0, few,
                                         input.Byte() % 5u};
      return body.resize(body.size() + sizeof(CUexecAffinityParam) * (few % 16));
    case Op::cuDevSmResourceSplitByCount:
      Append<SplitResourceBody>(body) = {number(), few, input.Byte() % 2u, input.Byte() % 2u, 0, 8, 0};
      return;
    case Op::cuDevResourceGenerateDesc:
      Append<GenerateDescriptionBody>(body) = {SomeHandle(input, HandleKind::kResourceDescriptor), few, 0};
      for (uint32_t i = 0; i < few % 8; ++i) Append<uint64_t>(body) = number();
      return;
    case Op::cuCoredumpGetAttribute:
    case Op::cuCoredumpSetAttribute:
      Append<CoredumpBody>(body) = {input.Byte() % 9u, input.Byte() % 2u, number()};
      return body.resize(body.size() + input.Byte());
    case Op::cuDeviceGetDevResource:
    case Op::cuCtxGetDevResource:
    case Op::cuGreenCtxGetDevResource:
      Append<GetDevResourceBody>(body) = {
          SomeHandle(input, op == Op::cuCtxGetDevResource ? HandleKind::kContext : HandleKind::kGreenContext),
          0, 1};
      return;
    default:
      for (int words = input.Byte() % 5; words > 0; --words) Append<uint64_t>(body) = SomeNumber(input);
  }
}

// Bodies of the messages that have no generic row.
void MakeByHand(Op op, Input& input, Bytes& body) {
  if (MakeGraphBody(op, input, body)) return;
  using enum HandleKind;
  switch (op) {
    case Op::kAddArena:
    case Op::kDropArena:
      Append<ArenaBody>(body) = {kGranuleBytes * (input.Byte() % 34) + input.Byte() / 250,
                                 kGranuleBytes * (input.Byte() % 4), static_cast<ArenaUse>(input.Byte()), 0};
      return;
    case Op::kRegisterHost:
    case Op::kUnregisterHost:
      return MakeRegister(input, body);
    case Op::kOpenChannel:
      AppendNumbers<OpenChannelBody>(input, body);
      return;
    case Op::kBeginBlob:
      Append<BlobBody>(body).bytes = SomeNumber(input) % (1 << 20);
      return;
    case Op::kCopyToDevice:
    case Op::kCopyToHost:
      return MakeCopy(input, body);
    case Op::kQueuedCopy:
      return MakeQueuedCopy(input, body);
    case Op::kFetchBlob:
      Append<FetchBlobBody>(body).offset = input.Byte() < 200 ? 0 : SomeNumber(input);
      return;
    case Op::cuLinkCreate_v2:
    case Op::cuLinkAddData_v2:
    case Op::cuLinkComplete:
    case Op::cuLinkDestroy:
      return MakeLink(input, body);
    case Op::kDescribeFunction:
      MakeHandles(input, body, {kFunction});
      return Put(body, "\1\0\0\0\0\0\0\0", 8);
    case Op::cuMemcpy3D_v2:
      return MakeBox(input, body);
    case Op::cuLaunchKernel:
    case Op::cuLaunchKernelEx:
      return MakeLaunch(input, body);
    case Op::cuModuleLoadDataEx:
      return MakeLoad(input, body, kModule);
    case Op::cuLibraryLoadData:
      return MakeLoad(input, body, kLibrary);
    case Op::cuModuleGetFunction:
      MakeHandles(input, body, {kModule, kFunction});
      Append<uint64_t>(body) = input.Byte() < 200 ? 2 : SomeNumber(input);
      return Put(body, "f", 2);
    case Op::cuLibraryGetKernel:
      MakeHandles(input, body, {kLibrary, kFunction});
      Append<uint64_t>(body) = input.Byte() < 200 ? 2 : SomeNumber(input);
      return Put(body, "k", 2);
    case Op::cuKernelGetFunction:
      return MakeHandles(input, body, {kFunction, kFunction});
    case Op::cuModuleEnumerateFunctions:
      return MakeEnumerate(input, body, kModule);
    case Op::cuLibraryEnumerateKernels:
      return MakeEnumerate(input, body, kLibrary);
    case Op::cuLibraryUnload:
      return MakeHandles(input, body, {kLibrary});
    case Op::cuCtxDestroy_v2:
      return MakeHandles(input, body, {kContext});
    case Op::cuDevicePrimaryCtxRetain:
    case Op::cuDevicePrimaryCtxRelease_v2:
    case Op::cuDevicePrimaryCtxReset_v2:
      Put(body, "\0\0\0\0\0\0\0\0", 8);
      return MakeHandles(input, body, {kContext});
    case Op::cuTensorMapEncodeTiled:
    case Op::cuTensorMapEncodeIm2col:
      AppendNumbers<TensorMapBody>(input, body);
      return;
    default:
      return MakeContexts(op, input, body);
  }
}

// What a blob is likely to hold: an image in form, or not.
Bytes MakeBulk(Input& input) {
  Bytes bulk;
  const uint8_t kind = input.Byte();
  if (kind % 16 == 1) MakeLaunches(input, bulk);
  for (int options = kind < 32 ? kind % 3 : 0; options > 0; --options) {  // in front of an image, and alone
    Append<JitOption>(bulk) = {static_cast<uint32_t>(input.Byte() % 40), 0, input.Byte() % 8u};
    bulk.resize(bulk.size() + input.Byte() % 24);
  }
  if (!bulk.empty()) bulk.resize(ImageAligned(bulk.size()));
  if (kind % 2 == 0) {
    const uint8_t parts = input.Byte();
    Append<ImageHeader>(bulk) = {kImageMagic,
                                 parts < 200 ? 1 + parts % 3u : static_cast<uint32_t>(SomeNumber(input))};
    for (int i = 0; i < 1 + parts % 3; ++i)
      Append<uint64_t>(bulk) = parts < 200 ? parts % 40 : SomeNumber(input);
    bulk.resize(bulk.size() + 192);
  }
  bulk.resize(bulk.size() + 8 * (input.Byte() % 32));
  bulk.shrink_to_fit();
  return bulk;
}

uint16_t SomeOp(Input& input) {
  // Half of all messages make what the other half uses.
  static constexpr Op kMakers[] = {Op::kAddArena,
                                   Op::kRegisterHost,
                                   Op::kUnregisterHost,
                                   Op::kAppendBlob,
                                   Op::cuModuleLoadDataEx,
                                   Op::cuModuleGetFunction,
                                   Op::cuLibraryLoadData,
                                   Op::cuLibraryGetKernel,
                                   Op::cuStreamCreate,
                                   Op::cuGraphCreate,
                                   Op::cuGraphAddEmptyNode,
                                   Op::cuCtxCreate_v2,
                                   Op::cuDeviceGetDevResource,
                                   Op::cuDevSmResourceSplitByCount,
                                   Op::cuDevResourceGenerateDesc,
                                   Op::cuGreenCtxCreate,
                                   Op::cuDevicePrimaryCtxRetain,
                                   Op::cuGraphGetNodes,
                                   Op::cuLaunchKernel,
                                   Op::cuMemcpy3D_v2,
                                   Op::kQueuedCopy,
                                   Op::cuModuleUnload,
                                   Op::cuGraphDestroy};
  const uint8_t choice = input.Byte();
  if (choice < 128) return static_cast<uint16_t>(kMakers[choice % std::size(kMakers)]);
  const auto op = static_cast<uint16_t>(input.Byte() << 8 | input.Byte());
  return choice < 250 ? op % (static_cast<uint16_t>(Op::kCount) + 2) : op;
}

}  // namespace

Message MakeMessage(Input& input) {
  static const auto makers = MakersOfRows();
  Message message;
  MessageHead& head = message.head;
  head.link = static_cast<uint8_t>(input.Byte() % (kScriptChannels + 1));
  head.place = static_cast<uint8_t>(input.Byte() % 32);
  head.thread = static_cast<uint16_t>(input.Byte() % 3);
  head.op = SomeOp(input);
  // A channel is a thread of its own: few are opened.
  if (head.op == static_cast<uint16_t>(Op::kOpenChannel) && input.Byte() < 240) head.op = 0;
  head.flags = static_cast<uint16_t>(input.Byte() | input.Byte() << 8);
  if (input.Byte() < 192) head.flags &= kCaptureModeMask | kBulkToHost | kBulkToGuest;
  head.context = input.Byte() < 128 ? 0 : SomeHandle(input, HandleKind::kContext);
  head.stream = input.Byte() < 128 ? 0 : SomeHandle(input, HandleKind::kStream);
  head.event = input.Byte() < 128 ? 0 : SomeHandle(input, HandleKind::kEvent);
  if (head.op < makers.size() && makers[head.op] != nullptr) {
    makers[head.op](input, message.body);
  } else {
    MakeByHand(static_cast<Op>(head.op), input, message.body);
  }
  const uint8_t damage = input.Byte();
  Bytes& body = message.body;
  if (damage < 16 && !body.empty()) body.resize(input.Byte() % body.size());
  if (damage >= 16 && damage < 32 && !body.empty()) body[input.Byte() % body.size()] ^= std::byte{damage};
  body.resize(std::min(body.size(), kMaxChannelRecordBytes - sizeof(RecordHeader)));
  if (head.link != kMainScriptLink && input.Byte() < 128) {
    message.bulk = MakeBulk(input);
    head.bulk_bytes = static_cast<uint32_t>(message.bulk.size()) + input.Byte() % 4 * 1024;
  }
  return message;
}

}  // namespace causeway::fuzz
