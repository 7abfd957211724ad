# The guest-local tables over a fake guest: look-up, private tables, context storage, integrity value, error texts.

# It carries the driver's name, so that the CUDA runtime takes it for the driver.
add_library(guest_tables_double SHARED
  fake_driver_symbols.cc
  fake_guest_state.cc
  ${PROJECT_SOURCE_DIR}/guest_lib/device/context_storage.cc
  ${PROJECT_SOURCE_DIR}/guest_lib/api/error_strings.cc
  ${PROJECT_SOURCE_DIR}/guest_lib/runtime/compile_cache.cc
  ${PROJECT_SOURCE_DIR}/guest_lib/runtime/export_table_slots.cc
  ${PROJECT_SOURCE_DIR}/guest_lib/runtime/export_tables.cc
  ${PROJECT_SOURCE_DIR}/guest_lib/runtime/integrity.cc
  ${PROJECT_SOURCE_DIR}/guest_lib/runtime/md2.cc
  ${PROJECT_SOURCE_DIR}/guest_lib/api/proc_address.cc
  ${PROJECT_SOURCE_DIR}/guest_lib/runtime/runtime_modules.cc)
target_link_libraries(guest_tables_double PUBLIC causeway_options causeway_cuda_headers Threads::Threads
  causeway_image_hash)
set_target_properties(guest_tables_double PROPERTIES
  OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/guest_tables_double)

add_executable(guest_tables_test
  compile_cache_test.cc
  context_storage_test.cc
  guest_tables_test.cc
  integrity_test.cc
  proc_address_test.cc)
target_link_libraries(guest_tables_test PRIVATE guest_tables_double GTest::gtest_main)
add_test(NAME guest_tables COMMAND guest_tables_test)

# NVIDIA's static runtime comes with the toolkit; a tree that has only its headers does without this test.
get_filename_component(cuda_root ${CAUSEWAY_CUDA_INCLUDE} REALPATH)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
find_library(CAUSEWAY_CUDART_STATIC cudart_static
  HINTS ENV CUDA_HOME ${cuda_root} ${cuda_root}/../.. PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib NO_DEFAULT_PATH)
if(CAUSEWAY_CUDART_STATIC)
  add_executable(runtime_startup_test runtime_startup_test.cc)
  target_link_libraries(runtime_startup_test PRIVATE
    guest_tables_double GTest::gtest_main ${CAUSEWAY_CUDART_STATIC} ${CMAKE_DL_LIBS} rt)
  add_test(NAME runtime_startup COMMAND runtime_startup_test)
else()
  message(STATUS "libcudart_static.a was not found beside cuda.h: the test runtime_startup is left out.")
endif()

# What the library exports, against the toolkit's stub library.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
find_library(CAUSEWAY_CUDA_STUB cuda
  HINTS ENV CUDA_HOME ${cuda_root} ${cuda_root}/../..
  PATH_SUFFIXES lib64/stubs lib/stubs targets/x86_64-linux/lib/stubs NO_DEFAULT_PATH)
set(stub_argument)
if(CAUSEWAY_CUDA_STUB)
  set(stub_argument ${CAUSEWAY_CUDA_STUB})
endif()
add_test(NAME exports COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/exports_test.py
  ${PROJECT_BINARY_DIR}/guest_lib/libcuda.so.1 ${PROJECT_SOURCE_DIR} ${stub_argument})
# The same rows against the driver of the machine, where there is one.
add_test(NAME driver_tables COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/driver_tables_check.py
  ${PROJECT_SOURCE_DIR})
set_tests_properties(driver_tables PROPERTIES SKIP_RETURN_CODE 77)
