# causewayd as a process, with a fake worker behind it and this test in front.
add_executable(daemon_test_worker fake_worker.cc)
target_link_libraries(daemon_test_worker PRIVATE causeway_account causeway_stamp causeway_image_hash causeway_tls_hand_over)

add_executable(daemon_test daemon_config_test.cc daemon_local_test.cc daemon_vm_test.cc daemon_scopes_test.cc
  daemon_descriptors_test.cc command_test.cc daemon_fixture.cc)
target_compile_definitions(daemon_test PRIVATE
  CAUSEWAYD_PATH="$<TARGET_FILE:causewayd>" FAKE_WORKER_PATH="$<TARGET_FILE:daemon_test_worker>"
  CAUSEWAY_PATH="$<TARGET_FILE:causeway>")
target_link_libraries(daemon_test PRIVATE causeway_daemon causeway_command GTest::gtest_main)
add_dependencies(daemon_test causeway causewayd daemon_test_worker)
add_test(NAME daemon_test COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/in_shards.py 10 $<TARGET_FILE:daemon_test>)
set_tests_properties(daemon_test PROPERTIES TIMEOUT 300 COST 30)

# causeway_daemon_process_test(name seconds [libraries...]): from name.cc, which starts such a daemon, with so long a limit.
function(causeway_daemon_process_test name seconds)
  add_executable(${name} ${name}.cc daemon_fixture.cc)
  target_compile_definitions(${name} PRIVATE CAUSEWAYD_PATH="$<TARGET_FILE:causewayd>"
    FAKE_WORKER_PATH="$<TARGET_FILE:daemon_test_worker>")
  target_link_libraries(${name} PRIVATE causeway_daemon causeway_command ${ARGN} GTest::gtest_main)
  add_dependencies(${name} causewayd daemon_test_worker)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT ${seconds})
endfunction()

# The launcher, with a hostile daemon in front.
add_executable(launcher_test launcher_test.cc daemon_fixture.cc)
target_compile_definitions(launcher_test PRIVATE CAUSEWAYD_PATH="$<TARGET_FILE:causewayd>"
  LAUNCHER_PATH="$<TARGET_FILE:causeway-launcher>" FAKE_WORKER_PATH="$<TARGET_FILE:daemon_test_worker>")
target_link_libraries(launcher_test PRIVATE causeway_daemon causeway_command GTest::gtest_main)
add_dependencies(launcher_test causewayd causeway-launcher daemon_test_worker)
add_test(NAME launcher_test COMMAND launcher_test)
set_tests_properties(launcher_test PROPERTIES LABELS unit TIMEOUT 120)

# What a guest of Xen writes for the daemon to read.
add_executable(xen_values_test xen_values_test.cc)
target_link_libraries(xen_values_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME xen_values_test COMMAND xen_values_test)
set_tests_properties(xen_values_test PROPERTIES LABELS unit TIMEOUT 60)

# VMs that are added and removed while the daemon runs.
causeway_daemon_process_test(vm_requests_test 120 causeway_attach)

# What `causeway attach` makes of a domain's XML and of a host's settings.
add_executable(attach_test attach_test.cc)
target_link_libraries(attach_test PRIVATE causeway_attach GTest::gtest_main)
add_test(NAME attach_test COMMAND attach_test)
set_tests_properties(attach_test PROPERTIES LABELS unit TIMEOUT 60)

# The ivshmem server of a VM, with QEMU's part played by hostile clients.
add_executable(doorbell_test doorbell_test.cc)
target_link_libraries(doorbell_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME doorbell_test COMMAND doorbell_test)
set_tests_properties(doorbell_test PROPERTIES LABELS unit TIMEOUT 120)

# A VM in doorbell mode.
causeway_daemon_process_test(daemon_doorbell_test 300)

# Which process is a VM's.
add_executable(vm_search_test vm_search_test.cc)
target_link_libraries(vm_search_test PRIVATE causeway_launcher GTest::gtest_main)
add_test(NAME launcher_vm_search COMMAND vm_search_test)
set_tests_properties(launcher_vm_search PROPERTIES LABELS unit TIMEOUT 60)

# What is bounded for each scope, and guaranteed to it.
add_executable(scopes_test scopes_test.cc spare_demand_test.cc)
target_link_libraries(scopes_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME daemon_scopes COMMAND scopes_test)
set_tests_properties(daemon_scopes PROPERTIES LABELS unit TIMEOUT 60)

# What the daemon keeps for processes that share something.
add_executable(image_cache_test image_cache_test.cc)
target_link_libraries(image_cache_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME image_cache COMMAND image_cache_test)
set_tests_properties(image_cache PROPERTIES LABELS unit TIMEOUT 60)

add_executable(shared_objects_test shared_objects_test.cc)
target_link_libraries(shared_objects_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME shared_objects COMMAND shared_objects_test)
set_tests_properties(shared_objects PROPERTIES LABELS unit TIMEOUT 60)

# What strangers' descriptors do to the threads that receive and close them.
add_executable(zeroing_test zeroing_test.cc)
target_link_libraries(zeroing_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME hostile_zeroing_test COMMAND zeroing_test)
set_tests_properties(hostile_zeroing_test PROPERTIES LABELS "unit;hostile" TIMEOUT 120)

