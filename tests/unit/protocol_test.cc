// SPDX-License-Identifier: Apache-2.0
// Every row that has directions, through the code that both sides use: what the driver sees is what the
// program passed, what the program gets is what the driver gave, and no bytes from the other side can do
// harm.
#include <gtest/gtest.h>

#include "tests/unit/array_probes.h"
#include "tests/unit/protocol_probes.h"

namespace causeway::test {
namespace {

// What the driver double was told to do and what it saw.
struct DriverLog {
  Bench* bench = nullptr;
  CUresult result = CUDA_SUCCESS;
  int calls = 0;
  Bytes inputs;
  Bytes outputs;
};
DriverLog* g_log = nullptr;

// One row with one set of arguments, in a session of its own.
class Trial {
 public:
  explicit Trial(uint64_t seed)
      : guest([this](Reader& r, Writer& w) { return Serve(r, w); }), bench(guest, host, seed) {
    log.bench = &bench;
    g_log = &log;
  }
  virtual ~Trial() = default;
  virtual CUresult Run(Op op, bool posted) = 0;      // the guest's side, which serves itself
  virtual CUresult Serve(Reader& r, Writer& w) = 0;  // the host's side
  virtual Bytes Inputs() const = 0;
  virtual Bytes Outputs() const = 0;
  virtual void ClearArguments() = 0;
  virtual bool drops() const = 0;
  // How many of the parameters are enums or flags from the guest; one of them gets a value, chosen by
  // `which`, that cuda.h does not name.
  virtual size_t Listed() const = 0;
  virtual void MakeUnknown(size_t listed, uint64_t which) = 0;

  MockHost host;
  MockGuest guest;
  Bench bench;
  DriverLog log;
};

template <class RowShapeType>
class RowTrial;
template <class... P, class... D>
class RowTrial<Shape<CUresult (*)(P...), D...>> final : public Trial {
 public:
  using TheShape = Shape<CUresult (*)(P...), D...>;
  using Args = std::tuple<P...>;

  explicit RowTrial(uint64_t seed) : Trial(seed) { MakeAll(std::index_sequence_for<P...>{}); }
  CUresult Run(Op op, bool posted) override { return Run(op, posted, std::index_sequence_for<P...>{}); }
  CUresult Serve(Reader& r, Writer& w) override { return TheShape::Serve(host, &Driver, r, w); }
  Bytes Inputs() const override { return Inputs(std::index_sequence_for<P...>{}); }
  Bytes Outputs() const override { return Outputs(std::index_sequence_for<P...>{}); }
  void ClearArguments() override { args_ = Args{}; }
  size_t Listed() const override { return Listed(std::index_sequence_for<P...>{}); }
  void MakeUnknown(size_t listed, uint64_t which) override {
    MakeUnknown(listed, which, std::index_sequence_for<P...>{});
  }
  bool drops() const override {
    return ((std::is_same_v<D, Drop> || std::is_same_v<D, DropAllocation>) || ...);
  }

 private:
  // Reads and writes all that its arguments promise, so that ASan sees a buffer that is too small.
  static CUresult Driver(P... p) {
    const Args args{p...};
    ++g_log->calls;
    (Probe<D>::Inputs(g_log->inputs, p, args, View{}), ...);
    if (g_log->result != CUDA_SUCCESS) return g_log->result;
    (Probe<D>::Fill(*g_log->bench, p, args), ...);
    (Probe<D>::Outputs(g_log->outputs, p, args, View{}), ...);
    return CUDA_SUCCESS;
  }
  template <class T, class Direction>
  struct IsFlags : std::false_type {};
  template <class T, uint64_t known>
  struct IsFlags<T, Flags<known>> : std::true_type {
    static constexpr uint64_t kKnown = known;
  };
  template <size_t I>
  using DirectionOf = std::tuple_element_t<I, std::tuple<D...>>;
  template <size_t I>
  static constexpr bool IsListed() {
    using T = std::tuple_element_t<I, Args>;
    return IsFlags<T, DirectionOf<I>>::value || (std::is_enum_v<T> && std::is_same_v<DirectionOf<I>, In>);
  }
  template <size_t... I>
  size_t Listed(std::index_sequence<I...>) const {
    return (size_t{0} + ... + (IsListed<I>() ? 1 : 0));
  }
  template <size_t I>
  void MakeOneUnknown(uint64_t which) {
    using T = std::tuple_element_t<I, Args>;
    using F = IsFlags<T, DirectionOf<I>>;
    T& value = std::get<I>(args_);
    if constexpr (F::value) {
      uint64_t bit = 0;
      for (bit = which % (8 * sizeof(T)); (F::kKnown >> bit & 1) != 0;) bit = (bit + 1) % (8 * sizeof(T));
      value = static_cast<T>(value | T{1} << bit);
    } else if constexpr (IsListed<I>()) {
      uint32_t number = which == 0 ? 0xffffffff : which == 1 ? 0x7fffffff : static_cast<uint32_t>(which - 2);
      T known;
      while (TakeKnown(number, &known) == CUDA_SUCCESS) ++number;
      std::memcpy(&value, &number, sizeof value);
    }
  }
  template <size_t... I>
  void MakeUnknown([[maybe_unused]] size_t listed, [[maybe_unused]] uint64_t which,
                   std::index_sequence<I...>) {
    [[maybe_unused]] size_t at = 0;
    (
        [&] {
          if (IsListed<I>() && at++ == listed) MakeOneUnknown<I>(which);
        }(),
        ...);
  }
  template <size_t... I>
  void MakeAll(std::index_sequence<I...>) {
    (Probe<D>::template Make<I>(bench, std::get<I>(args_), args_), ...);
  }
  template <size_t... I>
  CUresult Run(Op op, [[maybe_unused]] bool posted, std::index_sequence<I...>) {
    if constexpr ((!D::kReplies && ...)) {
      if (posted) return TheShape::Post(guest, op, std::get<I>(args_)...);
    }
    return TheShape::Wait(guest, op, std::get<I>(args_)...);
  }
  template <size_t... I>
  Bytes Inputs(std::index_sequence<I...>) const {
    Bytes bytes;
    (Probe<D>::Inputs(bytes, std::get<I>(args_), args_, View{&host}), ...);
    return bytes;
  }
  template <size_t... I>
  Bytes Outputs(std::index_sequence<I...>) const {
    Bytes bytes;
    (Probe<D>::Outputs(bytes, std::get<I>(args_), args_, View{&host}), ...);
    return bytes;
  }

