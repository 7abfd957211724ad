// SPDX-License-Identifier: Apache-2.0
// What the compiler's options let the driver say: error and information logs, with their sizes, and the time.
#pragma once

#include <string>

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

class JitLog {
 public:
  JitLog() = default;
  JitLog(const CUjit_option* options, void** values, unsigned count);

  // Whether the options are ones that cuda.h names.
  CUresult Check() const { return result_; }

  // Appends a sentence and writes the logs' sizes and the time to the caller's values.
  void Error(const std::string& sentence) { Append(&error_, sentence); }
  void Info(const std::string& sentence) { Append(&info_, sentence); }

 private:
  struct Buffer {
    char* text = nullptr;
    size_t room = 0;
    size_t used = 0;
    void** size = nullptr;  // the value that receives `used`
  };
  void Append(Buffer* buffer, const std::string& sentence);

  Buffer info_, error_;
  void** wall_time_ = nullptr;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace causeway::software_gpu
