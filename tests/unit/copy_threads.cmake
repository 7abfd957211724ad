# The guest library's threads for large copies.
add_executable(copy_threads_test copy_threads_test.cc ${CMAKE_SOURCE_DIR}/guest_lib/copy_threads.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/own_thread.cc)
target_link_libraries(copy_threads_test PRIVATE causeway_options GTest::gtest_main Threads::Threads)
add_test(NAME copy_threads_test COMMAND copy_threads_test)
set_tests_properties(copy_threads_test PROPERTIES LABELS unit TIMEOUT 60)