add_executable(closing_test closing_test.cc)
target_link_libraries(closing_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME hostile_closing_test COMMAND closing_test)
set_tests_properties(hostile_closing_test PROPERTIES LABELS "unit;hostile" TIMEOUT 120)

# Regions whose file shrinks.
add_executable(sigbus_guard_test sigbus_guard_test.cc)
target_link_libraries(sigbus_guard_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME sigbus_guard COMMAND sigbus_guard_test)
set_tests_properties(sigbus_guard PROPERTIES LABELS unit TIMEOUT 60)

# What a worker says on its control socket.
add_executable(worker_messages_test worker_messages_test.cc)
target_link_libraries(worker_messages_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME worker_messages COMMAND worker_messages_test)
set_tests_properties(worker_messages PROPERTIES LABELS unit TIMEOUT 60)

# How much a scope's folder of compiled kernels holds.
add_executable(cache_quota_test cache_quota_test.cc)
target_link_libraries(cache_quota_test PRIVATE causeway_sandbox GTest::gtest_main)
add_test(NAME cache_quota COMMAND cache_quota_test)
set_tests_properties(cache_quota PROPERTIES LABELS unit TIMEOUT 60)

# Turns on a GPU and shares of its link: arbiters and gates on a virtual GPU, and the daemon's thread.
add_executable(arbiter_test arbiter_test.cc gate_test.cc poll_pace_test.cc)
target_link_libraries(arbiter_test PRIVATE causeway_shares causeway_gate GTest::gtest_main)
add_test(NAME arbiter COMMAND arbiter_test)
set_tests_properties(arbiter PROPERTIES LABELS unit TIMEOUT 300)
add_executable(link_test link_test.cc)
target_link_libraries(link_test PRIVATE causeway_shares causeway_gate GTest::gtest_main)
add_test(NAME link_test COMMAND link_test)
set_tests_properties(link_test PROPERTIES LABELS unit TIMEOUT 120)
add_executable(channel_groups_test channel_groups_test.cc)
target_link_libraries(channel_groups_test PRIVATE causeway_gate GTest::gtest_main)
add_test(NAME channel_groups COMMAND channel_groups_test)
set_tests_properties(channel_groups PROPERTIES LABELS unit TIMEOUT 60)
add_executable(turns_test turns_test.cc)
target_link_libraries(turns_test PRIVATE causeway_shares GTest::gtest_main)
add_test(NAME turns_test COMMAND turns_test)
set_tests_properties(turns_test PROPERTIES LABELS unit TIMEOUT 300)

# What each VM, user and peer is to have of the GPUs' time.
add_executable(share_settings_test share_settings_test.cc)
target_link_libraries(share_settings_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME share_settings COMMAND share_settings_test)
set_tests_properties(share_settings PROPERTIES LABELS unit TIMEOUT 60)

add_executable(account_page_test account_page_test.cc)
target_link_libraries(account_page_test PRIVATE causeway_daemon GTest::gtest_main)
add_test(NAME account_page COMMAND account_page_test)
set_tests_properties(account_page PROPERTIES LABELS unit TIMEOUT 60)

# The worker's rows that count, with a driver of the test's own.
add_executable(accounting_rows_test accounting_test.cc accounting_late_test.cc)
target_link_libraries(accounting_rows_test PRIVATE causeway_worker_core GTest::gtest_main)
add_test(NAME accounting COMMAND accounting_rows_test)
set_tests_properties(accounting PROPERTIES LABELS unit TIMEOUT 60)

# What pages and completion say of the programs.
add_test(NAME manuals COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/manuals_test.py ${PROJECT_BINARY_DIR}/manuals
  ${PROJECT_BINARY_DIR}/host_backend)
set_tests_properties(manuals PROPERTIES LABELS unit SKIP_RETURN_CODE 77 TIMEOUT 120)

# What `causeway trace` makes of flight records.
add_executable(trace_test trace_test.cc)
target_link_libraries(trace_test PRIVATE causeway_command causeway_json causeway_ring GTest::gtest_main)
add_test(NAME trace_test COMMAND trace_test)
set_tests_properties(trace_test PROPERTIES LABELS unit TIMEOUT 60)

# What the hook of containers reads.
add_executable(container_state_test container_state_test.cc)
target_link_libraries(container_state_test PRIVATE causeway_container_state GTest::gtest_main)
add_test(NAME container_state COMMAND container_state_test)
set_tests_properties(container_state PROPERTIES LABELS unit TIMEOUT 60)

# The configuration is read again while sessions live, and the daemon is drained.
causeway_daemon_process_test(reload_test 120 causeway_attach)

# What VMs have of the GPUs' time is changed while sessions live.
causeway_daemon_process_test(share_requests_test 120 causeway_attach)
target_compile_definitions(share_requests_test PRIVATE CAUSEWAY_PATH="$<TARGET_FILE:causeway>")
add_dependencies(share_requests_test causeway)

# Sessions that outlive their daemon.
causeway_daemon_process_test(takeover_test 120 causeway_attach)

# What peers of different releases share.
add_executable(frozen_layouts frozen_layouts.cc)
target_link_libraries(frozen_layouts PRIVATE causeway_account causeway_options)
add_test(NAME frozen_layouts COMMAND frozen_layouts ${CMAKE_CURRENT_SOURCE_DIR}/frozen_layouts.txt)
set_tests_properties(frozen_layouts PROPERTIES LABELS unit TIMEOUT 60)
