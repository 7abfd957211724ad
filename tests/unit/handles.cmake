# The worker's handle table.
add_executable(handles_test handles_test.cc ${PROJECT_SOURCE_DIR}/host_backend/worker/objects/handles.cc
  ${PROJECT_SOURCE_DIR}/host_backend/worker/objects/relatives.cc
  ${PROJECT_SOURCE_DIR}/host_backend/worker/objects/handle_endings.cc)
target_link_libraries(handles_test PRIVATE causeway_ring causeway_options causeway_cuda_headers GTest::gtest_main)
target_include_directories(handles_test PRIVATE ${PROJECT_SOURCE_DIR})
add_test(NAME handles COMMAND handles_test)
set_tests_properties(handles PROPERTIES LABELS unit TIMEOUT 60)

# The worker's half of host callbacks.
add_executable(callbacks_test callbacks_test.cc)
target_link_libraries(callbacks_test PRIVATE causeway_worker_core causeway_options GTest::gtest_main)
add_test(NAME callbacks COMMAND callbacks_test)
set_tests_properties(callbacks PROPERTIES LABELS unit TIMEOUT 60)

# What the worker knows of the driver's objects by their pointers.
add_executable(objects_test objects_test.cc captured_objects_test.cc)
target_link_libraries(objects_test PRIVATE causeway_worker_core causeway_options GTest::gtest_main)
add_test(NAME objects COMMAND objects_test)
set_tests_properties(objects PROPERTIES LABELS unit TIMEOUT 60)

# Copies that the GPU waits for by itself, and the context that they belong to.
add_executable(queued_copy_test queued_copy_test.cc)
target_link_libraries(queued_copy_test PRIVATE causeway_worker_core causeway_options GTest::gtest_main)
add_test(NAME queued_copy COMMAND queued_copy_test)
set_tests_properties(queued_copy PROPERTIES LABELS unit TIMEOUT 60)

# The worker's questions to the daemon.
add_executable(daemon_link_test daemon_link_test.cc)
target_link_libraries(daemon_link_test PRIVATE causeway_worker_core causeway_options GTest::gtest_main)
add_test(NAME daemon_link COMMAND daemon_link_test)
set_tests_properties(daemon_link PROPERTIES LABELS unit TIMEOUT 60)

# Byte strings that the guest sends in pieces.
add_executable(blob_test blob_test.cc)
target_link_libraries(blob_test PRIVATE causeway_worker_core causeway_options GTest::gtest_main)
add_test(NAME blobs COMMAND blob_test)
set_tests_properties(blobs PROPERTIES LABELS unit TIMEOUT 60)

# What of a fatbin the guest sends.
add_executable(fatbin_test fatbin_test.cc ${PROJECT_SOURCE_DIR}/guest_lib/code/fatbin.cc)
target_link_libraries(fatbin_test PRIVATE causeway_options GTest::gtest_main)
target_include_directories(fatbin_test PRIVATE ${PROJECT_SOURCE_DIR})
add_test(NAME fatbin COMMAND fatbin_test)
set_tests_properties(fatbin PROPERTIES LABELS unit TIMEOUT 60)

# Posted work of several guest threads.
add_executable(lanes_test lanes_test.cc ${PROJECT_SOURCE_DIR}/host_backend/worker/process/lanes.cc)
target_link_libraries(lanes_test PRIVATE causeway_ring GTest::gtest_main)
target_include_directories(lanes_test PRIVATE ${PROJECT_SOURCE_DIR})
add_test(NAME lanes COMMAND lanes_test)
set_tests_properties(lanes PROPERTIES LABELS unit TIMEOUT 60)

add_executable(relatives_test relatives_test.cc ${PROJECT_SOURCE_DIR}/host_backend/worker/objects/relatives.cc)
target_link_libraries(relatives_test PRIVATE causeway_ring causeway_options causeway_cuda_headers GTest::gtest_main)
add_test(NAME relatives COMMAND relatives_test)
set_tests_properties(relatives PROPERTIES LABELS unit TIMEOUT 60)
