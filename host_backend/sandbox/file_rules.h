// SPDX-License-Identifier: Apache-2.0
// Which files the calling thread and what it starts can open, by Landlock: docs/sandbox.md has the table.
#pragma once
#include <string>
#include <vector>

namespace causeway::sandbox {

struct FileRules {
  std::vector<std::string> readable;  // with all that lies below
  std::vector<std::string> writable;  // files and folders can be made and removed below
  std::vector<std::string> flat;      // likewise, but no folders
  std::vector<std::string> devices;   // read, written, ioctl
  std::string gpus{};                 // what is to be said of the GPUs' nodes, to follow other text; or empty
};

// What every worker may: system libraries, /proc of its own, /sys, NVIDIA's device nodes. `library`: as
// configured. `gpus`: UUIDs with commas between them; of these GPUs alone there are nodes, as the kernel
// driver tells which is whose. Empty: of all.
FileRules WorkerRules(const std::string& library, const std::string& gpus);

// The version of Landlock's interface, 0: this kernel has none, or the rules were not accepted. What does not
// exist is passed over. Also keeps the process from signalling others where the version is 6 or higher.
int ApplyFileRules(const FileRules& rules);

}  // namespace causeway::sandbox
