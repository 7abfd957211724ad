# Whole sessions that die or are refused: real daemon, real workers, software GPU, a real guest process.
add_executable(session_client session_client.cc)
target_link_libraries(session_client PRIVATE causeway_options causeway_cuda_headers Threads::Threads ${CMAKE_DL_LIBS})
find_package(Python3 COMPONENTS Interpreter REQUIRED)
set(shards ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/in_shards.py)
add_test(NAME session_death_test COMMAND ${shards} 11 ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/session_death_test.py
  $<TARGET_FILE_DIR:causewayd> ${CMAKE_BINARY_DIR}/guest_lib/libcuda.so.1
  ${CMAKE_BINARY_DIR}/software_gpu/libcuda.so.1 $<TARGET_FILE:session_client>)
set_tests_properties(session_death_test PROPERTIES TIMEOUT 400 COST 30)

# What sessions hold, counted and limited, also where they are killed.
add_executable(memory_client memory_client.cc)
target_link_libraries(memory_client PRIVATE causeway_options causeway_cuda_headers Threads::Threads guest_libcuda
  ${CMAKE_DL_LIBS})
set_target_properties(memory_client PROPERTIES SKIP_BUILD_RPATH ON)
add_test(NAME accounting_test COMMAND ${shards} 2 ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/accounting_test.py
  $<TARGET_FILE_DIR:causewayd> ${CMAKE_BINARY_DIR}/guest_lib/libcuda.so.1
  ${CMAKE_BINARY_DIR}/software_gpu/libcuda.so.1 $<TARGET_FILE:memory_client>)
set_tests_properties(accounting_test PROPERTIES TIMEOUT 300)

# No pointer has two meanings, also where the process took places of the windows before the library came.
add_executable(address_windows_stress address_windows_stress.cc)
target_link_libraries(address_windows_stress PRIVATE causeway_options causeway_cuda_headers ${CMAKE_DL_LIBS})
foreach(occupied nothing pinned everywhere device legacy worker outside)
  set(processes 6)
  if(occupied STREQUAL "nothing")
    set(processes 24)
  endif()
  add_test(NAME address_windows_${occupied} COMMAND causeway run --driver $<TARGET_FILE:software_gpu> --
    $<TARGET_FILE:address_windows_stress> ${processes} 4 300 1 ${occupied})
  set_tests_properties(address_windows_${occupied} PROPERTIES LABELS unit TIMEOUT 120)
endforeach()
# Where the guest would have its pinned memory, the worker has something.
set_tests_properties(address_windows_worker PROPERTIES ENVIRONMENT SOFTWARE_GPU_MAP_AT_GIB=65536)
# The driver places memory in no window, across a boundary of what is reserved for it there.
set_tests_properties(address_windows_outside PROPERTIES ENVIRONMENT SOFTWARE_GPU_MEMORY_AT_GIB=81916)
