# What makes a bug harder to exploit: programs at random addresses (PIE), tables that are read-only once linked, no
# executable stack, guards on the stack, and checks of libc's copies. Not under the sanitizers, which check more.
if(NOT SPARSEAGG_SANITIZE)
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES CXX)
  # Of C++ alone: nvcc has its own words for flags.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>
                      $<$<COMPILE_LANGUAGE:CXX>:-fstack-clash-protection>)
  # libc's checks need an optimised build.
  add_compile_definitions($<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:_FORTIFY_SOURCE=2>)
  add_link_options($<$<LINK_LANGUAGE:CXX>:-Wl,-z,relro,-z,now,-z,noexecstack>)
endif()
