// SPDX-License-Identifier: Apache-2.0
// Several channels of one session make, use and end the same objects at random. NVIDIA's driver crashes when
// an object ends under a call that uses it; the software GPU aborts then (SOFTWARE_GPU_STRICT_HANDLES). The
// worker must do neither, and the session must be usable afterwards. CAUSEWAY_HOSTILE_SEED repeats a run,
// CAUSEWAY_HOSTILE_ROUNDS makes it longer; CAUSEWAY_HOSTILE_CHANNELS=1 and CAUSEWAY_HOSTILE_STEPS=0,2,5 (of the steps that a
// test lists) narrow a finding down.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/graph_messages.h"
#include "ivshmem_ring/messages/sharing_messages.h"
#include "ivshmem_ring/protocol/operation.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

constexpr uint32_t kChannels = 4;
constexpr uint64_t kRoomOfChannel = 64u << 10;
constexpr char kPtx[] =
    ".version 6.3\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 g[64];\n"
    ".visible .entry f() { ret; }\n";

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// The steps that CAUSEWAY_HOSTILE_STEPS names by their places in the list; without it all.
template <typename Step>
std::vector<Step> Chosen(const std::vector<Step>& all) {
  const char* text = std::getenv("CAUSEWAY_HOSTILE_STEPS");
  if (text == nullptr) return all;
  std::vector<Step> chosen;
  std::istringstream places(text);
  for (std::string place; std::getline(places, place, ',');) chosen.push_back(all.at(std::stoul(place)));
  return chosen;
}

// One channel's thread.
class Player {
 public:
  Player(HostileGuest& guest, uint32_t channel, uint64_t seed)
      : guest_(guest), channel_(channel), random_(seed + channel), context(guest.primary()) {}

  uint32_t Any(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  // One of the few numbers of a kind that all share; seldom of another kind, which is refused.
  WireHandle Some(HandleKind kind, uint32_t below = 3) {
    if (Any(64) == 0) kind = static_cast<HandleKind>(1 + Any(static_cast<uint32_t>(HandleKind::kCount) - 1));
    return MakeWireHandle(kind, 1, 100 * static_cast<uint32_t>(kind) + Any(below));
  }
  CUresult Ask(Op op, const Bytes& body) { return Ask(op, body, 0); }
  // Calls with the image as bulk buffer.
  CUresult AskWithImage(Op op, const Bytes& body) {
    Bytes blob = Pack(ImageHeader{kImageMagic, 1}, uint64_t{sizeof kPtx});
    blob.resize(ImageAligned(blob.size()));
    const auto* text = reinterpret_cast<const std::byte*>(kPtx);
    blob.insert(blob.end(), text, text + sizeof kPtx);
    return AskWith(op, body, blob);
  }
  CUresult AskWith(Op op, const Bytes& body, const Bytes& blob) {
    const uint64_t at = guest_.first_slice() + channel_ * kRoomOfChannel;
    std::memcpy(guest_.base() + at, blob.data(), blob.size());
    return Ask(op, body, static_cast<uint32_t>(blob.size()));
  }
  bool lost() const { return lost_; }
  // What it asked for last, for a reader of a failure.
  std::string Last() const {
    std::string text = "channel " + std::to_string(channel_) + ":";
    for (uint64_t i = asked_ > kKept ? asked_ - kKept : 0; i < asked_; ++i)
      text += std::string(" ") + OpName(static_cast<uint16_t>(last_[i % kKept]));
    return text + "\n";
  }
  uint64_t succeeded() const { return succeeded_; }
  const Bytes& reply() const { return reply_; }

 private:
  CUresult Ask(Op op, const Bytes& body, uint32_t bulk_bytes) {
    last_[asked_++ % kKept] = op;
    RecordHeader header{};
    header.op = static_cast<uint16_t>(op);
    header.context = context;
    header.bulk_offset = bulk_bytes != 0 ? guest_.first_slice() + channel_ * kRoomOfChannel : 0;
    header.bulk_bytes = bulk_bytes;
    std::byte* record =
        lost_ ? nullptr : guest_.transport().ReserveRequest(channel_, sizeof header + body.size());
    if (record == nullptr) return lost_ = true, CUDA_ERROR_UNKNOWN;
    PutHeader(record, header);
    std::memcpy(record + sizeof header, body.data(), body.size());
    guest_.transport().PublishRequest(channel_, sizeof header + body.size());
    const Answer answer = guest_.Await(channel_);
    lost_ = answer.lost;
    reply_ = answer.body;
    succeeded_ += answer.ok();
    return static_cast<CUresult>(answer.result);
  }

  HostileGuest& guest_;
  const uint32_t channel_;
  std::mt19937_64 random_;
  Bytes reply_;
  bool lost_ = false;
  uint64_t succeeded_ = 0;
  static constexpr uint64_t kKept = 12;
  Op last_[kKept]{};
  uint64_t asked_ = 0;

 public:
  WireHandle context;  // of the next messages
};

using Step = std::function<void(Player&)>;

class HostileHandles : public testing::Test {
 protected:
  void TearDown() override { unlink(misuse_.c_str()); }
  void SetUp() override {
    ASSERT_TRUE(guest_.Open()) << guest_.refusal();
    guest_.RetainPrimary();
    guest_.AddArena(guest_.first_slice(), 2 << 20);
    for (uint32_t channel = 1; channel < kChannels; ++channel) guest_.OpenChannel(channel);
  }

