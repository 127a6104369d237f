# Parsed once a target: these were half of the time that it takes to compile the service and its tests.
set(SPARSEAGG_SERVICE_HEADERS
  <algorithm> <functional> <map> <memory> <string> <vector>
  <absl/container/flat_hash_map.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/synchronization/mutex.h>
  <absl/time/time.h> <google/protobuf/arena.h> <grpcpp/grpcpp.h> <grpcpp/support/server_callback.h>
  <sparseagg/v1/aggregation.pb.h>)

# A module: one folder, one library, one namespace.
function(sparseagg_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_LIBRARIES} PRIVATE sparseagg_flags)
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
endfunction()

# One test program per module. SHARDS: its tests are dealt out among as many runs of it, which may go side by side.
# Its own files are optimised little: what they call is optimised as ever, and they take half the time to compile.
function(sparseagg_test name)
  cmake_parse_arguments(ARG "" "SHARDS" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gmock GTest::gtest_main sparseagg_flags)
  target_precompile_headers(${name} PRIVATE <gmock/gmock.h>)
  if(NOT SPARSEAGG_SANITIZE)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  math(EXPR last_shard "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last_shard})
    set(test ${name})
    if(ARG_SHARDS GREATER 1)
      string(APPEND test "_${shard}")
    endif()
    add_test(NAME ${test} COMMAND ${name})
    set_tests_properties(${test} PROPERTIES
      TIMEOUT 1800  # for one that hangs: on a busy machine a good one takes many times as long as alone
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()