  Args args_{};
};

struct Row {
  const char* name;
  std::unique_ptr<Trial> (*make)(uint64_t seed);
  Op op;
  bool posted;

  CUresult Run(Trial& trial) const { return trial.Run(op, posted); }
};
template <class RowShapeType>
std::unique_ptr<Trial> MakeTrial(uint64_t seed) {
  return std::make_unique<RowTrial<RowShapeType>>(seed);
}

constexpr Row kRows[] = {
#define ROW(fn, posted) {#fn, &MakeTrial<RowShape<Op::fn>>, Op::fn, posted},
#define CALL(fn, ...) ROW(fn, false)
#define GUEST(fn, ...) ROW(fn, true)  // where nothing comes back
#include "ivshmem_ring/calls.def"
#undef ROW
};

TEST(Protocol, EveryRowCarriesItsParameters) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const auto trial = row.make(seed);
      const Bytes sent = trial->Inputs();
      const size_t bound = trial->host.table.size();
      ASSERT_EQ(row.Run(*trial), CUDA_SUCCESS);
      EXPECT_EQ(trial->log.calls, 1);
      EXPECT_EQ(trial->log.inputs, sent);
      EXPECT_EQ(trial->log.outputs, trial->Outputs());
      for (const WireHandle wire : trial->guest.live) EXPECT_TRUE(trial->host.table.contains(wire));
      if (trial->drops()) {
        EXPECT_EQ(trial->host.table.size(), bound - 1);
      }
    }
  }
}

TEST(Protocol, FailedCallsLeaveNoHandles) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const auto trial = row.make(seed);
      trial->log.result = CUDA_ERROR_OUT_OF_MEMORY;
      const std::set<WireHandle> before = trial->guest.live;
      const std::map<WireHandle, void*> bound = trial->host.table;
      EXPECT_EQ(row.Run(*trial), CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_EQ(trial->guest.live, before);
      EXPECT_EQ(trial->host.table, bound);
    }
  }
}

TEST(Protocol, NullArgumentsAreNeverFollowed) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    const auto trial = row.make(1);
    trial->ClearArguments();
    trial->log.result = CUDA_ERROR_INVALID_VALUE;  // what a driver says to the nulls that it gets to see
    const CUresult result = row.Run(*trial);
    if (trial->log.calls == 0) {
      EXPECT_NE(result, CUDA_SUCCESS);
    }
  }
}

// A request's own block of memory, so that reading past its end is seen.
CUresult ServeBytes(Trial& trial, std::span<const std::byte> request) {
  const Bytes exact(request.begin(), request.end());
  Bytes space(4096);
  Reader r(exact);
  Writer w(space);
  return trial.Serve(r, w);
}

TEST(Protocol, CutRequestsAreRefused) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const auto whole = row.make(seed);
      ASSERT_EQ(row.Run(*whole), CUDA_SUCCESS);
      const std::span<const std::byte> request(whole->guest.request);
      for (size_t length = 0; length < request.size(); ++length) {
        const auto trial = row.make(seed);
        EXPECT_NE(ServeBytes(*trial, request.first(length)), CUDA_SUCCESS) << "cut at " << length;
        EXPECT_EQ(trial->log.calls, 0);
      }
    }
  }
}

