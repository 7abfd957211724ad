// SPDX-License-Identifier: Apache-2.0
// The hashes of images that workers want kept, computed by the daemon itself: what a worker says of an image
// may be its guest's wish. A thread beside the event loop reads the files; scopes take turns, and one scope's
// images that wait are bounded by bytes and by number.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "ivshmem_ring/messages/image_hash.h"

namespace causeway::daemon {

struct ImageToHash {
  std::string scope;
  uint64_t session = 0;  // a number of the caller's
  ImageHash stated{};    // by the worker
  uint64_t bytes = 0;    // and kImagePadding zeros behind them
  WorkerFd file;         // sealed
};

class ImageHashing {
 public:
  static constexpr size_t kMostOfScope = 64;
  // On the loop's thread: whether the image is what was stated.
  using Done = std::function<void(ImageToHash image, bool true_hash)>;

  // `scope_bytes` wait of one scope at most.
  ImageHashing(EventLoop& loop, uint64_t scope_bytes, Done done);
  ~ImageHashing();
  ImageHashing(const ImageHashing&) = delete;
  ImageHashing& operator=(const ImageHashing&) = delete;

  // False: too many of its scope wait.
  bool Add(ImageToHash image);

 private:
  struct Waiting {
    std::deque<ImageToHash> images;
    uint64_t bytes = 0;
    size_t count = 0;  // with the one that is being read
  };
  void Run();
  void OnHashed();

  EventLoop& loop_;
  const uint64_t scope_bytes_;
  const Done done_;
  UniqueFd hashed_;  // eventfd
  EventLoop::WatchId watch_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Waiting> waiting_;
  std::string last_;  // the scope whose image was hashed last
  std::vector<std::pair<ImageToHash, bool>> results_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // from the first image on
};

}  // namespace causeway::daemon
