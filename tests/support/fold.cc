#include "tests/support/fold.h"

#include <algorithm>
#include <numeric>

namespace sparseagg::testing {
namespace {

void AddRow(const TensorSpec& spec, const char* bytes, FoldedRow& sum) {
  const size_t size = SizeOf(spec.dtype);
  for (uint32_t column = 0; column < spec.row_width; ++column, bytes += size) {
    if (IsFloat(spec.dtype)) {
      sum.floats[column] += ReadFloat(spec.dtype, bytes);
    } else {
      sum.integers[column] += ReadInteger(spec.dtype, bytes);
    }
  }
}

}  // namespace

std::vector<FoldedRow> Fold(const TensorSpec& spec, const RawTensor& raw) {
  std::vector<uint64_t> positions(raw.keys.size());
  std::iota(positions.begin(), positions.end(), uint64_t{0});
  std::stable_sort(positions.begin(), positions.end(),
                   [&](uint64_t a, uint64_t b) { return raw.keys[a] < raw.keys[b]; });

  const bool has_values = spec.aggregation.op != Op::kUnion;
  std::vector<FoldedRow> rows;
  for (const uint64_t position : positions) {
    const uint64_t key = raw.keys[position];
    if (rows.empty() || rows.back().key != key) {
      FoldedRow zero;
      zero.key = key;
      if (has_values && IsFloat(spec.dtype)) zero.floats.assign(spec.row_width, +0.0);
      if (has_values && !IsFloat(spec.dtype)) zero.integers.assign(spec.row_width, 0);
      rows.push_back(std::move(zero));
    }
    if (has_values) AddRow(spec, raw.values.data() + position * spec.row_width * SizeOf(spec.dtype), rows.back());
  }
  return rows;
}

}  // namespace sparseagg::testing
