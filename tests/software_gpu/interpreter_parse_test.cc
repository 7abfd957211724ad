// SPDX-License-Identifier: Apache-2.0
// What the PTX parser accepts, and that it refuses everything else with a sentence.
#include <random>

#include "tests/software_gpu/interpreter_test.h"

namespace causeway::software_gpu::test {
namespace {

std::string WithBody(const std::string& body) {
  return ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry K(.param .u64 out)\n{\n"
         ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<9>; .reg .b128 %q;\n" +
         body + "\nret;\n}\n";
}

std::string ErrorOf(const std::string& text) {
  std::string error;
  const auto program = Program::Parse(text, &error);
  EXPECT_EQ(program == nullptr, !error.empty());
  return error;
}

TEST(Parse, NamesLineAndInstructionItLacks) {
  EXPECT_EQ(ErrorOf(WithBody("add.s32 %r1, %r2, %r3;")), "");
  const char* const unsupported[] = {
      "tex.cube.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2, %f3, %f4}];",
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1}, {%r1}, {%r2}, {%f2};",
      "wgmma.fence.sync.aligned;",
      "add.f8 %r1, %r2, %r3;",
      "ld.global.b128 %q, [%rd1];",
      "cvt.rn.satfinite.e4m3x2.f32 %r1, %f1, %f2;",
      "mbarrier.init.shared.b64 [%rd1], 3;",
      "mul.s32 %r1, %r2, %r3;",
      "atom.global.mul.u32 %r1, [%rd1], %r2;",
      "shfl.up.b32 %r1, %r2, 1, 0;",
      "add.s32.what %r1, %r2, %r3;",
  };
  for (const std::string instruction : unsupported) {
    const std::string error = ErrorOf(WithBody(instruction));
    const std::string opcode = instruction.substr(0, instruction.find_first_of(" ;"));
    EXPECT_EQ(error.rfind("PTX line 7: ", 0), 0u) << instruction << ": " << error;
    EXPECT_NE(error.find("'" + opcode + "'"), std::string::npos) << instruction << ": " << error;
  }
}

TEST(Parse, RefusesWhatMakesNoSense) {
  EXPECT_NE(ErrorOf(""), "");
  EXPECT_NE(ErrorOf("no ptx at all"), "");
  EXPECT_NE(ErrorOf(WithBody("bra $nowhere;")), "");
  EXPECT_NE(ErrorOf(WithBody("add.s32 %r1, %r2;")), "");
  EXPECT_NE(ErrorOf(WithBody("add.s32 5, %r2, %r3;")), "");
  EXPECT_NE(ErrorOf(WithBody("mov.u32 %r1, %nosuchregister;")), "");
  EXPECT_NE(ErrorOf(WithBody("ld.param.u64 %rd1, [out+8];")), "");
  EXPECT_NE(ErrorOf(WithBody("call nobody;")), "");
  EXPECT_NE(ErrorOf(WithBody("{ add.s32 %r1, %r2, %r3; ")), "");
  EXPECT_NE(ErrorOf(WithBody("") + ".visible .entry K() { ret; }"), "");
  EXPECT_NE(ErrorOf(".version 8.0\n.target sm_80\n.address_size 32\n"), "");
  EXPECT_NE(ErrorOf(".version 8.0\n.global .texture t;\n"), "");
  EXPECT_NE(ErrorOf(".version 8.0\n.global .b8 x[99999999999];\n"), "");
}

TEST(Parse, KernelLayout) {
  Module module(
      ".version 8.0\n.target sm_80\n.address_size 64\n"
      ".visible .entry K(.param .u8 a, .param .align 16 .b8 b[20], .param .u16 c, .param .u64 .ptr .global "
      ".align 32 d)\n"
      ".maxntid 64, 2, 1\n.minnctapersm 2\n{ .local .align 8 .b8 depot[40]; ret; }\n");
  ASSERT_TRUE(module.ok()) << module.error();
  const Kernel& kernel = *module.Find("K");
  const uint32_t expected[][2] = {{0, 1}, {16, 20}, {36, 2}, {40, 8}};
  ASSERT_EQ(kernel.parameters.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(kernel.parameters[i].offset, expected[i][0]);
    EXPECT_EQ(kernel.parameters[i].bytes, expected[i][1]);
  }
  EXPECT_EQ(kernel.parameter_bytes, 48u);
  EXPECT_EQ(kernel.max_threads_per_block, 128u);
  EXPECT_EQ(kernel.local_bytes, 48u);
}

TEST(Parse, IndirectBranchesAndScopedLabels) {
  Module module(
      WithBody("ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x;\n"
               "table: .branchtargets $a, $b;\n"
               "rem.u32 %r2, %r1, 2; mov.u32 %r4, 0;\n"
               "{ .reg .b32 %r1; mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 5; @%p1 bra "
               "L; add.u32 %r4, %r4, %r1; }\n"
               "{ L: add.u32 %r4, %r4, 10; setp.lt.u32 %p1, %r4, 40; @%p1 bra L; }\n"
               "brx.idx %r2, table;\n"
               "$a: mov.u32 %r3, 100; bra $done;\n"
               "$b: mov.u32 %r3, 200;\n"
               "$done: add.u32 %r3, %r3, %r4; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; "
               "st.global.u32 [%rd1], %r3;"));
  ASSERT_TRUE(module.ok()) << module.error();
  Array<uint32_t> out(module, 4);
  module.Launch1D("K", 1, 4, out.pointer());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(out[i], (i % 2 == 0 ? 100u : 200u) + 45);
}

// Damaged text may parse or not; it must not crash, and an error must say something.
TEST(Parse, SurvivesDamagedText) {
  std::mt19937 random(11);
  for (const char* name : {"basics", "functions", "warp", "half"}) {
    const std::string whole = ReadKernelFile(name);
    ASSERT_GT(whole.size(), 1000u);
    const auto check = [&](const std::string& text) {
      std::string error;
      const auto program = Program::Parse(text, &error);
      ASSERT_EQ(program == nullptr, !error.empty());
    };
    for (int round = 0; round < 40; ++round) check(whole.substr(0, random() % whole.size()));
    for (int round = 0; round < 400; ++round) {
      std::string text = whole;
      for (uint32_t changes = 1 + random() % 5; changes != 0; --changes) {
        const size_t at = random() % text.size();
        switch (random() % 4) {
          case 0:
            text[at] = static_cast<char>(random());
            break;
          case 1:
            text.erase(at, random() % 40);
            break;
          case 2:
            text.insert(at, text.substr(random() % text.size(), random() % 60));
            break;
          default:
            text[at] = "{}()[]<>@!%;,.:-+0129_$\"/"[random() % 25];
            break;
        }
      }
      check(text);
    }
  }
}

}  // namespace
}  // namespace causeway::software_gpu::test
