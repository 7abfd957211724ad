# The worker's system call filter.
add_executable(sandbox_filter_test sandbox_filter_test.cc)
target_link_libraries(sandbox_filter_test PRIVATE causeway_sandbox GTest::gtest_main)
add_test(NAME sandbox_filter_test COMMAND sandbox_filter_test)
set_tests_properties(sandbox_filter_test PROPERTIES TIMEOUT 120 LABELS unit)

# The systemd units, rated by systemd.
add_test(NAME systemd_units COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/units_test.py
  ${PROJECT_SOURCE_DIR}/vm_configs)
set_tests_properties(systemd_units PROPERTIES TIMEOUT 60 LABELS unit SKIP_RETURN_CODE 77)
