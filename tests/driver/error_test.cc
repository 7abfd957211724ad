// SPDX-License-Identifier: Apache-2.0
// Census categories init, error, entry point.
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "tests/driver/array_helpers.h"
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

TEST(InitTest, FlagsMustBeZero) {
  EXPECT_EQ(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
}

TEST(ErrorTest, NamesAndTexts) {
  const char* text = nullptr;
  for (int error = -1; error < 1000; ++error) {
    const CUresult name = cuGetErrorName(static_cast<CUresult>(error), &text);
    if (name != CUDA_SUCCESS) {
      EXPECT_EQ(name, CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(text, nullptr);
      continue;
    }
    Say("name" + std::to_string(error), std::string(text));
    EXPECT_EQ(cuGetErrorString(static_cast<CUresult>(error), &text), CUDA_SUCCESS);
    Say("text" + std::to_string(error), std::string(text));
  }
}

TEST(EntryPointTest, ProcAddress) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_EQ(cuGetProcAddress("cuMemAlloc", &function, 3020, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, Symbol("cuMemAlloc_v2"));
  EXPECT_EQ(cuGetProcAddress("cuNoSuchCall", &function, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  int version = 0;
  EXPECT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_GE(version, 12000);
  EXPECT_EQ(cuDriverGetVersion(nullptr), CUDA_ERROR_INVALID_VALUE);
}

// ---- the driver's log: which calls the driver logs is its own affair, so these record it
// -------------------------

struct Lines {
  std::vector<std::string> all;
  std::thread::id thread;
};
void CUDA_CB Collect(void* user, CUlogLevel level, char* message, size_t bytes) {
  auto* lines = static_cast<Lines*>(user);
  lines->all.push_back(std::to_string(level) + std::string(message, bytes));
  lines->thread = std::this_thread::get_id();
}

class LogTest : public DriverTest {
 protected:
  // An error that only the driver finds.
  void MakeError() {
    CUmodule module = nullptr;
    EXPECT_NE(cuModuleLoadData(&module, ".version 8.0\nthis is no PTX\n"), CUDA_SUCCESS);
  }
};

TEST_F(LogTest, CallbacksRunInTheCallingThread) {
  Lines first, second;
  CUlogsCallbackHandle one = nullptr, two = nullptr;
  OK(cuLogsRegisterCallback(Collect, &first, &one));
  OK(cuLogsRegisterCallback(Collect, &second, &two));
  EXPECT_NE(one, two);
  MakeError();
  Say("lines", first.all.size());
  EXPECT_EQ(first.all, second.all);
  if (!first.all.empty()) {
    EXPECT_EQ(first.thread, std::this_thread::get_id());
  }
  const size_t before = first.all.size();
  OK(cuLogsUnregisterCallback(one));
  MakeError();
  EXPECT_EQ(first.all.size(), before);
  Say("lines_of_two", second.all.size());
  OK(cuLogsUnregisterCallback(two));
  if (OnNvidiaLibrary()) return;  // which dies of one of these
  EXPECT_EQ(cuLogsUnregisterCallback(two), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsRegisterCallback(nullptr, nullptr, &one), CUDA_ERROR_INVALID_VALUE);
  MakeError();
}

TEST_F(LogTest, Dumps) {
  CUlogIterator start = 0, at = 0;
  OK(cuLogsCurrent(&start, 0));
  at = start;
  std::string text(25600, 'x');
  size_t bytes = text.size();
  OK(cuLogsDumpToMemory(&at, text.data(), &bytes, 0));
  EXPECT_EQ(bytes, 0u);
  MakeError();
  at = start;
  bytes = text.size();
  OK(cuLogsDumpToMemory(&at, text.data(), &bytes, 0));
  ASSERT_LT(bytes, text.size());
  EXPECT_EQ(text[bytes], '\0');
  Say("some", bytes > 0);
  Say("advanced", at != start);
  // The same in a file, of the program's own file system.
  char path[] = "/tmp/causeway_log_XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  at = start;
  OK(cuLogsDumpToFile(&at, path, 0));
  std::ifstream file(path);
  std::stringstream written;
  written << file.rdbuf();
  Say("same_in_file", written.str() == text.substr(0, bytes));
  close(fd);
  unlink(path);
}

TEST_F(LogTest, Errors) {
  CUlogIterator at = 0;
  char text[64];
  size_t bytes = sizeof text;
  EXPECT_EQ(cuLogsCurrent(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsCurrent(&at, 1), CUDA_SUCCESS);  // its flags are not looked at
  EXPECT_EQ(cuLogsDumpToMemory(&at, nullptr, &bytes, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsDumpToMemory(&at, text, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsDumpToMemory(&at, text, &bytes, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsDumpToFile(&at, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsDumpToFile(&at, "/nonexistent/folder/file", 0), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::driver_test