  // Each channel makes that many steps, each of a random sort.
  void Play(const std::vector<Step>& all, uint64_t rounds = 1500) {
    const std::vector<Step> steps = Chosen(all);
    const uint64_t seed = FromEnvironment("CAUSEWAY_HOSTILE_SEED", std::random_device{}());
    rounds = FromEnvironment("CAUSEWAY_HOSTILE_ROUNDS", rounds);
    std::cout << "CAUSEWAY_HOSTILE_SEED=" << seed << "\n";
    std::vector<std::unique_ptr<Player>> players;
    std::vector<std::thread> threads;
    const uint64_t channels = FromEnvironment("CAUSEWAY_HOSTILE_CHANNELS", kChannels);
    for (uint32_t channel = 0; channel < channels; ++channel)
      players.push_back(std::make_unique<Player>(guest_, channel, seed));
    // Contexts take NVIDIA's driver a second each: what is not made by then is left out.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::atomic<uint64_t> made = 0;
    for (const auto& player : players) {
      threads.emplace_back([&steps, &made, rounds, end, &player = *player] {
        for (uint64_t i = 0; i < rounds && !player.lost() && std::chrono::steady_clock::now() < end;
             ++i, ++made)
          steps[player.Any(static_cast<uint32_t>(steps.size()))](player);
      });
    }
    for (std::thread& thread : threads) thread.join();
    uint64_t succeeded = 0;
    for (const auto& player : players) {
      EXPECT_FALSE(player->lost());
      succeeded += player->succeeded();
    }
    EXPECT_GT(succeeded, made / kChannels / 4);  // else nothing was tried
    std::string last;
    for (const auto& player : players) last += player->Last();
    EXPECT_EQ(guest_.HowItEnded(), "") << last << daemon_.Log();
    std::ifstream misuse(misuse_);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(misuse), {}), "");
    // What follows is served as ever.
    Player after(guest_, 0, seed);
    for (uint32_t i = 0; i < 3; ++i) {  // what is still captured
      const WireHandle stream =
          MakeWireHandle(HandleKind::kStream, 1, 100 * static_cast<uint32_t>(HandleKind::kStream) + i);
      const WireHandle graph =
          MakeWireHandle(HandleKind::kGraph, 1, 100 * static_cast<uint32_t>(HandleKind::kGraph) + i);
      after.Ask(Op::cuStreamEndCapture, Pack(stream, graph, graph));
    }
    const WireHandle event = MakeWireHandle(HandleKind::kEvent, 7, 50);
    if (!primary_is_at_stake_) {
      EXPECT_EQ(after.Ask(Op::cuEventCreate, Pack(event, uint32_t{0})), CUDA_SUCCESS);
      EXPECT_EQ(after.Ask(Op::cuEventRecord, Pack(event, WireHandle{0})), CUDA_SUCCESS);
      EXPECT_EQ(after.Ask(Op::cuEventSynchronize, Pack(event)), CUDA_SUCCESS);
      if (!is_captured_) {
        EXPECT_EQ(after.Ask(Op::cuCtxSynchronize, {}), CUDA_SUCCESS);
      }
      EXPECT_EQ(after.Ask(Op::cuEventDestroy_v2, Pack(event)), CUDA_SUCCESS);
      EXPECT_EQ(after.Ask(Op::cuEventQuery, Pack(event)), CUDA_ERROR_INVALID_HANDLE);
    }
  }

  // Made before the worker is confined, which then may write to it and to nothing beside.
  static std::string MakeMisuseFile() {
    std::string path = testing::TempDir() + "misuse_of_handles." + std::to_string(getpid());
    std::ofstream file(path);
    chmod(path.c_str(), 0666);
    return path;
  }
  const std::string misuse_ = MakeMisuseFile();
  HostileDaemon daemon_{
      {.environment = {{"SOFTWARE_GPU_STRICT_HANDLES", "1"}, {"SOFTWARE_GPU_MISUSE_FILE", misuse_}}}};
  HostileGuest guest_{daemon_};
  bool primary_is_at_stake_ = false;
  bool is_captured_ = false;  // a stream that was destroyed meanwhile may have left its capture
};

