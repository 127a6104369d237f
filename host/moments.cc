#include "host/moments.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sparseagg {

void AddMoments(const Result& moments, Result& result) {
  const size_t width = result.row_width;
  result.moments.resize(result.num_keys * width);
  uint64_t from = 0;
  for (uint64_t row = 0; row < result.num_keys; ++row) {
    const uint64_t key = result.KeyAt(row);
    while (from < moments.num_keys && moments.KeyAt(from) < key) ++from;
    double* const out = result.moments.data() + row * width;
    const bool is_dropped = !result.counts.empty() && result.counts[row] == 0;
    if (!is_dropped && from < moments.num_keys && moments.KeyAt(from) == key) {
      std::memcpy(out, moments.values.data() + from * width * sizeof(double), width * sizeof(double));
    } else {
      std::fill_n(out, width, 0.0);
    }
  }
}

}  // namespace sparseagg
