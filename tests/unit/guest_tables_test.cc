// SPDX-License-Identifier: Apache-2.0
// cuGetExportTable: which tables there are, their sizes, and what their slots answer; cuGetErrorName and
// cuGetErrorString.
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "guest_lib/runtime/integrity.h"
#include "ivshmem_ring/protocol/driver_api.h"
#include "tests/unit/fake_guest_state.h"

namespace causeway::guest {
namespace {

using test::Guest;
using test::PrimaryOf;

constexpr char kRuntime[] = "6bd5fb6c5bf4e74a8987d93912fd9df9";
constexpr char kHooks[] = "a094798c2e742e7493f20800200c0a66";
constexpr char kThreadState[] = "42d85a8123f6cb478298f6e78a3aecdc";
constexpr char kStorage[] = "c693336e1121df11a8c368f355d89593";
constexpr char kChecks[] = "263e88607cd2614392f6bbd5006dfa7e";
constexpr char kIntegrity[] = "d4082055bde6704b8d34ba123c66e1f2";
constexpr char kLogSink[] = "f8cff95121468b4eb9e2fb469e7c0dd9";
constexpr char kIdentities[] = "21318c60971432488ca641ff7324c8f2";
constexpr char kModules[] = "6e163fbeb958444d835ce182aff1991e";
constexpr char kCluster[] = "1734dc26800d47458726c0f1e7dd8bca";
constexpr char kCompileCache[] = "da9151d33ae6cc41a5c04f26d533e328";
constexpr char kDevice[] = "b10541e1f7c7c74a9f64f223be99f1e2";
constexpr char kCreation[] = "0ca50b8c1004929a89a7d0df10e77286";

CUuuid Uuid(const std::string& hex) {
  CUuuid uuid{};
  for (size_t i = 0; i < 16; ++i)
    uuid.bytes[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return uuid;
}

void* const* FindTable(const char* hex) {
  const CUuuid uuid = Uuid(hex);
  const void* table = nullptr;
  EXPECT_EQ(cuGetExportTable(&table, &uuid), CUDA_SUCCESS) << hex;
  return static_cast<void* const*>(table);
}

// Calls a slot with the arguments' own types, as a client does that knows them.
template <typename... Args>
int Call(const char* hex, size_t slot, Args... args) {
  return reinterpret_cast<int (*)(Args...)>(FindTable(hex)[slot])(args...);
}

class GuestTables : public testing::Test {
 protected:
  void SetUp() override {
    test::ResetGuest();
    Guest().initialised = true;
  }
};

TEST_F(GuestTables, SizesOfThe580Driver) {
  Guest().initialised = false;  // the tables are there before cuInit
  for (const auto& [hex, slots] : std::vector<std::pair<const char*, size_t>>{{kRuntime, 13},
                                                                              {kHooks, 7},
                                                                              {kThreadState, 3},
                                                                              {kChecks, 15},
                                                                              {kIntegrity, 3},
                                                                              {kLogSink, 3},
                                                                              {kIdentities, 93},
                                                                              {kModules, 99},
                                                                              {kCluster, 17},
                                                                              {kCompileCache, 7},
                                                                              {kDevice, 31},
                                                                              {kCreation, 2}}) {
    void* const* const table = FindTable(hex);
    EXPECT_EQ(reinterpret_cast<size_t>(table[0]), slots * 8) << hex;
    for (size_t slot = 1; slot < slots; ++slot) EXPECT_NE(table[slot], nullptr) << hex << " " << slot;
    EXPECT_EQ(table, FindTable(hex)) << "the address enters the integrity value";
  }
  for (size_t slot = 0; slot < 3; ++slot) EXPECT_NE(FindTable(kStorage)[slot], nullptr);
}

TEST_F(GuestTables, UnknownTables) {
  for (const char* hex : {"69a28e9f24498b47b030c5da330ea4e9", "00000000000000000000000000000000",
                          "6bd5fb6c5bf4e74a8987d93912fd9df8"}) {
    const CUuuid uuid = Uuid(hex);
    const void* table = &uuid;
    EXPECT_EQ(cuGetExportTable(&table, &uuid), CUDA_ERROR_INVALID_VALUE) << hex;
    EXPECT_EQ(table, nullptr) << hex;
  }
  const CUuuid uuid = Uuid(kRuntime);
  const void* table = nullptr;
  EXPECT_EQ(cuGetExportTable(nullptr, &uuid), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetExportTable(&table, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GuestTables, UnusedSlots) {
  for (const size_t slot : {3, 4, 5, 9, 10, 11}) EXPECT_EQ(Call(kRuntime, slot), CUDA_ERROR_NOT_SUPPORTED);
  for (const size_t slot : {1, 4, 13, 16}) EXPECT_EQ(Call(kCluster, slot), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Call(kIdentities, 92), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Call(kRuntime, 12), CUDA_SUCCESS);
  EXPECT_EQ(Call(kLogSink, 1, "CUDA", 1, "format", nullptr), CUDA_SUCCESS);
}

TEST_F(GuestTables, PrimaryContext) {
  CUcontext context = nullptr;
  EXPECT_EQ(Call(kRuntime, 2, &context, 1), CUDA_SUCCESS);
  EXPECT_EQ(context, PrimaryOf(1));
  EXPECT_EQ(Call(kRuntime, 2, &context, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(Call(kRuntime, 2, &context, -1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(context, PrimaryOf(1));
  Guest().initialised = false;
  EXPECT_EQ(Call(kRuntime, 2, &context, 0), CUDA_ERROR_NOT_INITIALIZED);
}

struct Fatbin {
  uint32_t magic = 0xba55ed50;
  uint16_t version = 1;
  uint16_t header_bytes = 16;
  uint64_t entries_bytes = 32;
  std::array<char, 32> entries{};
};

struct Wrapper {
  uint32_t magic = 0x466243b1;
  uint32_t version = 1;
  const void* fatbin = nullptr;
  const void* const* inputs = nullptr;
};

TEST_F(GuestTables, LoadsWhatIsInsideTheWrapper) {
  const Fatbin fatbin;
  Wrapper wrapper{.fatbin = &fatbin};
  CUmodule module = nullptr;
  EXPECT_EQ(Call(kRuntime, 1, &module, &wrapper), CUDA_SUCCESS);
  EXPECT_EQ(Guest().loaded_image, &fatbin);
  const char* names[] = {"a", "b"};
  void* addresses[] = {nullptr, nullptr};
  EXPECT_EQ(Call(kRuntime, 6, &module, &wrapper, names, addresses, 0u), CUDA_SUCCESS);
  EXPECT_EQ(Call(kRuntime, 6, &module, &wrapper, names, addresses, 2u), CUDA_SUCCESS);
  EXPECT_EQ(Call(kRuntime, 8, &fatbin, &module, names, addresses, 2u), CUDA_SUCCESS);
  EXPECT_EQ(Call(kRuntime, 7, module), CUDA_SUCCESS);
  EXPECT_EQ(Guest().module_calls, (std::vector<std::string>{"load", "load", "load with 2 symbols",
                                                            "load with 2 symbols", "unload"}));

  Guest().module_calls.clear();
  EXPECT_EQ(Call(kRuntime, 1, &module, &fatbin), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(Call(kRuntime, 8, &wrapper, &module, names, addresses, 0u), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(Call(kRuntime, 1, &module, static_cast<Wrapper*>(nullptr)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(Guest().module_calls.empty());
}

TEST_F(GuestTables, LoadsALinkedWrapperAsALibrary) {
  const Fatbin first;
  const Fatbin second{.entries_bytes = 8};
  const Fatbin empty{.entries_bytes = 0};
  const void* inputs[] = {&first, &second, nullptr};
  const Wrapper wrapper{.version = 2, .fatbin = &empty, .inputs = inputs};
  CUmodule module = nullptr;
  EXPECT_EQ(Call(kRuntime, 1, &module, &wrapper), CUDA_SUCCESS);
  EXPECT_EQ(Guest().loaded_image, &wrapper);
  EXPECT_EQ(Call(kRuntime, 7, module), CUDA_SUCCESS);
  EXPECT_EQ(Guest().module_calls,
            (std::vector<std::string>{"library with 0 options", "module of a library", "unload library"}));
  Guest().module_calls.clear();
  const char* names[] = {"a", "b"};
  void* addresses[] = {nullptr, nullptr};
  EXPECT_EQ(Call(kRuntime, 6, &module, &wrapper, names, addresses, 2u), CUDA_SUCCESS);
  EXPECT_EQ(Guest().module_calls,
            (std::vector<std::string>{"library with 3 options", "module of a library"}));
}

TEST_F(GuestTables, CallbackFlagsAreLongAndZero) {
  for (const auto& [slot, least] : {std::pair{2, 4096}, {6, 14}}) {
    int* flags = nullptr;
    size_t count = 0;
    EXPECT_EQ(Call(kHooks, static_cast<size_t>(slot), &flags, &count), CUDA_SUCCESS);
    ASSERT_GE(count, static_cast<size_t>(least));
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(flags[i], 0);
  }
}

TEST_F(GuestTables, ThreadStateAndChecks) {
  CUcontext context = PrimaryOf(1);
  int flag = 9;
  EXPECT_EQ(Call(kThreadState, 2, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(Call(kChecks, 2, nullptr, &flag, &context), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(flag, 9);

  SwapCurrentContext(PrimaryOf(0));
  EXPECT_EQ(Call(kThreadState, 2, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, PrimaryOf(0));
  CUcontext other = PrimaryOf(1);
  EXPECT_EQ(Call(kChecks, 2, PrimaryOf(0), &flag, &other), CUDA_SUCCESS);
  EXPECT_EQ(flag, 0);
  EXPECT_EQ(other, PrimaryOf(1));
  EXPECT_EQ(Call(kChecks, 3), 0);

  Guest().initialised = false;
  EXPECT_EQ(Call(kThreadState, 2, &context), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(Call(kChecks, 2, nullptr, &flag, &other), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(Call(kChecks, 3), 0);
}

uint64_t StreamIdentity(CUcontext context, CUstream stream, int zero_is_per_thread) {
  void* object = nullptr;
  uint64_t id = 0;
  EXPECT_EQ(Call(kIdentities, 51, context, stream, &object, zero_is_per_thread), CUDA_SUCCESS);
  EXPECT_NE(object, nullptr);
  EXPECT_EQ(Call(kIdentities, 39, context, object, &id), CUDA_SUCCESS);
  return id;
}

TEST_F(GuestTables, ContextAndStreamIdentities) {
  const auto stream = reinterpret_cast<CUstream>(0x5000);
  Guest().streams[stream] = 42;
  SwapCurrentContext(PrimaryOf(0));
  uint64_t id = 0;
  EXPECT_EQ(Call(kIdentities, 4, PrimaryOf(1), &id), CUDA_SUCCESS);
  EXPECT_EQ(id, 2u);

  EXPECT_EQ(StreamIdentity(PrimaryOf(0), nullptr, 0), 1000u);
  EXPECT_EQ(StreamIdentity(PrimaryOf(0), nullptr, 1), 1001u);
  for (const int zero_is_per_thread : {0, 1}) {
    EXPECT_EQ(StreamIdentity(PrimaryOf(0), CU_STREAM_LEGACY, zero_is_per_thread), 1000u);
    EXPECT_EQ(StreamIdentity(PrimaryOf(0), CU_STREAM_PER_THREAD, zero_is_per_thread), 1001u);
    EXPECT_EQ(StreamIdentity(PrimaryOf(0), stream, zero_is_per_thread), 42u);
  }
  EXPECT_EQ(StreamIdentity(PrimaryOf(1), nullptr, 0), 2000u)
      << "the legacy stream of the context that is named";
  EXPECT_EQ(CurrentContext(), PrimaryOf(0));

  void* object = nullptr;
  EXPECT_EQ(Call(kIdentities, 51, PrimaryOf(0), uintptr_t(-1), &object, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Call(kIdentities, 51, uintptr_t{0x5}, stream, &object, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(object, nullptr);
}

TEST_F(GuestTables, VisitsTheFunctionsOfAModule) {
  SwapCurrentContext(PrimaryOf(0));
  Guest().functions_in_module = 3;
  std::vector<CUfunction> seen;
  const auto visit = +[](void* user, CUfunction function, void*) {
    static_cast<std::vector<CUfunction>*>(user)->push_back(function);
  };
  EXPECT_EQ(Call(kModules, 7, PrimaryOf(0), uintptr_t{0x77}, visit, static_cast<void*>(&seen)), 1);
  EXPECT_EQ(seen.size(), 3u);
}

TEST_F(GuestTables, DeviceForwarders) {
  size_t value[2] = {7, 7};
  EXPECT_EQ(Call(kDevice, 5, 1, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0, +value), CUDA_SUCCESS);
  EXPECT_EQ(value[0], 0x42u);
  uint8_t flag = 9;
  EXPECT_EQ(Call(kDevice, 13, &flag, 0), CUDA_SUCCESS);
  EXPECT_EQ(flag, 0);
}

TEST_F(GuestTables, IntegrityOfTheTablesHandedOut) {
  Md2Digest value{};
  ASSERT_EQ(Call(kIntegrity, 1, 13002u, uint64_t{1234567890}, value.data()), CUDA_SUCCESS);
  const IntegrityInput input = {
      .driver_version = 13000,
      .version = 13002,
      .process_id = static_cast<uint32_t>(getpid()),
      .thread_low = static_cast<uint32_t>(pthread_self()),
      .runtime_table = reinterpret_cast<uintptr_t>(FindTable(kRuntime)),
      .integrity_table = reinterpret_cast<uintptr_t>(FindTable(kIntegrity)),
      .integrity_function = reinterpret_cast<uintptr_t>(FindTable(kIntegrity)[1]),
      .time_s = 1234567890,
  };
  EXPECT_EQ(value, IntegrityValue(input, Guest().devices));
  Guest().initialised = false;
  EXPECT_EQ(Call(kIntegrity, 1, 13002u, uint64_t{1}, value.data()), CUDA_ERROR_NOT_INITIALIZED);
}

TEST(ErrorStrings, KnownAndUnknown) {
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "an illegal memory access was encountered");
  EXPECT_EQ(cuGetErrorString(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
  text = "x";
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(-1), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(cuGetErrorName(CUDA_SUCCESS, nullptr), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::guest
