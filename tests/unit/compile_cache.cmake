# NVIDIA's NVRTC against the guest library's table of compiled code. A tree that has only the compiler does without, and a
# sanitizer's library cannot be loaded into Python.
find_library(CAUSEWAY_NVRTC nvrtc
  HINTS ENV CUDA_HOME ${cuda_root} ${cuda_root}/../.. PATHS /usr/local/cuda /usr/local/cuda-13.0
  PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib NO_DEFAULT_PATH)
if(CAUSEWAY_NVRTC AND CAUSEWAY_SANITIZE STREQUAL "none")
  add_test(NAME compile_cache_nvrtc COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/compile_cache_nvrtc_test.py
    ${CAUSEWAY_NVRTC} $<TARGET_FILE:causeway> $<TARGET_FILE:software_gpu>)
  set_tests_properties(compile_cache_nvrtc PROPERTIES LABELS unit TIMEOUT 300)
else()
  message(STATUS "libnvrtc.so was not found, or sanitizers are on: the test compile_cache_nvrtc is left out.")
endif()
