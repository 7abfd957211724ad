// SPDX-License-Identifier: Apache-2.0
// Things that threads hand to another one without a lock: a thread that loses its processor at the wrong
// moment keeps none of the others waiting.
#pragma once
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

namespace causeway::daemon {

template <class Thing>
class HandOff {
 public:
  HandOff() = default;
  ~HandOff() { TakeAll(); }
  HandOff(const HandOff&) = delete;
  HandOff& operator=(const HandOff&) = delete;

  // Any thread.
  void Put(Thing thing) {
    auto* node = new Node{std::move(thing), last_.load(std::memory_order_relaxed)};
    while (!last_.compare_exchange_weak(node->before, node, std::memory_order_release,
                                        std::memory_order_relaxed)) {
    }
    last_.notify_one();
  }

  // In the order in which they came; none, where there are none. One thread at a time.
  std::vector<Thing> TakeAll() {
    std::vector<Thing> things;
    for (Node* node = last_.exchange(nullptr, std::memory_order_acquire); node != nullptr;) {
      things.push_back(std::move(node->thing));
      delete std::exchange(node, node->before);
    }
    std::reverse(things.begin(), things.end());
    return things;
  }

  // Waits until there are some.
  std::vector<Thing> AwaitAll() {
    last_.wait(nullptr);
    return TakeAll();
  }

 private:
  struct Node {
    Thing thing;
    Node* before;
  };
  std::atomic<Node*> last_{nullptr};
};

}  // namespace causeway::daemon
