# Whole sessions that die or are refused: real daemon, real workers, software GPU, a real guest process.
add_executable(session_client session_client.cc)
target_link_libraries(session_client PRIVATE causeway_options causeway_cuda_headers Threads::Threads ${CMAKE_DL_LIBS})
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_test(NAME session_death_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/session_death_test.py
  $<TARGET_FILE_DIR:causewayd> ${CMAKE_BINARY_DIR}/guest_lib/libcuda.so.1
  ${CMAKE_BINARY_DIR}/software_gpu/libcuda.so.1 $<TARGET_FILE:session_client>)
set_tests_properties(session_death_test PROPERTIES TIMEOUT 400)

# What sessions hold, counted and limited, also where they are killed.
add_executable(memory_client memory_client.cc)
target_link_libraries(memory_client PRIVATE causeway_options causeway_cuda_headers Threads::Threads guest_libcuda
  ${CMAKE_DL_LIBS})
set_target_properties(memory_client PROPERTIES SKIP_BUILD_RPATH ON)
add_test(NAME accounting_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/accounting_test.py
  $<TARGET_FILE_DIR:causewayd> ${CMAKE_BINARY_DIR}/guest_lib/libcuda.so.1
  ${CMAKE_BINARY_DIR}/software_gpu/libcuda.so.1 $<TARGET_FILE:memory_client>)
set_tests_properties(accounting_test PROPERTIES TIMEOUT 300)
