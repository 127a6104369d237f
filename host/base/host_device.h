// What code needs that runs on a GPU, too: C++17, and functions marked SPARSEAGG_HD.
#ifndef SPARSEAGG_HOST_BASE_HOST_DEVICE_H_
#define SPARSEAGG_HOST_BASE_HOST_DEVICE_H_

#include <cstring>

#ifdef __CUDACC__  // allow(conditional): such code is compiled by nvcc and by the host compiler
#define SPARSEAGG_HD __host__ __device__
#else
#define SPARSEAGG_HD
#endif

namespace sparseagg {

// std::bit_cast, which C++17 lacks.
template <typename To, typename From>
SPARSEAGG_HD To BitsAs(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_HOST_DEVICE_H_
