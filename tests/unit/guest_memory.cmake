# Which way a copy takes.
add_executable(copy_plan_test copy_plan_test.cc)
target_link_libraries(copy_plan_test PRIVATE causeway_options causeway_ring GTest::gtest_main)
add_test(NAME copy_plan_test COMMAND copy_plan_test)
set_tests_properties(copy_plan_test PROPERTIES LABELS unit TIMEOUT 60)

# The guest library's threads for large copies.
add_executable(copy_threads_test copy_threads_test.cc ${CMAKE_SOURCE_DIR}/guest_lib/process/copy_threads.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/process/copy_past_caches.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/process/own_thread.cc)
target_link_libraries(copy_threads_test PRIVATE causeway_options causeway_ring GTest::gtest_main Threads::Threads ${CMAKE_DL_LIBS})
add_test(NAME copy_threads_test COMMAND copy_threads_test)
set_tests_properties(copy_threads_test PROPERTIES LABELS unit TIMEOUT 60)

# Who has which slices of a local region.
add_executable(local_slices_test local_slices_test.cc)
target_link_libraries(local_slices_test PRIVATE guest_connect causeway_options GTest::gtest_main)
add_test(NAME local_slices_test COMMAND local_slices_test)
set_tests_properties(local_slices_test PROPERTIES LABELS unit TIMEOUT 60)

# What a program is told where there is no device.
add_executable(missing_device_test missing_device_test.cc)
target_link_libraries(missing_device_test PRIVATE guest_connect causeway_options GTest::gtest_main)
add_test(NAME missing_device_test COMMAND missing_device_test)
set_tests_properties(missing_device_test PROPERTIES LABELS unit TIMEOUT 60)

# Touches of managed memory, held up in both ways.
add_executable(page_watch_test page_watch_test.cc ${CMAKE_SOURCE_DIR}/guest_lib/process/fault_handler.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/page_watch/page_watch_signals.cc ${CMAKE_SOURCE_DIR}/guest_lib/page_watch/page_watch_userfaultfd.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/process/copy_threads.cc)
target_link_libraries(page_watch_test PRIVATE guest_connect causeway_options GTest::gtest_main)
add_test(NAME page_watch_test COMMAND page_watch_test)
set_tests_properties(page_watch_test PROPERTIES LABELS unit TIMEOUT 60)

# Bytes of registered memory that are exchanged by comparing them, without watching pages.
add_executable(compared_bytes_test compared_bytes_test.cc ${CMAKE_SOURCE_DIR}/guest_lib/managed/compared_bytes.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/addresses/mappings.cc)
target_link_libraries(compared_bytes_test PRIVATE guest_connect causeway_options GTest::gtest_main)
add_test(NAME compared_bytes_test COMMAND compared_bytes_test)
set_tests_properties(compared_bytes_test PROPERTIES LABELS unit TIMEOUT 60)

# When work may touch managed memory.
add_executable(managed_work_test managed_work_test.cc ${CMAKE_SOURCE_DIR}/guest_lib/session/submissions.cc)
target_link_libraries(managed_work_test PRIVATE guest_connect causeway_options GTest::gtest_main)
add_test(NAME managed_work_test COMMAND managed_work_test)
set_tests_properties(managed_work_test PROPERTIES LABELS unit TIMEOUT 60)

# Pages that change under a program.
add_executable(pages_aside_test pages_aside_test.cc ${CMAKE_SOURCE_DIR}/guest_lib/host_register/pages_aside.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/host_register/page_exchange.cc ${CMAKE_SOURCE_DIR}/guest_lib/addresses/mappings.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/process/copy_past_caches.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/process/fault_handler.cc ${CMAKE_SOURCE_DIR}/guest_lib/process/copy_threads.cc
  ${CMAKE_SOURCE_DIR}/guest_lib/process/own_thread.cc)
target_link_libraries(pages_aside_test PRIVATE causeway_options causeway_ring GTest::gtest_main Threads::Threads
  ${CMAKE_DL_LIBS})
add_test(NAME pages_aside_test COMMAND pages_aside_test)
set_tests_properties(pages_aside_test PROPERTIES LABELS unit TIMEOUT 60)

# Whatever the build type, this one checks.
add_executable(lock_order_test lock_order_test.cc)
target_compile_definitions(lock_order_test PRIVATE CAUSEWAY_CHECK_LOCKS)
target_link_libraries(lock_order_test PRIVATE causeway_options GTest::gtest_main Threads::Threads)
add_test(NAME lock_order_test COMMAND lock_order_test)
set_tests_properties(lock_order_test PROPERTIES LABELS unit TIMEOUT 60)

# When a thread that nobody wakes looks.
add_executable(look_times_test look_times_test.cc ${CMAKE_SOURCE_DIR}/guest_lib/process/look_times.cc)
target_link_libraries(look_times_test PRIVATE causeway_options GTest::gtest_main)
target_include_directories(look_times_test PRIVATE ${PROJECT_SOURCE_DIR})
add_test(NAME look_times_test COMMAND look_times_test)
set_tests_properties(look_times_test PROPERTIES LABELS unit TIMEOUT 60)
