// SPDX-License-Identifier: Apache-2.0
// What a taken worker says wrongly on its control socket (hostile_worker.cc), one case of
// hostile_worker_test.cc after another. The test, as the session's guest, writes the number of a case into
// the first word of the session's first slice; the worker writes behind it how far it has come.
#pragma once
#include <cstdint>

namespace causeway::test {

enum class Words : uint32_t {
  kNone = 0,        // serves as it should
  kFields,          // every message, every word of it with every extreme; `step` is the first that is sent
  kSizes,           // every size from 0 to beyond the longest, and very long ones
  kDescriptors,     // every message with 0 to 253 descriptors of each kind
  kFlood,           // of message `step`, without end
  kDeafFlood,       // requests that are answered with descriptors, and no answer is read
  kPrinting,        // line ends on its standard error, without end
  kSilence,         // half a message, then nothing
  kHalfClosed,      // messages after the end of its own side
  kClosed,          // closes its end and goes on living
  kUnread,          // descriptors that the daemon has not read when the worker dies
  kListener,        // descriptors that the daemon is to take for the kernel's questions
  kFalseImage,      // an image under another image's name
  kImages,          // images without end
  kCheckpoints,     // checkpoints of the process `step` by checkpointers that lie
  kBlockingClient,  // makes the socket that it shares with the daemon one that waits, and reads what is the
                    // daemon's
};

constexpr uint32_t kLastLie = 6;

struct WordsPage {
  Words words;
  uint32_t step;     // of the case: where to begin
  uint32_t reached;  // by the worker: the step that it is at
  uint32_t ended;    // by the worker: it has said all, and lives
  uint64_t sent;     // packets, lines
  uint64_t refused;  // by the worker: how often the kernel refused a packet, which was then sent again
};

}  // namespace causeway::test