constexpr auto kStream = HandleKind::kStream;
constexpr auto kEvent = HandleKind::kEvent;
constexpr auto kGraph = HandleKind::kGraph;
constexpr auto kNode = HandleKind::kGraphNode;
constexpr auto kExec = HandleKind::kGraphExec;
constexpr auto kModule = HandleKind::kModule;
constexpr auto kFunction = HandleKind::kFunction;
constexpr auto kLibrary = HandleKind::kLibrary;

Step Named(Op op, HandleKind kind) {
  return [op, kind](Player& p) { p.Ask(op, Pack(p.Some(kind))); };
}
Step Named(Op op, HandleKind first, HandleKind second) {
  return [op, first, second](Player& p) { p.Ask(op, Pack(p.Some(first), p.Some(second))); };
}
// Those that must come before others: more often than chance.
std::vector<Step> Often(const Step& step, std::vector<Step> others, size_t times = 3) {
  others.insert(others.end(), times, step);
  return others;
}

Step MakeStream() {
  return [](Player& p) { p.Ask(Op::cuStreamCreate, Pack(p.Some(kStream), uint32_t{1})); };
}
Step MakeEvent() {
  return [](Player& p) { p.Ask(Op::cuEventCreate, Pack(p.Some(kEvent), uint32_t{2})); };
}
Step LoadCode(Op op, HandleKind kind) {
  return [op, kind](Player& p) {
    LoadBody body{};
    body.handle = p.Some(kind);
    p.AskWithImage(op, Pack(body));
  };
}
Step GetCode(Op op, HandleKind owner) {
  return [op, owner](Player& p) {
    Bytes body = Pack(GetFunctionBody{p.Some(owner), p.Some(kFunction), 2});
    Append(body, std::array<char, 2>{'f', 0});
    p.Ask(op, body);
  };
}
Step Launch(HandleKind stream = HandleKind::kNone) {
  return [stream](Player& p) {
    LaunchBody body{};
    body.function = p.Some(kFunction);
    body.stream = stream != HandleKind::kNone ? p.Some(stream) : 0;
    body.grid[0] = body.grid[1] = body.grid[2] = body.block[0] = body.block[1] = body.block[2] = 1;
    p.Ask(Op::cuLaunchKernelEx, Pack(body));
  };
}

