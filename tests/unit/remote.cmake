# Remote guests: keys, TLS, and the processes between a guest and its worker.
add_executable(tls_session_test tls_session_test.cc)
target_include_directories(tls_session_test SYSTEM PRIVATE ${CAUSEWAY_OPENSSL_INCLUDE})
target_link_libraries(tls_session_test PRIVATE causeway_tls ${CAUSEWAY_STATIC_SSL} ${CAUSEWAY_STATIC_CRYPTO} GTest::gtest_main)
add_test(NAME tls_session_test COMMAND tls_session_test)
set_tests_properties(tls_session_test PROPERTIES LABELS unit TIMEOUT 120)

add_executable(host_choice_test host_choice_test.cc)
target_link_libraries(host_choice_test PRIVATE causeway_hosts GTest::gtest_main)
add_test(NAME host_choice_test COMMAND host_choice_test)
set_tests_properties(host_choice_test PROPERTIES LABELS unit TIMEOUT 60)

add_executable(strangers_test strangers_test.cc ${PROJECT_SOURCE_DIR}/host_backend/tls/addresses.cc
  ${PROJECT_SOURCE_DIR}/host_backend/tls/strangers.cc)
target_link_libraries(strangers_test PRIVATE causeway_host_headers GTest::gtest_main)
add_test(NAME strangers_test COMMAND strangers_test)
set_tests_properties(strangers_test PROPERTIES LABELS unit TIMEOUT 60)
foreach(name remote_test remote_bounds_test remote_keys_test remote_return_test)
  add_executable(${name} ${name}.cc daemon_fixture.cc ${PROJECT_SOURCE_DIR}/host_backend/tls/addresses.cc)
  target_compile_definitions(${name} PRIVATE CAUSEWAYD_PATH="$<TARGET_FILE:causewayd>" CAUSEWAY_PATH="$<TARGET_FILE:causeway>"
    CAUSEWAY_TLS_PATH="$<TARGET_FILE:causeway-tls>" FAKE_WORKER_PATH="$<TARGET_FILE:daemon_test_worker>")
  target_link_libraries(${name} PRIVATE causeway_daemon causeway_command causeway_tls GTest::gtest_main)
  add_dependencies(${name} causeway causewayd causeway-tls daemon_test_worker)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "unit;hostile" TIMEOUT 300)
endforeach()

# A peer that is OpenSSL itself.
target_include_directories(remote_keys_test SYSTEM PRIVATE ${CAUSEWAY_OPENSSL_INCLUDE})
target_link_libraries(remote_keys_test PRIVATE ${CAUSEWAY_STATIC_SSL} ${CAUSEWAY_STATIC_CRYPTO})
# The filter of a connection's process, and its limits.
target_link_libraries(remote_bounds_test PRIVATE causeway_tls_connection)
if(NOT CAUSEWAY_SANITIZE STREQUAL "none")  # whose memory counts as the process's data
  set_tests_properties(remote_bounds_test PROPERTIES DISABLED ON)
endif()

# The guest's library over TLS, in a program with an OpenSSL of its own that forks.
if(TARGET software_gpu AND CAUSEWAY_SANITIZE STREQUAL "none")
  add_test(NAME remote_program COMMAND causeway run --driver $<TARGET_FILE:software_gpu> --tls -- ${Python3_EXECUTABLE}
    ${CMAKE_CURRENT_SOURCE_DIR}/remote_program.py $<TARGET_FILE_DIR:guest_libcuda>)
  add_test(NAME remote_hosts_test COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/remote_hosts_test.py
    $<TARGET_FILE_DIR:causewayd> $<TARGET_FILE_DIR:guest_libcuda>/libcuda.so.1 $<TARGET_FILE:software_gpu>)
  set_tests_properties(remote_hosts_test PROPERTIES LABELS unit TIMEOUT 300 COST 20)
  set_tests_properties(remote_program PROPERTIES LABELS unit TIMEOUT 200)
endif()
