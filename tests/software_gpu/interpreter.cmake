# The software GPU's PTX interpreter, included by this folder's CMakeLists.txt.
add_library(software_gpu_interpreter STATIC
  interpreter_approximate.cc
  interpreter_arithmetic.cc
  interpreter_atomic.cc
  interpreter_barrier.cc
  interpreter_bits.cc
  interpreter_block.cc
  interpreter_compare.cc
  interpreter_control.cc
  interpreter_convert.cc
  interpreter_float.cc
  interpreter_integer.cc
  interpreter_lower.cc
  interpreter_memory.cc
  interpreter_move.cc
  interpreter_program.cc
  interpreter_system.cc
  interpreter_texture.cc
  interpreter_warp.cc
  ptx_body.cc
  ptx_declaration.cc
  ptx_lexer.cc
  ptx_parser.cc
  ptx_syntax.cc)
target_link_libraries(software_gpu_interpreter PUBLIC causeway_options)
# It interprets: without optimisation every kernel takes minutes. Float results must not depend on the
# compiler contracting a*b+c.
target_compile_options(software_gpu_interpreter PRIVATE -ffp-contract=off $<$<CONFIG:Debug>:-O1>)

# Its tests run nvcc's PTX of the kernels in kernels/; nothing is compiled while they run.
find_package(GTest REQUIRED)
find_program(CAUSEWAY_NVCC nvcc
  HINTS ENV CUDA_HOME PATH_SUFFIXES bin
  PATHS /usr/local/cuda/bin /usr/local/cuda-13.0/bin ${PROJECT_SOURCE_DIR}/build/cuda/bin)
if(NOT CAUSEWAY_NVCC)
  message(FATAL_ERROR "nvcc was not found: the interpreter's tests need its PTX. Install the CUDA 13 toolkit "
    "or pass -DCAUSEWAY_NVCC=/path/to/nvcc.")
endif()

# software_gpu_kernel(name source arch extra-flags...): kernels/<source>.cu to <name>.ptx
function(software_gpu_kernel name source arch)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/kernels/${name}.ptx)
  set(input ${CMAKE_CURRENT_SOURCE_DIR}/kernels/${source}.cu)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CAUSEWAY_NVCC} -ptx -std=c++17 -arch=${arch} ${ARGN} -o ${output} ${input}
    DEPENDS ${input} ${CMAKE_CURRENT_SOURCE_DIR}/kernels/plain_expressions.h VERBATIM)
  set_property(GLOBAL APPEND PROPERTY SOFTWARE_GPU_KERNELS ${output})
endfunction()
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/kernels)
software_gpu_kernel(basics basics compute_75)
software_gpu_kernel(arithmetic arithmetic compute_75 -fmad=false)
software_gpu_kernel(warp warp compute_75)
software_gpu_kernel(warp_90 warp compute_90)
software_gpu_kernel(functions functions compute_75)
software_gpu_kernel(functions_debug functions compute_75 -G)
software_gpu_kernel(math math compute_75)
software_gpu_kernel(math_fast math compute_75 -use_fast_math)
software_gpu_kernel(half half compute_80)
software_gpu_kernel(half_90 half compute_90)
find_path(CAUSEWAY_CUB_INCLUDE cub/cub.cuh
  HINTS ${CAUSEWAY_CUDA_INCLUDE}/cccl PATHS /usr/local/cuda/include/cccl /usr/local/cuda-13.0/include/cccl)
if(NOT CAUSEWAY_CUB_INCLUDE)
  message(FATAL_ERROR "cub/cub.cuh was not found: the interpreter's tests run its kernels. Install the CUDA 13 "
    "toolkit's CCCL headers, or pass -DCAUSEWAY_CUB_INCLUDE=/path/to/include/cccl.")
endif()
software_gpu_kernel(cub cub compute_75 -I${CAUSEWAY_CUB_INCLUDE})

get_property(software_gpu_kernels GLOBAL PROPERTY SOFTWARE_GPU_KERNELS)
add_custom_target(software_gpu_interpreter_kernels DEPENDS ${software_gpu_kernels})
add_executable(software_gpu_interpreter_test
  interpreter_arithmetic_test.cc
  interpreter_function_test.cc
  interpreter_math_test.cc
  interpreter_parse_test.cc
  interpreter_warp_test.cc
  interpreter_test.cc)
add_dependencies(software_gpu_interpreter_test software_gpu_interpreter_kernels)
target_compile_definitions(software_gpu_interpreter_test PRIVATE
  SOFTWARE_GPU_KERNELS="${CMAKE_CURRENT_BINARY_DIR}/kernels")
target_link_libraries(software_gpu_interpreter_test PRIVATE software_gpu_interpreter GTest::gtest_main)
add_test(NAME software_gpu_interpreter_test COMMAND software_gpu_interpreter_test)
