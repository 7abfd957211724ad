// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/sharing/image_hashing.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "host_backend/common/worker_control.h"

namespace causeway::daemon {
namespace {

constexpr size_t kPiece = 1 << 20;

// By reading: a page that was never written costs no memory so, and nothing can take it away.
bool Read(int file, uint64_t at, std::vector<char>& room, size_t bytes) {
  for (size_t got = 0; got < bytes;) {
    const ssize_t more = pread(file, room.data() + got, bytes - got, off_t(at + got));
    if (more <= 0) return false;
    got += size_t(more);
  }
  return true;
}

bool IsWhatWasStated(const ImageToHash& image, const std::atomic<bool>& stop) {
  std::vector<char> room(kPiece);
  ImageHasher hasher;
  for (uint64_t at = 0; at < image.bytes && !stop.load(); at += kPiece) {
    const size_t bytes = size_t(std::min<uint64_t>(kPiece, image.bytes - at));
    if (!Read(image.file.get(), at, room, bytes)) return false;
    hasher.Add(room.data(), bytes);
  }
  return hasher.Finish() == image.stated && Read(image.file.get(), image.bytes, room, kImagePadding) &&
         std::all_of(room.begin(), room.begin() + kImagePadding, [](char byte) { return byte == 0; });
}

}  // namespace

ImageHashing::ImageHashing(EventLoop& loop, uint64_t scope_bytes, Done done)
    : loop_(loop),
      scope_bytes_(scope_bytes),
      done_(std::move(done)),
      hashed_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  watch_ = loop_.Watch(hashed_.get(), EPOLLIN, "a hashed image", [this](uint32_t) { OnHashed(); });
}

ImageHashing::~ImageHashing() {
  stop_.store(true);
  {
    const std::lock_guard lock(mutex_);
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  loop_.Unwatch(watch_);
}

bool ImageHashing::Add(ImageToHash image) {
  const std::lock_guard lock(mutex_);
  Waiting& own = waiting_[image.scope];
  if (own.count >= kMostOfScope || own.bytes + image.bytes > scope_bytes_) return false;
  ++own.count;
  own.bytes += image.bytes;
  own.images.push_back(std::move(image));
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_one();
  return true;
}

void ImageHashing::Run() {
  // What a worker makes it do is not to take a processor from those that serve.
  setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 10);
  std::unique_lock lock(mutex_);
  const auto any = [this] {
    return std::any_of(waiting_.begin(), waiting_.end(),
                       [](const auto& own) { return !own.second.images.empty(); });
  };
  for (;;) {
    changed_.wait(lock, [&] { return stop_.load() || any(); });
    if (stop_.load()) return;
    auto next = waiting_.upper_bound(last_);
    for (;; ++next) {
      if (next == waiting_.end()) next = waiting_.begin();
      if (!next->second.images.empty()) break;
    }
    last_ = next->first;
    ImageToHash image = std::move(next->second.images.front());
    next->second.images.pop_front();
    lock.unlock();
    const bool true_hash = IsWhatWasStated(image, stop_);
    lock.lock();
    results_.emplace_back(std::move(image), true_hash);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t told = write(hashed_.get(), &one, sizeof one);
  }
}

void ImageHashing::OnHashed() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(hashed_.get(), &count, sizeof count);
  std::vector<std::pair<ImageToHash, bool>> results;
  {
    const std::lock_guard lock(mutex_);
    results.swap(results_);
    for (const auto& [image, true_hash] : results) {
      Waiting& own = waiting_[image.scope];
      own.bytes -= image.bytes;
      if (--own.count == 0) waiting_.erase(image.scope);
    }
  }
  for (auto& [image, true_hash] : results) done_(std::move(image), true_hash);
}

}  // namespace causeway::daemon
