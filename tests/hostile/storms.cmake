# Floods, victims and storms: ordinary CUDA programs, never built with a sanitizer; whose libcuda.so.1 they meet decides
# LD_LIBRARY_PATH at run time. All that a GPU host needs of them lies in one folder.
set(hostile_programs ${CMAKE_BINARY_DIR}/hostile_programs)
file(MAKE_DIRECTORY ${hostile_programs})
add_executable(hostile_flood flood.cc)
target_compile_options(hostile_flood PRIVATE -Wall -Wextra -Werror)
target_link_libraries(hostile_flood PRIVATE causeway_cuda_headers Threads::Threads guest_libcuda)
set_target_properties(hostile_flood PROPERTIES OUTPUT_NAME flood RUNTIME_OUTPUT_DIRECTORY ${hostile_programs}
  SKIP_BUILD_RPATH ON)

add_executable(share_attack share_attack.cc)
target_compile_options(share_attack PRIVATE -Wall -Wextra -Werror)
target_link_libraries(share_attack PRIVATE causeway_cuda_headers Threads::Threads guest_libcuda)
set_target_properties(share_attack PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${hostile_programs} SKIP_BUILD_RPATH ON)

# It speaks the ring protocol itself.
add_executable(hostile_loop hostile_loop.cc)
target_link_libraries(hostile_loop PRIVATE hostile_guest)
set_target_properties(hostile_loop PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${hostile_programs})

find_program(CAUSEWAY_NVCC nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin
  PATHS /usr/local/cuda/bin /usr/local/cuda-13.0/bin ${PROJECT_SOURCE_DIR}/build/cuda/bin REQUIRED)
add_custom_command(OUTPUT ${hostile_programs}/victim
  COMMAND ${CAUSEWAY_NVCC} -O2 -std=c++17 -gencode arch=compute_75,code=sm_75 -gencode arch=compute_90,code=sm_90
    -gencode arch=compute_75,code=compute_75 -Xcompiler=-Wall,-Wextra -Xlinker=-s victim.cu -o ${hostile_programs}/victim
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/victim.cu VERBATIM)
add_custom_target(hostile_victim ALL DEPENDS ${hostile_programs}/victim)

# A short storm; storm.sh raises the numbers, and tests/gpu_host/run.sh beats on a GPU.
if(TARGET software_gpu AND CAUSEWAY_SANITIZE STREQUAL "none")
  add_test(NAME kill_storm COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/kill_storm.py ${CMAKE_BINARY_DIR})
  set_tests_properties(kill_storm PROPERTIES LABELS hostile TIMEOUT 400 SKIP_RETURN_CODE 77)
  add_test(NAME share_attacks COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/share_attacks.py ${CMAKE_BINARY_DIR}
    --driver $<TARGET_FILE:software_gpu>)
  set_tests_properties(share_attacks PROPERTIES LABELS hostile TIMEOUT 1200 SKIP_RETURN_CODE 77)
endif()
