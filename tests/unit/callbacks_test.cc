// SPDX-License-Identifier: Apache-2.0
// The worker's half of host callbacks: the driver's thread blocks as long as the guest's function runs, and
// no longer than the session lives, whatever the guest says.
#include "host_backend/worker/stream/callbacks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace causeway::host {
namespace {

AwaitCallbackBody Request(uint64_t done_ticket, bool wait) {
  return {done_ticket, wait ? kMostCallbackWaitMs : 0u, 0};
}

TEST(CallbacksTest, TheDriverWaitsForTheGuest) {
  Callbacks callbacks;
  std::atomic<bool> returned{false};
  std::thread driver([&] {
    callbacks.Run(7, CUDA_ERROR_LAUNCH_FAILED);
    returned.store(true);
  });
  const DueCallback due = callbacks.Await(Request(0, true));
  EXPECT_EQ(due.id, 7u);
  EXPECT_EQ(due.status, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_NE(due.ticket, 0u);
  // Tickets of others, or of nobody, end nothing.
  callbacks.Await(Request(due.ticket + 1, false));
  callbacks.Await(Request(0, false));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(returned.load());
  callbacks.Await(Request(due.ticket, false));
  driver.join();
  callbacks.Await(Request(due.ticket, false));  // twice
}

TEST(CallbacksTest, AnnouncementsBlockNobody) {
  Callbacks callbacks;
  callbacks.Announce({3, 99, 0, 1, 5});
  callbacks.Announce({0, 0, 0, 0, 0});  // no function
  const DueCallback due = callbacks.Await(Request(0, true));
  EXPECT_EQ(due.id, 3u);
  EXPECT_EQ(due.ticket, 0u);
  EXPECT_EQ(due.detail, 5u);
}

TEST(CallbacksTest, StoppingReleasesAll) {
  Callbacks callbacks;
  std::vector<std::thread> threads;
  for (uint64_t id = 1; id <= 4; ++id) threads.emplace_back([&, id] { callbacks.Run(id, CUDA_SUCCESS); });
  threads.emplace_back([&] {
    while (callbacks.Await(Request(0, true)).id != 0) {
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  callbacks.Stop();
  for (std::thread& thread : threads) thread.join();
  callbacks.Run(9, CUDA_SUCCESS);  // later ones return at once
  EXPECT_EQ(callbacks.Await(Request(0, true)).id, 0u);
}

// The driver may call when the session is long gone.
TEST(CallbacksTest, WithoutASessionNothingRuns) {
  SetCurrentCallbacks(nullptr);
  RunHostFunction(CallbackUserData(5));
  RunStreamCallback(nullptr, CUDA_SUCCESS, CallbackUserData(5));
  AnnounceDestructor(CallbackUserData(5));
  const auto callbacks = std::make_shared<Callbacks>();
  SetCurrentCallbacks(callbacks);
  AnnounceDestructor(CallbackUserData(6));
  EXPECT_EQ(callbacks->Await(Request(0, true)).id, 6u);
  callbacks->Stop();
  RunHostFunction(CallbackUserData(5));
  SetCurrentCallbacks(nullptr);
}

}  // namespace
}  // namespace causeway::host
