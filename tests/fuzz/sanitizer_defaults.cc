// SPDX-License-Identifier: Apache-2.0
// What the sanitizers do in a fuzzer unless ASAN_OPTIONS and its sisters say otherwise. Allocations keep no
// stack and little is kept in quarantine: that is a third of an execution. Findings are run again with the
// defaults of the tool, ASAN_OPTIONS=malloc_context_size=30.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "malloc_context_size=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64:max_malloc_fill_size="
         "64:"
         "allocator_release_to_os_interval_ms=-1:detect_leaks=0:allocator_may_return_null=1:handle_abort=1";
}
extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() {
  return "print_stacktrace=1";
}
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() {
  return "second_deadlock_stack=1:history_size=4";
}
