// SPDX-License-Identifier: Apache-2.0
// Census category coredump: the settings. No test lets a dump happen.
#include <cstring>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class CoredumpTest : public DriverTest {};

TEST_F(CoredumpTest, Defaults) {
  NEEDS_HARDWARE("core dumps");
  for (const auto attribute : {CU_COREDUMP_ENABLE_ON_EXCEPTION, CU_COREDUMP_TRIGGER_HOST,
                               CU_COREDUMP_LIGHTWEIGHT, CU_COREDUMP_ENABLE_USER_TRIGGER}) {
    bool value = false;
    size_t size = sizeof value;
    const std::string key = std::to_string(attribute);
    Say(key + " result", cuCoredumpGetAttribute(attribute, &value, &size));
    Say(key + " value", value);
    Say(key + " size", size);
    size = sizeof value;
    Say(key + " global result", cuCoredumpGetAttributeGlobal(attribute, &value, &size));
    Say(key + " global value", value);
  }
}

TEST_F(CoredumpTest, FileName) {
  NEEDS_HARDWARE("core dumps");
  char name[1024] = "";
  size_t size = sizeof name;
  OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, name, &size));
  Say("named by the driver", name[0] != '\0');
  Say("size is of the text with its end", size == std::strlen(name) + 1);
  char wanted[] = "causeway_test_dump";
  size = sizeof wanted;
  OK(cuCoredumpSetAttributeGlobal(CU_COREDUMP_FILE, wanted, &size));
  size = sizeof name;
  OK(cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, name, &size));
  EXPECT_STREQ(name, wanted);
}

TEST_F(CoredumpTest, Switches) {
  NEEDS_HARDWARE("core dumps");
  bool off = false;
  size_t size = sizeof off;
  Say("off", cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &off, &size));
  size = sizeof off;
  Say("off global", cuCoredumpSetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &off, &size));
  bool light = true;
  size = sizeof light;
  Say("light", cuCoredumpSetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, &light, &size));
}

TEST_F(CoredumpTest, WrongArguments) {
  NEEDS_HARDWARE("core dumps");
  bool value = false;
  size_t size = sizeof value;
  EXPECT_EQ(cuCoredumpGetAttribute(CU_COREDUMP_LIGHTWEIGHT, &value, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCoredumpGetAttribute(CU_COREDUMP_MAX, &value, &size), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCoredumpSetAttribute(CU_COREDUMP_MAX, &value, &size), CUDA_ERROR_INVALID_VALUE);
  Say("no value", cuCoredumpSetAttributeGlobal(CU_COREDUMP_LIGHTWEIGHT, nullptr, &size));
}

}  // namespace
}  // namespace causeway::driver_test