TEST_F(HostileHandles, Streams) {
  Play(Often(MakeStream(), {Named(Op::cuStreamDestroy_v2, kStream), Named(Op::cuStreamQuery, kStream),
                            Named(Op::cuStreamSynchronize, kStream), Named(Op::cuStreamQuery, kStream)}));
}

TEST_F(HostileHandles, Events) {
  const Step record = [](Player& p) { p.Ask(Op::cuEventRecord, Pack(p.Some(kEvent), p.Some(kStream))); };
  const Step wait = [](Player& p) {
    p.Ask(Op::cuStreamWaitEvent, Pack(p.Some(kStream), p.Some(kEvent), uint32_t{0}));
  };
  Play(Often(MakeEvent(), {MakeStream(), Named(Op::cuEventDestroy_v2, kEvent), record, wait,
                           Named(Op::cuEventQuery, kEvent), Named(Op::cuEventSynchronize, kEvent),
                           Named(Op::cuStreamDestroy_v2, kStream)}));
}

std::vector<Step> GraphSteps() {
  const auto nothing = uint64_t{0};
  return {
      [](Player& p) { p.Ask(Op::cuGraphCreate, Pack(p.Some(kGraph), uint32_t{0})); },
      [=](Player& p) {
        p.Ask(Op::cuGraphAddEmptyNode, Pack(p.Some(kNode, 6), p.Some(kGraph), nothing, nothing));
      },
      [=](Player& p) {
        p.Ask(Op::cuGraphAddEmptyNode,
              Pack(p.Some(kNode, 6), p.Some(kGraph), uint64_t{1}, p.Some(kNode, 6), uint64_t{1}));
      },
      [=](Player& p) {
        p.Ask(Op::cuGraphAddChildGraphNode,
              Pack(p.Some(kNode, 6), p.Some(kGraph), nothing, nothing, p.Some(kGraph)));
      },
      [](Player& p) { p.Ask(Op::cuGraphChildGraphNodeGetGraph, Pack(p.Some(kNode, 6), p.Some(kGraph))); },
      [](Player& p) {
        ListBody body{};
        body.subject = p.Some(kGraph);
        body.room = 3;
        body.wants_first = 1;
        p.Ask(Op::cuGraphGetNodes, Pack(body, p.Some(kNode, 6), p.Some(kNode, 6), p.Some(kNode, 6)));
      },
      [](Player& p) {
        InstantiateBody body{};
        body.exec = p.Some(kExec);
        body.graph = p.Some(kGraph);
        body.error_node = p.Some(kNode, 6);
        p.Ask(Op::cuGraphInstantiateWithParams, Pack(body));
      },
      [](Player& p) {
        p.Ask(Op::cuGraphExecUpdate_v2,
              Pack(UpdateBody{p.Some(kExec), p.Some(kGraph), p.Some(kNode, 6), p.Some(kNode, 6), 0, 0}));
      },
      [](Player& p) { p.Ask(Op::cuGraphLaunch, Pack(p.Some(kExec), WireHandle{0})); },
      Named(Op::cuGraphClone, kGraph, kGraph),
      Named(Op::cuGraphDestroy, kGraph),
      Named(Op::cuGraphExecDestroy, kExec),
      [](Player& p) { p.Ask(Op::cuGraphDestroyNode, Pack(p.Some(kNode, 6))); },
      [](Player& p) { p.Ask(Op::cuGraphNodeGetType, Pack(p.Some(kNode, 6))); },
  };
}

TEST_F(HostileHandles, GraphsAndTheirNodes) {
  Play(GraphSteps(), 3000);
}

