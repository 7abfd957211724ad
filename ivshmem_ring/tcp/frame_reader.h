// SPDX-License-Identifier: Apache-2.0
// Which thread reads a connection. A thread that waits for a frame reads the connection itself, so that the frame need not be
// handed from one thread to another, which costs as much as the network on one host. While no thread waits, a thread in the
// background reads.
//
//   reading   one thread reads, takes the frames that have come, and gives those that are for others to their links
//   armed     nobody reads; the next byte wakes the background thread (epoll, EPOLLONESHOT)
//   loose     nobody reads, and nothing wakes the background thread: a thread has read for itself a moment ago and will do so
//             again; the background thread looks some milliseconds later, and arms where nobody did. Arming and its contrary are
//             a system call each
//   stalled   nobody reads, because the queue for which the next frame is meant is full, until there is room
//
// A thread that reads for itself stops when its frame has come, and also once it has given a frame to another thread and no
// more has come: the other one will wait again, and then reads for itself.
//
// Threads: as each comment says. Locks: mutex() is held for a few instructions; with it held nobody sends, reads or waits.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "ivshmem_ring/tcp/tcp_connection.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway {

// What one side does with the frames that come. All but Tick is called by the thread that reads, without locks.
class FrameSink {
 public:
  enum class May { kCome, kFull, kNot };
  // May this frame come? It is asked before the frame's record is waited for, several times perhaps. kFull: it has to wait until
  // RoomMade. kNot: the session is over.
  virtual May MayCome(const FrameHeader& frame) = 0;

  enum class Taken {
    kHanded,  // its link's thread has been told
    kNoted,   // no thread waits for it
    kOver,    // the session is over
  };
  // `record` is valid during the call. The frame's bulk bytes are still to be read, by TcpConnection::Read.
  virtual Taken Take(const FrameHeader& frame, std::span<const std::byte> record) = 0;
  // Nothing more can be read, because of `reason`.
  virtual void Ended(const std::string& reason) = 0;
  // Once a second, by the background thread, also while it waits for the rest of a frame.
  virtual void Tick() = 0;
  // Whether a thread that was given the last frame reads again in a moment. With mutex() held, by a thread that has read.
  virtual bool BackSoon() const { return false; }
  // Remind was called a moment ago; by the background thread, and without locks. True: remind again. It never waits.
  virtual bool Reminded() { return false; }

 protected:
  ~FrameSink() = default;
};

class FrameReader {
 public:
  // Both outlive this object. `of_guest`: a frame that no thread waits for may be taken some milliseconds late, and there is a timer,
  // so that Remind works. Otherwise none may, except where BackSoon says so.
  FrameReader(TcpConnection& connection, FrameSink& sink, bool of_guest);
  // No thread may be inside another call.
  ~FrameReader();
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  // Starts the background thread; to be called once, before Await. Empty, or a sentence: there is no such thread.
  std::string Start();

  // Guards what `ready` of Await looks at.
  std::mutex& mutex() { return mutex_; }
  // Waits until `ready`, or until the session is over. `lock` holds mutex(), and releases it meanwhile. Take makes `ready` true and
  // then notifies `arrived`. `policy` says for how long to spin and to yield before sleeping. Any thread but the background one.
  void Await(std::unique_lock<std::mutex>& lock, std::condition_variable& arrived, const WaitPolicy& policy,
             const std::function<bool()>& ready);
  // Takes what is there, where nobody reads. `lock` holds mutex(), and releases it meanwhile. Any thread but the background one.
  void Look(std::unique_lock<std::mutex>& lock);
  // The background thread calls FrameSink::Reminded within kRemindUs, and that call sees what this thread did before. One system call
  // at most, and none while reminds(). Without a timer, which the kernel may refuse, nothing happens. Any thread.
  void Remind();
  static constexpr uint32_t kRemindUs = 100;
  // Whether Remind was called less than that ago. Only a hint: it may become false at any moment.
  bool reminds() const { return reminding_.load(std::memory_order_relaxed); }
  // There is room again in a queue for which MayCome has answered kFull. With mutex() held.
  void RoomMade();
  // The session is over: nobody reads any more. Who waits on a condition of mutex() is not notified. Any thread.
  void End();
  // The same, and waits until the background thread has ended. Not by that thread.
  void Join();
  // In a forked child, where the background thread does not exist.
  void Abandon();
  // Another socket comes in the place of the connection's, which is not watched any more. Called while the thread that reads is parked
  // (TcpConnection::AwaitLoss).
  void Forget();

 private:
  enum class State { kArmed, kLoose, kReading, kStalled, kOver };
  enum class Next { kHanded, kNoted, kIncomplete, kFull, kOver };
  // With mutex_ held, after which the caller reads; and after it has read.
  void BeginReading();
  void EndReading(bool full, bool waits);  // `waits`: it still waits for a frame
  // Reads until `ready`, without locks. `policy` null: for as long as bytes are there. True: a queue is full.
  bool Read(const WaitPolicy* policy, const std::function<bool()>& ready);
  Next TakeNext();
  void Watch(uint32_t events);
  void WakeBackground();
  void SetTimer();
  void TakeTimer();
  // Waits, and takes what woke the thread. True: the socket can be read.
  bool AwaitEvents(uint64_t until_us);
  // With mutex_ held: arms where nobody has read for a while. False: it is time to look again soon.
  bool ArmIfIdle();
  void RunBackground();

  TcpConnection& connection_;
  FrameSink& sink_;
  std::mutex mutex_;
  // Guarded by mutex_:
  State state_ = State::kArmed;
  bool active_ = false;  // it has been loose since the background thread armed
  uint64_t readings_ = 0;
  uint32_t sleepers_ = 0;  // threads that wait and do not read
  const bool of_guest_;
  int epoll_ = -1;
  int timer_ = -1;
  std::atomic<bool> reminding_{false};  // the timer is set
  int wake_ = -1;                       // an eventfd: the background thread is to look at the state
  std::thread background_;
  std::atomic<std::thread::id> background_id_{};  // once it runs
  uint64_t seen_readings_ = 0;                    // the background thread's
  bool abandoned_ = false;
};

}  // namespace causeway
