# The worker's handle table.
add_executable(handles_test handles_test.cc)
target_link_libraries(handles_test PRIVATE causeway_worker_core causeway_options GTest::gtest_main)
add_test(NAME handles COMMAND handles_test)
set_tests_properties(handles PROPERTIES LABELS unit TIMEOUT 60)
