// SPDX-License-Identifier: Apache-2.0
// Gets another socket for a connection that has lost its own: the one thread that waits for that, on either side. It is started with
// the first loss.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "ivshmem_ring/tcp/frame_reader.h"
#include "ivshmem_ring/tcp/stream_layer.h"
#include "ivshmem_ring/tcp/tcp_connection.h"

namespace causeway {

// A socket for the same session. It is closed by the destructor unless it is taken.
struct FreshSocket {
  FreshSocket() = default;
  ~FreshSocket();
  FreshSocket(const FreshSocket&) = delete;
  FreshSocket& operator=(const FreshSocket&) = delete;
  int fd = -1;
  std::unique_ptr<StreamLayer> layer;
  uint64_t peer_received = 0;  // as ResumeRequest and ResumeGreeting have it
};

// Where it comes from. One thread calls Get, any thread Stop.
class SocketSource {
 public:
  enum class Got { kSocket, kNothing, kOver };
  virtual ~SocketSource() = default;
  // This side has received so many bytes. Waits until there is a socket, or until `until_us` (NowUs) and a few seconds more at most.
  // kNothing: it did not come off, because of *why. kOver: it never will, because of *why.
  virtual Got Get(uint64_t received, uint64_t until_us, FreshSocket* fresh, std::string* why) = 0;
  // Ends every Get, now and later.
  virtual void Stop() = 0;
};

class LinkKeeper {
 public:
  // All outlive this object. `over` is called by the keeper's thread when the session is over: no socket came within `grace_s` after
  // a loss, or none ever will. `again` is called after each that came.
  struct Terms {
    uint32_t grace_s = 0;
    SocketSource* source = nullptr;
    std::function<void(const std::string& why)> over;
    std::function<void()> again = [] {};
  };
  LinkKeeper(TcpConnection& connection, FrameReader& reader, Terms terms)
      : connection_(connection), reader_(reader), terms_(std::move(terms)) {}
  // The connection is over by then.
  ~LinkKeeper();

  // The connection has been lost. Empty, or a sentence: there is no thread. Any thread.
  std::string Start();
  // In a forked child, where the thread does not exist.
  void Abandon();

 private:
  void Run();
  // False: the session is over.
  bool GoOn(uint64_t received, uint64_t until_us);

  TcpConnection& connection_;
  FrameReader& reader_;
  const Terms terms_;
  std::mutex mutex_;  // of the next two
  std::thread thread_;
  bool stopped_ = false;
};

// The guest's source: dials again, at once and then after pauses that grow, but no more than a while.
class Redial final : public SocketSource {
 public:
  // One attempt, bounded in time. The numbers are those of ResumeRequest.
  using Dial = std::function<Got(uint64_t attempt, uint64_t received, FreshSocket* fresh, std::string* why)>;
  explicit Redial(Dial dial) : dial_(std::move(dial)) {}
  Got Get(uint64_t received, uint64_t until_us, FreshSocket* fresh, std::string* why) override;
  void Stop() override;

 private:
  // False: it was stopped.
  bool Pause(uint64_t us);

  const Dial dial_;
  uint64_t attempt_ = 0;  // the keeper's thread's
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
};

// The host's source: waits for what is offered. The newest offer counts.
class Offers final : public SocketSource {
 public:
  // Makes a socket of what was offered, in the keeper's thread; this side has received so many bytes. False: it cannot.
  using Take = std::function<bool(uint64_t received, FreshSocket* fresh, std::string* why)>;
  void Offer(Take take);
  Got Get(uint64_t received, uint64_t until_us, FreshSocket* fresh, std::string* why) override;
  void Stop() override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Take offered_;  // null: nothing is
  bool stop_ = false;
};

}  // namespace causeway
