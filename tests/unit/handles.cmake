# The worker's handle table.
add_executable(handles_test handles_test.cc)
target_link_libraries(handles_test PRIVATE causeway_worker_core causeway_options GTest::gtest_main)
add_test(NAME handles COMMAND handles_test)
set_tests_properties(handles PROPERTIES LABELS unit TIMEOUT 60)

# The worker's half of host callbacks.
add_executable(callbacks_test callbacks_test.cc)
target_link_libraries(callbacks_test PRIVATE causeway_worker_core causeway_options GTest::gtest_main)
add_test(NAME callbacks COMMAND callbacks_test)
set_tests_properties(callbacks PROPERTIES LABELS unit TIMEOUT 60)
