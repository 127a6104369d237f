# Sets SPARSEAGG_HAS_CUDA, and enables the CUDA language where it is ON.
#
# SPARSEAGG_CUDA                 ON: fail without a toolkit. AUTO: take one if there is one. OFF: do not look.
# SPARSEAGG_CUDA_ARCHITECTURES   empty: all of 75 80 86 89 90 100 120 that the toolkit knows, PTX of 80 for the
#                                devices between them, and PTX of the last for devices to come; else a list as for CMAKE_CUDA_ARCHITECTURES.
set(SPARSEAGG_CUDA_ARCHITECTURES "" CACHE STRING "Architectures to compile for; empty: all that the toolkit knows")

set(SPARSEAGG_HAS_CUDA OFF)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  if(SPARSEAGG_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPARSEAGG_CUDA=ON, but the CUDA engine is for x86-64 alone, not for ${CMAKE_SYSTEM_PROCESSOR} "
      "(Grace, Jetson), where it was never run. Without it, the engine merges on the CPU: SPARSEAGG_CUDA=OFF")
  endif()
  set(SPARSEAGG_CUDA OFF)
endif()
if(NOT SPARSEAGG_CUDA STREQUAL "OFF")
  find_program(SPARSEAGG_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(SPARSEAGG_NVCC)
    set(SPARSEAGG_HAS_CUDA ON)
  elseif(SPARSEAGG_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPARSEAGG_CUDA=ON, but there is no nvcc: neither on PATH, nor below CUDA_HOME, nor in /usr/local/cuda")
  endif()
endif()

if(SPARSEAGG_HAS_CUDA)
  set(CMAKE_CUDA_COMPILER ${SPARSEAGG_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${SPARSEAGG_CUDA_ARCHITECTURES})
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    execute_process(COMMAND ${SPARSEAGG_NVCC} --list-gpu-arch OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
    foreach(architecture 75 80 86 89 90 100 120)
      if(known MATCHES "compute_${architecture}\n")
        list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture}-real)
        set(last ${architecture})
      endif()
    endforeach()
    list(APPEND CMAKE_CUDA_ARCHITECTURES 80-virtual ${last}-virtual)
    list(REMOVE_DUPLICATES CMAKE_CUDA_ARCHITECTURES)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 17)  # the last that CMake 3.25 knows how to ask nvcc for
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
else()
  message(STATUS "No CUDA engine: SPARSEAGG_CUDA=${SPARSEAGG_CUDA}")
endif()
