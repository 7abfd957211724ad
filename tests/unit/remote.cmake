# Remote guests: keys, TLS, and the processes between a guest and its worker.
add_executable(tls_session_test tls_session_test.cc)
target_link_libraries(tls_session_test PRIVATE causeway_tls GTest::gtest_main)
add_test(NAME tls_session_test COMMAND tls_session_test)
set_tests_properties(tls_session_test PROPERTIES LABELS unit TIMEOUT 120)
