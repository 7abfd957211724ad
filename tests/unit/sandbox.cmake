# The worker's system call filter.
add_executable(sandbox_filter_test sandbox_filter_test.cc)
target_link_libraries(sandbox_filter_test PRIVATE causeway_sandbox GTest::gtest_main)
add_test(NAME sandbox_filter_test COMMAND sandbox_filter_test)
set_tests_properties(sandbox_filter_test PROPERTIES TIMEOUT 120 LABELS unit)
