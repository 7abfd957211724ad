# The rows and their directions, both sides in one process.
add_executable(protocol_test protocol_test.cc)
target_link_libraries(protocol_test PRIVATE causeway_options causeway_cuda_headers GTest::gtest_main)
# One instance of the code per shape of call: speed does not matter here, build time does.
target_compile_options(protocol_test PRIVATE -O0)
add_test(NAME protocol COMMAND protocol_test)

add_test(NAME rows COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/rows_test.py
  ${PROJECT_SOURCE_DIR} ${stub_argument})
add_test(NAME known_values COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/known_values_test.py
  ${PROJECT_SOURCE_DIR} ${CAUSEWAY_CUDA_INCLUDE}/cuda.h)