// Graphs remember events and functions, which end before them.
TEST_F(HostileHandles, WhatGraphsRemember) {
  std::vector<Step> steps = GraphSteps();
  for (const Step& step : std::vector<Step>{
           MakeEvent(), Named(Op::cuEventDestroy_v2, kEvent), LoadCode(Op::cuModuleLoadDataEx, kModule),
           Named(Op::cuModuleUnload, kModule), GetCode(Op::cuModuleGetFunction, kModule),
           [](Player& p) {
             p.Ask(Op::cuGraphAddEventRecordNode,
                   Pack(p.Some(kNode, 6), p.Some(kGraph), uint64_t{0}, uint64_t{0}, p.Some(kEvent)));
           },
           [](Player& p) {
             p.Ask(Op::cuGraphEventRecordNodeGetEvent, Pack(p.Some(kNode, 6), p.Some(kEvent)));
           },
           [](Player& p) {
             NodeBody body{};
             body.node = p.Some(kNode, 6);
             body.owner = p.Some(kGraph);
             CUgraphNodeParams params{};
             params.type = CU_GRAPH_NODE_TYPE_KERNEL;
             const WireHandle function = p.Some(kFunction);
             std::memcpy(&params.kernel.func, &function, sizeof function);
             params.kernel.gridDimX = params.kernel.gridDimY = params.kernel.gridDimZ = 1;
             params.kernel.blockDimX = params.kernel.blockDimY = params.kernel.blockDimZ = 1;
             p.Ask(Op::cuGraphAddNode_v2, Pack(body, params));
           },
           [](Player& p) {
             p.Ask(Op::cuGraphKernelNodeGetParams_v2,
                   Pack(GetNodeBody{p.Some(kNode, 6), CU_GRAPH_NODE_TYPE_KERNEL, 0, p.Some(kFunction),
                                    p.Some(kFunction)}));
           }})
    steps.push_back(step);
  Play(steps, 3000);
}

TEST_F(HostileHandles, ModulesAndTheirFunctions) {
  const Step attribute = [](Player& p) {
    p.Ask(Op::cuFuncGetAttribute, Pack(CU_FUNC_ATTRIBUTE_NUM_REGS, p.Some(kFunction)));
  };
  Play(Often(GetCode(Op::cuModuleGetFunction, kModule),
             {LoadCode(Op::cuModuleLoadDataEx, kModule), LoadCode(Op::cuModuleLoadDataEx, kModule),
              Named(Op::cuModuleUnload, kModule), Launch(), Launch(), attribute,
              Named(Op::cuFuncGetModule, kModule, kFunction)}),
       800);
}

TEST_F(HostileHandles, LibrariesAndTheirKernels) {
  const Step function_of = [](Player& p) {
    p.Ask(Op::cuKernelGetFunction, Pack(GetFunctionBody{p.Some(kFunction), p.Some(kFunction), 0}));
  };
  Play(Often(GetCode(Op::cuLibraryGetKernel, kLibrary),
             {LoadCode(Op::cuLibraryLoadData, kLibrary), LoadCode(Op::cuLibraryLoadData, kLibrary),
              Named(Op::cuLibraryUnload, kLibrary), Launch(), function_of, function_of,
              Named(Op::cuLibraryGetModule, kModule, kLibrary), Named(Op::cuModuleUnload, kModule),
              GetCode(Op::cuModuleGetFunction, kModule)}),
       800);
}

Step InContext(const Step& step) {
  return [step](Player& p) {
    p.context = p.Some(HandleKind::kContext, 2);
    step(p);
    p.context = MakeWireHandle(HandleKind::kContext, 1, 1);
  };
}
constexpr auto kContext = HandleKind::kContext;

