// The counters of a sweep's table.
#ifndef SPARSEAGG_HOST_CPU_ROWS_COUNT_BYTES_H_
#define SPARSEAGG_HOST_CPU_ROWS_COUNT_BYTES_H_

#include <cstdint>

namespace sparseagg::cpu {

// How many contributors a slot has had. Narrow counters leave more of the cache to the sums; a sweep takes the
// narrowest that can count its updates.
enum class CountBytes : uint8_t { kNone = 0, kOne = 1, kTwo = 2, kFour = 4 };

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ROWS_COUNT_BYTES_H_
