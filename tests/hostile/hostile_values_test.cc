// SPDX-License-Identifier: Apache-2.0
// Values that no program of the library's would send: options given twice, images that hold addresses,
// numbers that cuda.h does not name; and answers that would tell a guest where things lie in its worker.
#include <elf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/copy_messages.h"
#include "ivshmem_ring/messages/graph_messages.h"
#include "ivshmem_ring/messages/managed_messages.h"
#include "ivshmem_ring/messages/sharing_messages.h"
#include "ivshmem_ring/transport/record.h"  // first: the next one needs it
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

constexpr char kPtx[] = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry f() { ret; }\n";

Bytes AsBytes(const std::string& text) {
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  return {from, from + text.size()};
}

// A guest with a context and an arena, whose first bytes lend what a request brings along.
class Attacker : public HostileGuest {
 public:
  using HostileGuest::HostileGuest;
  bool Begin() {
    if (!Open()) return false;
    RetainPrimary();
    AddArena(first_slice(), 4 << 20);
    return true;
  }
  Answer CallWith(Op op, const Bytes& body, const Bytes& blob) {
    std::memcpy(base() + first_slice(), blob.data(), blob.size());
    return Call(op, body, {.bulk_offset = first_slice(), .bulk_bytes = static_cast<uint32_t>(blob.size())});
  }
  Answer Load(Op op, const Bytes& options, uint32_t count, const Bytes& image) {
    Bytes blob = options;
    blob.resize(ImageAligned(blob.size()));
    const size_t image_at = blob.size();
    Append(blob, ImageHeader{kImageMagic, 1});
    Append(blob, uint64_t{image.size()});
    blob.resize(image_at + kImageAlign);
    blob.insert(blob.end(), image.begin(), image.end());
    LoadBody body{};
    const bool is_library = op == Op::cuLibraryLoadData;
    body.handle = MakeWireHandle(is_library ? HandleKind::kLibrary : HandleKind::kModule, 1, ++handles_);
    body.option_count = count;
    body.option_bytes = options.size();
    return CallWith(op, Pack(body), blob);
  }
  Answer Link(Op op, WireHandle link, uint32_t type, const Bytes& options, uint32_t count,
              const Bytes& data) {
    Bytes blob = options;
    blob.resize(ImageAligned(blob.size()));
    blob.insert(blob.end(), data.begin(), data.end());
    const LinkBody body{link, count, type, options.size(), 0, data.size()};
    return CallWith(op, Pack(body), blob.empty() ? Bytes(1) : blob);
  }
  WireHandle NewLink(const Bytes& options = {}, uint32_t count = 0) {
    const WireHandle link = MakeWireHandle(HandleKind::kLink, 1, ++handles_);
    const LinkBody body{link, count, 0, options.size(), 0, 0};
    Bytes blob = options;
    blob.resize(ImageAligned(blob.size()));
    EXPECT_TRUE(blob.empty() ? Call(Op::cuLinkCreate_v2, Pack(body)).ok()
                             : CallWith(Op::cuLinkCreate_v2, Pack(body), blob).ok());
    return link;
  }

 private:
  uint32_t handles_ = 100;
};

JitOption Option(CUjit_option option, uint64_t value) {
  return {static_cast<uint32_t>(option), 0, value};
}

// PTX whose error fills a large log.
Bytes BrokenPtx() {
  return AsBytes(".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry f() { " +
                 std::string(60000, 'A') + " %r1; ret; }\n" + '\0');
}

// Room for 16 bytes, and the driver told of 1 MiB.
Bytes SizeTwice() {
  return Pack(Option(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, 16), Option(CU_JIT_ERROR_LOG_BUFFER, 1),
              Option(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, 1 << 20));
}