TEST_F(HostileHandles, ContextsAndWhatIsInThem) {
  const Step make = [](Player& p) {
    CreateContextBody body{};
    body.context = p.Some(kContext, 2);
    body.form = 2;
    p.Ask(Op::cuCtxCreate_v2, Pack(body));
  };
  const Step end = [](Player& p) { p.Ask(Op::cuCtxDestroy_v2, Pack(p.Some(kContext, 2))); };
  const Step synchronize = [](Player& p) { p.Ask(Op::cuCtxSynchronize_v2, Pack(p.Some(kContext, 2))); };
  Play({make, make, end, synchronize, InContext(MakeStream()), InContext(MakeEvent()),
        InContext(Named(Op::cuStreamQuery, kStream)), Named(Op::cuStreamQuery, kStream),
        InContext([](Player& p) { p.Ask(Op::cuCtxSynchronize, {}); }), Named(Op::cuEventQuery, kEvent),
        InContext(LoadCode(Op::cuModuleLoadDataEx, kModule)), GetCode(Op::cuModuleGetFunction, kModule),
        InContext(Launch()), InContext(Named(Op::cuEventDestroy_v2, kEvent)),
        Named(Op::cuStreamDestroy_v2, kStream)},
       400);
}

TEST_F(HostileHandles, PrimaryContexts) {
  struct Primary {
    int32_t device = 0;
    uint32_t reserved = 0;
    WireHandle context;
  };
  primary_is_at_stake_ = true;
  const auto primary = [](Op op) {
    return [op](Player& p) {
      const WireHandle context = MakeWireHandle(HandleKind::kContext, 1, 1 + p.Any(8) / 7);
      p.context = 0;
      p.Ask(op, Pack(Primary{.context = context}));
      p.context = MakeWireHandle(HandleKind::kContext, 1, 1);
    };
  };
  Play({primary(Op::cuDevicePrimaryCtxRetain), primary(Op::cuDevicePrimaryCtxRetain),
        primary(Op::cuDevicePrimaryCtxRelease_v2), primary(Op::cuDevicePrimaryCtxReset_v2), MakeStream(),
        MakeEvent(), Named(Op::cuStreamQuery, kStream), Named(Op::cuEventQuery, kEvent),
        Named(Op::cuStreamDestroy_v2, kStream), LoadCode(Op::cuModuleLoadDataEx, kModule),
        GetCode(Op::cuModuleGetFunction, kModule), Launch()},
       400);
}

