// SPDX-License-Identifier: Apache-2.0
// The hashes of images that workers want kept, computed by the daemon itself, because a worker that was taken
// over may lie about them. A thread beside the event loop reads the files. Scopes take turns, and the images
// of one scope that wait are bounded by bytes and by number.
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
  uint64_t session = 0;  // a number that means something to the caller only
  ImageHash stated{};    // the hash as the worker stated it
  uint64_t bytes = 0;    // of the image, which kImagePadding zeros follow
  WorkerFd file;         // a sealed memory file
};

class ImageHashing {
 public:
  static constexpr size_t kMostOfScope = 64;
  // Called by the event loop's thread, with whether the image has the stated hash.
  using Done = std::function<void(ImageToHash image, bool true_hash)>;

  // At most `scope_bytes` of one scope wait. The event loop's thread makes the object and calls Add.
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
