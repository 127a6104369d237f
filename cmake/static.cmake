# SPARSEAGG_STATIC: programs that need no library but libc's own, to be copied to other machines.
#
# Debian's CMake packages describe shared libraries, though the archives lie beside them: the targets are pointed at
# those. oneTBB and Highway have no archives there; scripts/static_libs.sh makes them, and CMAKE_PREFIX_PATH names where.
# Included from the top folder, so that the targets are there before other folders look for them.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(OPENSSL_USE_STATIC_LIBS ON)
set(Protobuf_USE_STATIC_LIBS ON)
set(CMAKE_SKIP_RPATH ON)
add_link_options(-static-libstdc++ -static-libgcc)
# No folder of the machine that built them.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=>)

find_package(Threads REQUIRED)

find_package(absl REQUIRED)
find_package(GTest REQUIRED)
if(SPARSEAGG_SERVICE)
  find_package(gRPC CONFIG REQUIRED)
  find_library(SPARSEAGG_RE2 re2 REQUIRED)
  set_target_properties(re2::re2 PROPERTIES INTERFACE_LINK_LIBRARIES "${SPARSEAGG_RE2};Threads::Threads")
  # The archive of RocksDB names the shared forms of what it uses. Its package adds a folder of modules, with one for
  # oneTBB that knows only an old layout.
  set(module_path ${CMAKE_MODULE_PATH})
  find_package(RocksDB CONFIG REQUIRED)
  set(CMAKE_MODULE_PATH ${module_path})
  set(rocksdb_archives)
  foreach(name snappy lz4 zstd bz2 z)
    find_library(SPARSEAGG_${name}_ARCHIVE ${name} REQUIRED)
    list(APPEND rocksdb_archives ${SPARSEAGG_${name}_ARCHIVE})
  endforeach()
  set_target_properties(RocksDB::rocksdb PROPERTIES
    INTERFACE_LINK_LIBRARIES "${rocksdb_archives};Threads::Threads;${CMAKE_DL_LIBS}")
  find_package(spdlog REQUIRED)
  set_target_properties(spdlog::spdlog_header_only PROPERTIES
    INTERFACE_LINK_LIBRARIES "fmt::fmt-header-only;Threads::Threads")
endif()

# scripts/bundle.sh finds it out if one without an archive was linked.
get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
foreach(target ${targets})
  get_target_property(type ${target} TYPE)
  get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
  if(NOT type STREQUAL "SHARED_LIBRARY" OR NOT configurations)
    continue()
  endif()
  foreach(configuration ${configurations})
    get_target_property(location ${target} IMPORTED_LOCATION_${configuration})
    string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${location}")
    if(EXISTS "${archive}")
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${configuration} "${archive}")
      set_property(TARGET ${target} PROPERTY IMPORTED_SONAME_${configuration})
    endif()
  endforeach()
endforeach()

# Device code for every architecture, in every program: a quarter of its usual size.
if(SPARSEAGG_HAS_CUDA AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
endif()

# They run with the libc of Linux systems since 2018 (Debian 10, Ubuntu 18.10, RHEL 8): cmake/old_libc.
set(old_libc ${CMAKE_BINARY_DIR}/old_libc)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/old_libc/stubs.py ${CMAKE_CXX_COMPILER} ${old_libc} 2.28
  COMMAND_ERROR_IS_FATAL ANY)
foreach(part old_libc start)
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -O2 -fPIC -D_GNU_SOURCE -c ${CMAKE_SOURCE_DIR}/cmake/old_libc/${part}.cc
            -o ${old_libc}/${part}.o
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  cmake/old_libc/stubs.py cmake/old_libc/old_libc.cc cmake/old_libc/start.cc)
add_link_options(-L${old_libc} ${old_libc}/old_libc.o)
add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:${old_libc}/start.o>
                 $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:LINKER:--wrap=__libc_start_main>)