TEST_F(HostileHandles, ArraysAndTheirLevels) {
  constexpr auto kArray = HandleKind::kArray;
  constexpr auto kMipmap = HandleKind::kMipmappedArray;
  constexpr auto kReference = HandleKind::kTextureReference;
  CUDA_ARRAY_DESCRIPTOR flat{32, 32, CU_AD_FORMAT_FLOAT, 1};
  CUDA_ARRAY3D_DESCRIPTOR layered{32, 32, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  const Step level = [=](Player& p) {
    p.Ask(Op::cuMipmappedArrayGetLevel, Pack(p.Some(kArray), p.Some(kMipmap), uint32_t{p.Any(3)}));
  };
  Play(
      {[=](Player& p) { p.Ask(Op::cuArrayCreate_v2, Pack(p.Some(kArray), flat)); },
       [=](Player& p) { p.Ask(Op::cuMipmappedArrayCreate, Pack(p.Some(kMipmap), layered, uint32_t{3})); },
       level, level, Named(Op::cuArrayDestroy, kArray), Named(Op::cuMipmappedArrayDestroy, kMipmap),
       Named(Op::cuArrayGetDescriptor_v2, kArray), Named(Op::cuArray3DGetDescriptor_v2, kArray),
       Named(Op::cuTexRefCreate, kReference), Named(Op::cuTexRefDestroy, kReference),
       [=](Player& p) { p.Ask(Op::cuTexRefSetArray, Pack(p.Some(kReference), p.Some(kArray), uint32_t{1})); },
       Named(Op::cuTexRefGetArray, kArray, kReference)});
}

TEST_F(HostileHandles, Pools) {
  constexpr auto kPool = HandleKind::kMemoryPool;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  Play({[=](Player& p) { p.Ask(Op::cuMemPoolCreate, Pack(p.Some(kPool), properties)); },
        Named(Op::cuMemPoolDestroy, kPool),
        [=](Player& p) {
          if (p.Ask(Op::cuMemAllocFromPoolAsync, Pack(uint64_t{4096}, p.Some(kPool), WireHandle{0})) == 0) {
            uint64_t address = 0;
            std::memcpy(&address, p.reply().data(), std::min(sizeof address, p.reply().size()));
            p.Ask(Op::cuMemFreeAsync, Pack(address, WireHandle{0}));
          }
        },
        [=](Player& p) {
          p.Ask(Op::cuMemPoolGetAttribute, Pack(p.Some(kPool), CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
        },
        [=](Player& p) { p.Ask(Op::cuMemPoolTrimTo, Pack(p.Some(kPool), uint64_t{0})); }});
}

// The context that stands for a green one ends with it, and all that is in that.
TEST_F(HostileHandles, GreenContexts) {
  constexpr auto kGreen = HandleKind::kGreenContext;
  constexpr auto kDescription = HandleKind::kResourceDescriptor;
  const auto number = std::make_shared<std::atomic<uint64_t>>(0);
  const Step make = [=](Player& p) {
    if (number->load() == 0 &&
        p.Ask(Op::cuDeviceGetDevResource, Pack(GetDevResourceBody{0, 0, CU_DEV_RESOURCE_TYPE_SM})) == 0) {
      DevResourceReply reply{};
      std::memcpy(&reply, p.reply().data(), std::min(sizeof reply, p.reply().size()));
      number->store(reply.number);
    }
    const WireHandle description = p.Some(kDescription);
    p.Ask(Op::cuDevResourceGenerateDesc, Pack(GenerateDescriptionBody{description, 1, 0}, number->load()));
    p.Ask(Op::cuGreenCtxCreate,
          Pack(p.Some(kGreen), description, CUdevice{0}, uint32_t{CU_GREEN_CTX_DEFAULT_STREAM}));
  };
  Play({make, make, Named(Op::cuGreenCtxDestroy, kGreen), Named(Op::cuCtxFromGreenCtx, kContext, kGreen),
        Named(Op::cuCtxFromGreenCtx, kContext, kGreen), InContext(MakeStream()), InContext(MakeEvent()),
        [=](Player& p) {
          p.Ask(Op::cuGreenCtxStreamCreate, Pack(p.Some(kStream), p.Some(kGreen), uint32_t{1}, int32_t{0}));
        },
        [=](Player& p) { p.Ask(Op::cuGreenCtxRecordEvent, Pack(p.Some(kGreen), p.Some(kEvent))); },
        InContext(Named(Op::cuStreamQuery, kStream)), Named(Op::cuStreamQuery, kStream),
        InContext([](Player& p) { p.Ask(Op::cuCtxSynchronize, {}); }), Named(Op::cuEventQuery, kEvent),
        Named(Op::cuStreamDestroy_v2, kStream), Named(Op::cuEventDestroy_v2, kEvent)},
       400);
}

// The last reference ends an object without a call that says so.
TEST_F(HostileHandles, UserObjects) {
  constexpr auto kObject = HandleKind::kUserObject;
  const auto count = [](Op op) {
    return [op](Player& p) { p.Ask(op, Pack(p.Some(kObject), uint32_t{1 + p.Any(2)})); };
  };
  const Step make = [](Player& p) {
    p.Ask(Op::cuUserObjectCreate, Pack(UserObjectBody{p.Some(kObject), p.Any(1000), 1 + p.Any(2),
                                                      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC}));
  };
  const Step retain = [](Player& p) {
    p.Ask(Op::cuGraphRetainUserObject,
          Pack(p.Some(kGraph), p.Some(kObject), uint32_t{1}, uint32_t{p.Any(2)}));
  };
  const Step release = [](Player& p) {
    p.Ask(Op::cuGraphReleaseUserObject, Pack(p.Some(kGraph), p.Some(kObject), uint32_t{1}));
  };
  std::vector<Step> steps = GraphSteps();
  for (const Step& step :
       std::vector<Step>{make, count(Op::cuUserObjectRetain), count(Op::cuUserObjectRelease),
                         count(Op::cuUserObjectRelease), retain, release})
    steps.insert(steps.end(), 3, step);
  Play(steps, 3000);
}

TEST_F(HostileHandles, Allocations) {
  constexpr auto kAllocation = HandleKind::kAllocation;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  Play({[=](Player& p) {
          p.Ask(Op::cuMemCreate, Pack(p.Some(kAllocation), uint64_t{2 << 20}, properties, uint64_t{0}));
        },
        Named(Op::cuMemRelease, kAllocation),
        Named(Op::cuMemGetAllocationPropertiesFromHandle, kAllocation)});
}

TEST_F(HostileHandles, Links) {
  constexpr auto kLink = HandleKind::kLink;
  const auto link = [=](Op op) {
    return [=](Player& p) {
      LinkBody body{};
      body.link = p.Some(kLink);
      p.AskWith(op, Pack(body), Bytes{});
    };
  };
  const Step add = [=](Player& p) {
    LinkBody body{};
    body.link = p.Some(kLink);
    body.input_type = CU_JIT_INPUT_PTX;
    body.data_bytes = sizeof kPtx;
    const auto* text = reinterpret_cast<const std::byte*>(kPtx);
    p.AskWith(Op::cuLinkAddData_v2, Pack(body), Bytes(text, text + sizeof kPtx));
  };
  Play({link(Op::cuLinkCreate_v2), add, add, link(Op::cuLinkComplete), link(Op::cuLinkDestroy)}, 800);
}

TEST_F(HostileHandles, Captures) {
  const Step info = [](Player& p) {
    CaptureBody body{};
    body.stream = p.Some(kStream);
    body.graph = p.Some(kGraph);
    body.room = 1;
    body.wants_dependencies = 1;
    body.form = 2;
    p.Ask(Op::cuStreamGetCaptureInfo_v2, Pack(body, p.Some(kNode, 6)));
  };
  is_captured_ = true;
  std::vector<Step> steps = GraphSteps();
  for (const Step& step : std::vector<Step>{
           MakeStream(), MakeEvent(), info, info, Launch(kStream), LoadCode(Op::cuModuleLoadDataEx, kModule),
           GetCode(Op::cuModuleGetFunction, kModule), Named(Op::cuModuleUnload, kModule),
           Named(Op::cuStreamDestroy_v2, kStream), Named(Op::cuEventDestroy_v2, kEvent),
           [](Player& p) {
             p.Ask(Op::cuStreamBeginCapture_v2, Pack(p.Some(kStream), CU_STREAM_CAPTURE_MODE_RELAXED));
           },
           [](Player& p) {
             p.Ask(Op::cuStreamBeginCaptureToGraph,
                   Pack(p.Some(kStream), p.Some(kGraph), uint64_t{0}, uint8_t{0}, uint64_t{0},
                        CU_STREAM_CAPTURE_MODE_RELAXED));
           },
           [](Player& p) {
             p.Ask(Op::cuStreamEndCapture, Pack(p.Some(kStream), p.Some(kGraph), p.Some(kGraph)));
           },
           [](Player& p) { p.Ask(Op::cuEventRecord, Pack(p.Some(kEvent), p.Some(kStream))); },
           [](Player& p) {
             p.Ask(Op::cuStreamWaitEvent, Pack(p.Some(kStream), p.Some(kEvent), uint32_t{0}));
           }})
    steps.insert(steps.end(), 2, step);
  Play(steps, 3000);
}

}  // namespace
}  // namespace causeway::test