TEST(Protocol, PoisonedRequestsDoNoHarm) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    const auto whole = row.make(1);
    ASSERT_EQ(row.Run(*whole), CUDA_SUCCESS);
    for (uint64_t round = 0; round < 100 && !whole->guest.request.empty(); ++round) {
      Bytes poisoned = whole->guest.request;
      const auto trial = row.make(round);
      for (uint64_t changes = 1 + trial->bench.Below(8); changes > 0; --changes) {
        poisoned[trial->bench.Below(poisoned.size())] = static_cast<std::byte>(trial->bench.Number());
      }
      (void)ServeBytes(*trial, poisoned);  // refused or passed on; ASan and the driver double judge
    }
  }
}

// A driver gets no value that cuda.h does not name, whatever the guest's side of the row thinks of it.
TEST(Protocol, UnknownValuesNeverReachTheDriver) {
  size_t tried = 0;
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    const size_t listed = row.make(1)->Listed();
    for (size_t parameter = 0; parameter < listed; ++parameter) {
      for (uint64_t which = 0; which < 66; ++which) {
        const auto trial = row.make(which + 1);
        trial->MakeUnknown(parameter, which);
        EXPECT_NE(row.Run(*trial), CUDA_SUCCESS) << "parameter " << parameter << ", value " << which;
        EXPECT_EQ(trial->log.calls, 0);
        ++tried;
      }
    }
  }
  EXPECT_GE(tried, 77 * 66u);  // as many parameters, and none forgotten by a change of the rows
}

TEST(Protocol, CutRepliesAreNoticed) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    const auto whole = row.make(1);
    ASSERT_EQ(row.Run(*whole), CUDA_SUCCESS);
    for (size_t length = 0; length < whole->guest.reply.size(); ++length) {
      const auto trial = row.make(1);
      trial->guest.reply_limit = length;
      EXPECT_EQ(row.Run(*trial), CUDA_ERROR_UNKNOWN) << "cut at " << length;
    }
  }
}

// An older name and the one it stands for must agree in every parameter, or the forwarding would misread
// them.
TEST(Protocol, ForwardedNamesHaveTheSameParameters) {
#define ALIAS(fn, target) static_assert(std::is_same_v<decltype(&::fn), decltype(&::target)>, #fn);
#define PER_THREAD(fn, target) ALIAS(fn, target)
#define REFUSE(fn, why) static_assert(sizeof(why) > 8, #fn " needs a reason");
#include "ivshmem_ring/calls.def"
}

TEST(Protocol, WritersAndReadersAreBoundedAndSticky) {
  std::byte space[8];
  Writer w(space);
  w.Put(uint32_t{7});
  w.Put(uint64_t{8});  // does not fit
  EXPECT_EQ(w.error(), CUDA_ERROR_INVALID_VALUE);
  w.Put(uint8_t{9});  // would fit, but the cursor has failed
  EXPECT_EQ(w.size(), 4u);
  Reader r(std::span<const std::byte>(space, 4));
  EXPECT_EQ(r.Get<uint32_t>(), 7u);
  EXPECT_EQ(r.Get<uint8_t>(), 0u);
  r.Fail(CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(r.error(), CUDA_ERROR_INVALID_VALUE) << "the first error wins";
}

// Memory that the guest could not reach, and pointers that mean nothing on this side.
TEST(Protocol, TheHostAdmitsNoSharedMemory) {
  CUmemLocation host_memory{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  EXPECT_EQ(Admit(host_memory), CUDA_ERROR_NOT_SUPPORTED);
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.win32HandleMetaData = &prop;
  EXPECT_EQ(Admit(prop), CUDA_SUCCESS);
  EXPECT_EQ(prop.win32HandleMetaData, nullptr);
  prop.type = CU_MEM_ALLOCATION_TYPE_MANAGED;
  EXPECT_EQ(Admit(prop), CUDA_ERROR_NOT_SUPPORTED);
  CUmemPoolProps pool{};
  pool.location.type = CU_MEM_LOCATION_TYPE_HOST;
  EXPECT_EQ(Admit(pool), CUDA_ERROR_NOT_SUPPORTED);
}

// A launch attribute with an event inside must not reach the driver as bytes.
TEST(Protocol, AttributesWithHandlesStayBehind) {
  using S = RowShape<Op::cuStreamSetAttribute>;
  MockHost host;
  MockGuest guest([&](Reader& r, Writer& w) { return S::Serve(host, nullptr, r, w); });
  CUlaunchAttributeValue value{};
  EXPECT_EQ(
      S::Wait(guest, Op::cuStreamSetAttribute, nullptr, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, &value),
      CUDA_ERROR_INVALID_VALUE);
  Bytes forged;  // what a guest that does not check would send
  AppendValue(forged, WireHandle{0});
  AppendValue(forged, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
  AppendValue(forged, value);
  Bytes reply(64);
  Reader r(forged);
  Writer w(reply);
  const auto never = +[](CUstream, CUstreamAttrID, const CUstreamAttrValue*) -> CUresult { std::abort(); };
  EXPECT_EQ(S::Serve(host, never, r, w), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::test
