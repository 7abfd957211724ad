# Programs of CUDA runtime 11.7 to 12.9 through the local transport, on the software GPU. NVIDIA's runtimes are fetched
# by fetch_old_runtimes.sh; without them the test is skipped. A sanitizer's library cannot be loaded into these programs.
if(NOT TARGET software_gpu OR NOT CAUSEWAY_SANITIZE STREQUAL "none")
  return()
endif()
find_package(Python3 COMPONENTS Interpreter REQUIRED)
set(CAUSEWAY_OLD_RUNTIMES ${PROJECT_SOURCE_DIR}/build/old_runtimes CACHE PATH
  "Folder that fetch_old_runtimes.sh filled; the environment variable of this name takes precedence")
add_test(NAME old_runtimes COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/old_runtimes_test.py
  --runtimes ${CAUSEWAY_OLD_RUNTIMES} --compiler ${CMAKE_CXX_COMPILER} --cuda-include ${CAUSEWAY_CUDA_INCLUDE}
  --way "$<TARGET_FILE:causeway> run --driver $<TARGET_FILE:software_gpu> --guest-library ${PROJECT_BINARY_DIR}/guest_lib --")
set_tests_properties(old_runtimes PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
