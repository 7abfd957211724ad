# The region's layout, the ring, waiting, the host's sign of life, and the transports.
foreach(name layout ring ring_processes waiter crowding beat_watch transport compression_choice tcp_transport tcp_batch tcp_resume)
  add_executable(${name}_test ${name}_test.cc)
  target_link_libraries(${name}_test PRIVATE causeway_ring GTest::gtest_main)
  add_test(NAME ${name}_test COMMAND ${name}_test)
  set_tests_properties(${name}_test PROPERTIES TIMEOUT 300 LABELS unit)
endforeach()
target_link_libraries(tcp_resume_test PRIVATE causeway_tls_records)