TEST(HostileValues, LogSizesGivenTwiceAreRefused) {
  HostileDaemon daemon;
  for (const Op op : {Op::cuModuleLoadDataEx, Op::cuLibraryLoadData}) {
    Attacker guest(daemon);
    ASSERT_TRUE(guest.Begin()) << guest.refusal();
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(guest.Load(op, SizeTwice(), 3, BrokenPtx()).result, CUDA_ERROR_INVALID_VALUE);
    }
    EXPECT_EQ(guest.HowItEnded(), "");
  }
  Attacker guest(daemon);
  ASSERT_TRUE(guest.Begin()) << guest.refusal();
  const WireHandle link = guest.NewLink();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(guest.Link(Op::cuLinkAddData_v2, link, CU_JIT_INPUT_PTX, SizeTwice(), 3, BrokenPtx()).result,
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(guest.Link(Op::cuLinkCreate_v2, MakeWireHandle(HandleKind::kLink, 1, 90), 0, SizeTwice(), 3, {})
                  .result,
              CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(guest.HowItEnded(), "");
}

TEST(HostileValues, OptionsThatDisagreeAreRefused) {
  HostileDaemon daemon;
  Attacker guest(daemon);
  ASSERT_TRUE(guest.Begin()) << guest.refusal();
  const auto load = [&](const Bytes& options, uint32_t count) {
    return guest.Load(Op::cuModuleLoadDataEx, options, count, BrokenPtx()).result;
  };
  // A buffer without its size; one given twice; counts without a list, and beyond it; options from nowhere.
  EXPECT_EQ(load(Pack(Option(CU_JIT_ERROR_LOG_BUFFER, 1)), 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(load(Pack(Option(CU_JIT_ERROR_LOG_BUFFER, 1), Option(CU_JIT_ERROR_LOG_BUFFER, 1),
                      Option(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, 64)),
                 3),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(load(Pack(Option(CU_JIT_GLOBAL_SYMBOL_COUNT, 1 << 20)), 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(load(Pack(Option(CU_JIT_REFERENCED_KERNEL_NAMES, 1), uint32_t{1}, 'f',
                      Option(CU_JIT_REFERENCED_KERNEL_COUNT, 2)),
                 2),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(load(Pack(Option(CU_JIT_NUM_OPTIONS, 1)), 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(load(Pack(Option(CU_JIT_TARGET, 12345)), 1), CUDA_ERROR_INVALID_VALUE);
  // A size beyond all bounds is cut, a log of size 0 holds the driver's zero.
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{16}, uint64_t{0xffffffff}}) {
    EXPECT_EQ(
        load(Pack(Option(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, size), Option(CU_JIT_ERROR_LOG_BUFFER, 1)), 2),
        CUDA_ERROR_INVALID_PTX)
        << size;
  }
  EXPECT_EQ(guest.HowItEnded(), "");
}

struct Wrapper {
  uint32_t magic, version;
  uint64_t data, linked;
};

TEST(HostileValues, WrappersThatHoldAddressesEndTheSession) {
  HostileDaemon daemon;
  for (const Op op : {Op::cuLibraryLoadData, Op::cuModuleLoadDataEx}) {
    for (const bool shared : {false, true}) {
      Attacker guest(daemon);
      ASSERT_TRUE(guest.Begin()) << guest.refusal();
      const uint64_t image = guest.first_slice() + (2 << 20);
      std::memcpy(guest.base() + image, kPtx, sizeof kPtx);
      const Wrapper wrapper{0x466243B1, 1, shared ? guest.window() + image : 0x123456789000, 0};
      const Answer answer = guest.Load(op, {}, 0, Pack(wrapper));
      EXPECT_TRUE(answer.lost || answer.result != CUDA_SUCCESS);
      EXPECT_EQ(EndOf(daemon, guest.worker()), "ended with exit status 3");
    }
  }
  EXPECT_GE(daemon.CountInLog("an image holds addresses"), 1u);  // a scope has so many lines a second
  EXPECT_TRUE(daemon.Serves());
}

TEST(HostileValues, ImagesWhoseTablesLieOutsideAreRefused) {
  HostileDaemon daemon;
  Attacker guest(daemon);
  ASSERT_TRUE(guest.Begin()) << guest.refusal();
  struct {
    uint32_t magic = 0xBA55ED50;
    uint16_t version = 1, header = 16;
    uint64_t bytes = uint64_t{1} << 40;
  } fatbin;
  Elf64_Ehdr elf{};
  std::memcpy(elf.e_ident, ELFMAG, SELFMAG);
  elf.e_ident[EI_CLASS] = ELFCLASS64;
  elf.e_machine = 190;
  elf.e_shoff = uint64_t{1} << 40;
  elf.e_shnum = 5;
  elf.e_shentsize = sizeof(Elf64_Shdr);
  Bytes old_magic = Pack(uint32_t{0x1EE55A01});  // NVIDIA's driver follows what is in it
  old_magic.resize(64);
  for (const Bytes& image : {Pack(fatbin), Pack(elf), old_magic, Pack(uint32_t{0x04030201})}) {
    EXPECT_EQ(guest.Load(Op::cuModuleLoadDataEx, {}, 0, image).result, CUDA_ERROR_INVALID_IMAGE);
    const WireHandle link = guest.NewLink();
    for (uint32_t type = 0; type <= CU_JIT_INPUT_NVVM; ++type) {
      const uint32_t result = guest.Link(Op::cuLinkAddData_v2, link, type, {}, 0, image).result;
      const bool is_host_file = type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY;
      EXPECT_EQ(result, type == CU_JIT_INPUT_PTX ? CUDA_ERROR_INVALID_PTX
                        : is_host_file           ? CUDA_ERROR_UNKNOWN
                                                 : CUDA_ERROR_INVALID_IMAGE);
    }
  }
  const WireHandle link = guest.NewLink();
  const Wrapper wrapper{0x466243B1, 1, 0x123456789000, 0};
  for (uint32_t type = 0; type <= CU_JIT_INPUT_NVVM; ++type)
    EXPECT_NE(guest.Link(Op::cuLinkAddData_v2, link, type, {}, 0, Pack(wrapper)).result, CUDA_SUCCESS);
  EXPECT_EQ(guest.HowItEnded(), "");
}

// What handlers written by hand take; the rows' own are tried one by one in protocol_test.
TEST(HostileValues, UnknownNumbersAreRefused) {
  HostileDaemon daemon;
  Attacker guest(daemon);
  ASSERT_TRUE(guest.Begin()) << guest.refusal();
  const WireHandle link = guest.NewLink();
  for (const uint32_t unknown : {99u, 0x7fffffffu, 0xffffffffu}) {
    const auto refused = [&](Op op, const Bytes& body) {
      const Answer answer = guest.Call(op, body);
      EXPECT_FALSE(answer.lost);
      EXPECT_NE(answer.result, CUDA_SUCCESS) << unknown << " to opcode " << static_cast<int>(op);
    };
    for (const Op op : {Op::cuCoredumpGetAttribute, Op::cuCoredumpGetAttributeGlobal}) {
      refused(op, Pack(CoredumpBody{unknown, 1, 8}));
    }
    for (const Op op : {Op::cuCoredumpSetAttribute, Op::cuCoredumpSetAttributeGlobal})
      refused(op, Pack(CoredumpBody{unknown, 1, 8}, uint64_t{1}));
    refused(Op::cuDeviceGetDevResource, Pack(GetDevResourceBody{0, 0, unknown}));
    refused(Op::cuMemAdvise_v2, Pack(ManagedHintBody{0x1000, 64, 1, 0, unknown, 0, 0}));
    refused(Op::cuMemPrefetchAsync_v2, Pack(ManagedHintBody{0x1000, 64, unknown, 0, 0, 0, 0}));
    refused(Op::cuMemRangeGetAttribute, Pack(RangeAttributeBody{0x1000, 64, unknown, 4}));
    TensorMapBody map{};
    map.rank = 1;
    map.data_type = unknown;
    refused(Op::cuTensorMapEncodeTiled, Pack(map));
    CreateContextBody create{};
    create.context = MakeWireHandle(HandleKind::kContext, 1, 50);
    create.flags = unknown | 0x100;  // beyond CU_CTX_FLAGS_MASK
    refused(Op::cuCtxCreate_v2, Pack(create));
    const Answer added = guest.Link(Op::cuLinkAddData_v2, link, unknown, {}, 0, AsBytes(kPtx));
    EXPECT_EQ(added.result, CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(guest.HowItEnded(), "");
}

// A driver that counts references in 32 bits would count back to nothing.
TEST(HostileValues, ReferencesToUserObjectsAreBounded) {
  HostileDaemon daemon;
  Attacker guest(daemon);
  ASSERT_TRUE(guest.Begin()) << guest.refusal();
  const WireHandle object = MakeWireHandle(HandleKind::kUserObject, 1, 77);
  const WireHandle graph = MakeWireHandle(HandleKind::kGraph, 1, 78);
  const WireHandle copy = MakeWireHandle(HandleKind::kGraph, 1, 79);
  constexpr uint32_t kMany = 0x3fffffff;
  EXPECT_TRUE(guest
                  .Call(Op::cuUserObjectCreate,
                        Pack(UserObjectBody{object, 1, kMany, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC}))
                  .ok());
  EXPECT_TRUE(guest.Call(Op::cuGraphCreate, Pack(graph, uint32_t{0})).ok());
  EXPECT_TRUE(guest.Call(Op::cuGraphRetainUserObject, Pack(graph, object, kMany, uint32_t{0})).ok());
  EXPECT_EQ(guest.Call(Op::cuGraphRetainUserObject, Pack(graph, object, kMany, uint32_t{0})).result,
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(guest.Call(Op::cuUserObjectRetain, Pack(object, kMany)).result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(guest.Call(Op::cuGraphClone, Pack(copy, graph)).result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(guest.Call(Op::cuUserObjectRelease, Pack(object, kMany)).ok());
  EXPECT_TRUE(guest.Call(Op::cuGraphClone, Pack(copy, graph)).ok());
}

TEST(HostileValues, UnknownLaunchAttributesAreRefused) {
  HostileDaemon daemon;
  Attacker guest(daemon);
  ASSERT_TRUE(guest.Begin()) << guest.refusal();
  Bytes image = AsBytes(kPtx);
  image.push_back(std::byte{0});
  ASSERT_TRUE(guest.Load(Op::cuModuleLoadDataEx, {}, 0, image).ok());
  const WireHandle module = MakeWireHandle(HandleKind::kModule, 1, 101);
  const WireHandle function = MakeWireHandle(HandleKind::kFunction, 1, 60);
  const Answer found =
      guest.Call(Op::cuModuleGetFunction, Pack(GetFunctionBody{module, function, 2}, 'f', '\0'));
  ASSERT_TRUE(found.ok());
  const auto launch = [&](uint32_t id, const CUlaunchAttributeValue& value) {
    LaunchBody body{function, 0, {1, 1, 1}, {1, 1, 1}, 0, 0, 1, kAttributeLaunch};
    CUlaunchAttribute attribute{};
    std::memcpy(&attribute.id, &id, sizeof id);
    attribute.value = value;
    return guest.Call(Op::cuLaunchKernelEx, Pack(body, attribute)).result;
  };
  CUlaunchAttributeValue value{};
  EXPECT_EQ(launch(CU_LAUNCH_ATTRIBUTE_IGNORE, value), CUDA_SUCCESS);
  for (const uint32_t id : {15u, 17u, 99u, 0x7fffffffu, 0xffffffffu})
    EXPECT_EQ(launch(id, value), CUDA_ERROR_INVALID_VALUE) << id;
  value.syncPolicy = static_cast<CUsynchronizationPolicy>(9);
  EXPECT_EQ(launch(CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, value), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(guest.HowItEnded(), "");
}

// Whether a number is an address of the worker's: mapped there, and neither device memory nor the window.
// Where nobody can read or write, nothing lies: the driver keeps such space for addresses of devices.
bool IsPrivate(HostileGuest& guest, uint64_t number, uint64_t device, uint64_t device_bytes) {
  if (number < 4096 || number - device < device_bytes || number - guest.window() < guest.region_bytes())
    return false;
  const Mapping mapping = guest.worker().MapAt(number);
  return mapping.end != 0 && !mapping.permissions.starts_with("---");
}

TEST(HostileValues, AnswersHoldNoAddressOfTheWorker) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's shadow takes up most of the address space: any number is an address";
#endif
  HostileDaemon daemon;
  Attacker guest(daemon);
  ASSERT_TRUE(guest.Begin()) << guest.refusal();
  constexpr uint64_t kBytes = 1 << 20;
  const uint64_t device = guest.AllocateDevice(kBytes);
  std::vector<Answer> answers;
  for (uint32_t attribute = 1; attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE; ++attribute)
    answers.push_back(guest.Call(Op::cuPointerGetAttribute, Pack(attribute, device)));
  answers.push_back(guest.Call(Op::cuDeviceGetDevResource, Pack(GetDevResourceBody{0, 0, 1})));
  const WireHandle graph = MakeWireHandle(HandleKind::kGraph, 1, 20);
  ASSERT_TRUE(guest.Call(Op::cuGraphCreate, Pack(graph, uint32_t{0})).ok());
  CUgraphNodeParams host{};
  host.type = CU_GRAPH_NODE_TYPE_HOST;
  host.host.userData = reinterpret_cast<void*>(uintptr_t{7});
  NodeBody body{};
  body.form = NodeForm::kTyped;
  body.node = MakeWireHandle(HandleKind::kGraphNode, 1, 21);
  body.owner = graph;
  ASSERT_TRUE(guest.Call(Op::cuGraphAddNode_v2, Pack(body, host)).ok());
  answers.push_back(
      guest.Call(Op::cuGraphKernelNodeGetParams_v2, Pack(GetNodeBody{body.node, host.type, 0, 0, 0})));
  for (const Answer& answer : answers) {
    for (size_t at = 0; at + 8 <= answer.body.size(); ++at) {
      const auto number = answer.Get<uint64_t>(at);
      EXPECT_FALSE(IsPrivate(guest, number, device, kBytes))
          << std::hex << number << ' ' << guest.worker().MapAt(number).permissions << ' '
          << guest.worker().MapAt(number).name;
    }
  }
  // Text: every hexadecimal number in it.
  const Answer dot = guest.Call(Op::cuGraphDebugDotPrint, Pack(DotBody{graph, 0, 0xffff, 0}));
  ASSERT_TRUE(dot.ok());
  const std::string text(reinterpret_cast<const char*>(dot.body.data()) + 8, dot.body.size() - 8);
  EXPECT_NE(text.find("digraph"), std::string::npos);
  for (size_t at = 0; at < text.size(); ++at) {
    if (std::isxdigit(static_cast<unsigned char>(text[at])) == 0) continue;
    const uint64_t number = std::strtoull(text.c_str() + at, nullptr, 16);
    EXPECT_FALSE(IsPrivate(guest, number, device, kBytes)) << text.substr(at, 24);
  }
}

TEST(HostileValues, DevicesThatReachPageableMemoryAreRefused) {
  for (const char* kind : {"1", "2"}) {
    if (!OnSoftwareGpu()) GTEST_SKIP() << "what a GPU reports is not the test's to choose";
    {
      HostileDaemon daemon({.environment = {{"SOFTWARE_GPU_PAGEABLE_ACCESS", kind}}});
      HostileGuest guest(daemon);
      EXPECT_FALSE(guest.Open());
      EXPECT_NE(guest.refusal().find("can access pageable memory"), std::string::npos) << guest.refusal();
      const char* cure = kind[0] == '1' ? "uvm_disable_hmm=1" : "cannot be switched off";
      EXPECT_NE(guest.refusal().find(cure), std::string::npos) << guest.refusal();
    }
    HostileDaemon daemon(
        {.more = "allow_pageable_access = true\n", .environment = {{"SOFTWARE_GPU_PAGEABLE_ACCESS", kind}}});
    HostileGuest guest(daemon);
    EXPECT_TRUE(guest.Open()) << guest.refusal();
    EXPECT_EQ(daemon.CountInLog("allow_pageable_access is set"), 1u);
  }
}

}  // namespace
}  // namespace causeway::test
