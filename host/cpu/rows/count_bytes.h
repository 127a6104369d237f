// Width of the counters in the table of a table fold.
#ifndef SPARSEAGG_HOST_CPU_ROWS_COUNT_BYTES_H_
#define SPARSEAGG_HOST_CPU_ROWS_COUNT_BYTES_H_

#include <cstdint>

namespace sparseagg::cpu {

// Bytes of one counter of contributors. A table fold takes the narrowest counter that can count its updates, since
// narrow counters leave more of the cache to the sums.
enum class CountBytes : uint8_t { kNone = 0, kOne = 1, kTwo = 2, kFour = 4 };

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_ROWS_COUNT_BYTES_H_
