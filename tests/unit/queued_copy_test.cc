// SPDX-License-Identifier: Apache-2.0
// Queued copies belong to the context that their request has entered, whatever its number names meanwhile.
#include "host_backend/worker/staging/queued_copy.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <thread>

#include "host_backend/worker/driver/driver.h"
#include "tests/silent_transport.h"

namespace causeway::host {
namespace {

constexpr WireHandle kContext = MakeWireHandle(HandleKind::kContext, 1, 1);
const auto kFirst = reinterpret_cast<CUcontext>(0x10), kSecond = reinterpret_cast<CUcontext>(0x20);

// The driver's, though it has one for each thread: the test sets it where it goes on with another thread.
CUcontext current = nullptr;
std::set<CUcontext> asked;  // contexts whose streams the driver was asked about

class QueuedCopyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Driver& driver = DriverToFill();
    driver.cuCtxSetCurrent = [](CUcontext context) { return current = context, CUDA_SUCCESS; };
    driver.cuCtxGetCurrent = [](CUcontext* context) { return *context = current, CUDA_SUCCESS; };
    driver.cuCtxGetDevice = [](CUdevice* device) { return *device = 0, CUDA_SUCCESS; };
    // A stream is the address of its context, plus one.
    driver.cuStreamCreate = [](CUstream* stream, unsigned) {
      *stream = reinterpret_cast<CUstream>(reinterpret_cast<uintptr_t>(current) + 1);
      return CUDA_SUCCESS;
    };
    driver.cuEventCreate = [](CUevent* event, unsigned) {
      *event = reinterpret_cast<CUevent>(0x30);
      return CUDA_SUCCESS;
    };
    driver.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return CUDA_SUCCESS; };
    driver.cuStreamBatchMemOp_v2 = [](CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned) {
      return CUDA_SUCCESS;
    };
    driver.cuStreamWriteValue64_v2 = [](CUstream, CUdeviceptr, cuuint64_t, unsigned) { return CUDA_SUCCESS; };
    driver.cuStreamQuery = [](CUstream stream) {
      asked.insert(reinterpret_cast<CUcontext>(reinterpret_cast<uintptr_t>(stream) - 1));
      return CUDA_SUCCESS;
    };
  }

  QueuedCopyTest() { session_.Own(std::make_shared<CopyQueues>()); }

  void Bind(CUcontext context) {
    objects().BeginRequest();
    EXPECT_EQ(objects().Enter(RecordPrefix{}), CUDA_SUCCESS);
    Writer out(space_);
    objects().Bind(HandleKind::kContext, kContext, context, out);
    EXPECT_TRUE(out.ok());
    objects().EndRequest();
  }
  void End() {
    objects().BeginRequest();
    EXPECT_EQ(objects().Enter(RecordPrefix{}), CUDA_SUCCESS);
    Reader in{std::span<const std::byte>()};
    const void* value = objects().ToEnd(HandleKind::kContext, kContext, in);
    EXPECT_EQ(objects().End(HandleKind::kContext, kContext, value, [] { return CUDA_SUCCESS; }),
              CUDA_SUCCESS);
    objects().EndRequest();
  }
  void MakeQueue(CUcontext context) {
    current = context;
    CopyQueue queue;
    ASSERT_EQ(session_.part<CopyQueues>().Get(context, true, &queue), CUDA_SUCCESS);
  }
  Objects& objects() { return session_.objects(); }

  Session session_{std::make_unique<test::SilentTransport>(false), {}};
  std::array<std::byte, 64> space_{};
};

TEST_F(QueuedCopyTest, TheContextIsTheOneThatTheRequestHasEntered) {
  MakeQueue(kFirst);
  MakeQueue(kSecond);
  current = nullptr;
  Bind(kFirst);
  objects().BeginRequest();
  RecordPrefix header{};
  header.op = static_cast<uint16_t>(Op::kQueuedCopy);
  header.context = kContext;
  ASSERT_EQ(objects().Enter(header), CUDA_SUCCESS);
  EXPECT_EQ(current, kFirst);
  std::thread([&] {  // another thread of the guest
    End();
    Bind(kSecond);
  })
      .join();
  current = kFirst;  // the driver's is each thread's own
  QueuedCopyBody body{};
  body.to_device = 1;
  Reader in(std::as_bytes(std::span(&body, 1)));
  Writer out(space_);
  Request request{header, in, out, 0, {}};
  EXPECT_EQ(Serve_kQueuedCopy(session_, request), CUDA_SUCCESS);
  EXPECT_EQ(asked, std::set<CUcontext>{kFirst});
  objects().Leave(CUDA_SUCCESS);
  objects().EndRequest();
}

}  // namespace
}  // namespace causeway::host
