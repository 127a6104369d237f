#include "host/privacy/terms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/rows/wire_value.h"
#include "host/privacy/key_selection.h"

namespace sparseagg::privacy {
namespace {

constexpr double kRepair = 1.0 - 0x1p-30;
constexpr int kMostRepairs = 1000;

// The rows of one update, one for each key, before the weight.
struct Rows {
  KeyColumn keys;
  Column<double> values;  // num_keys × row_width
};

// What an update for SumSpec owns.
struct Terms {
  Column<uint32_t> narrow_keys;
  Column<uint64_t> wide_keys;
  Column<int64_t> values;
};

// Adds up the rows of repeated keys, from the left, starting at +0.
Rows FoldRows(const TensorSpec& spec, const ValidatedUpdate& update, Terms& terms) {
  const size_t width = spec.row_width;
  const uint64_t num_tuples = update.num_keys();
  const KeyColumn& keys = update.keys();
  const auto begins_row = [&](uint64_t i) { return i == 0 || KeyAt(keys, i) != KeyAt(keys, i - 1); };
  uint64_t num_rows = 0;
  for (uint64_t i = 0; i < num_tuples; ++i) num_rows += update.unique() || begins_row(i) ? 1 : 0;
  Rows rows;
  rows.values.resize(num_rows * width);
  std::fill(rows.values.begin(), rows.values.end(), 0.0);
  uint64_t row = 0;
  for (uint64_t i = 0; i < num_tuples; ++i) {
    if (i > 0 && begins_row(i)) ++row;
    for (size_t c = 0; c < width; ++c) {
      rows.values[row * width + c] += cpu::WidenAt(spec.dtype, update.values(), i * width + c);
    }
  }
  if (std::holds_alternative<KeyRun>(keys)) {
    rows.keys = keys;
    return rows;
  }
  // Copied in any case: whoever owns the keys owns the values, too, which nobody needs any more.
  const auto copy_distinct = [&](auto& column) {
    column.resize(num_rows);
    uint64_t to = 0;
    for (uint64_t i = 0; i < num_tuples; ++i) {
      if (update.unique() || begins_row(i))
        column[to++] = static_cast<std::decay_t<decltype(column[0])>>(KeyAt(keys, i));
    }
    rows.keys = absl::MakeConstSpan(column);
  };
  HasNarrowKeys(spec) ? copy_distinct(terms.narrow_keys) : copy_distinct(terms.wide_keys);
  return rows;
}

// Writes the terms of one tensor, and adds their squares to `sum`. Returns: false once the sum is beyond `bound`.
bool WriteTerms(const TensorSpec& spec, const Rows& rows, double weight, double factor, double scale, Uint128 bound,
                Column<int64_t>& terms, Uint128& sum) {
  const size_t width = spec.row_width;
  const uint64_t num_keys = NumKeys(rows.keys);
  const bool has_scores = HasScores(spec);
  const size_t stride = width + (has_scores ? 1 : 0);
  const int64_t score = has_scores && num_keys > 0 ? KeyWeight(spec.privacy->keys, num_keys) : 0;
  for (uint64_t row = 0; row < num_keys; ++row) {
    for (size_t c = 0; c < width; ++c) {
      const double term = weight * (rows.values[row * width + c] * factor) * scale;
      if (!(std::abs(term) < 0x1p63)) return false;
      const auto integer = static_cast<int64_t>(term);  // towards zero
      const auto magnitude = static_cast<Uint128>(integer < 0 ? -integer : integer);
      sum += magnitude * magnitude;
      if (sum > bound) return false;
      terms[row * stride + c] = integer;
    }
    if (has_scores) terms[row * stride + width] = score;
  }
  return true;
}

void AddToDigest(const TensorSpec& spec, const Rows& rows, const Column<int64_t>& terms, Sha256& digest) {
  const uint64_t num_keys = NumKeys(rows.keys);
  digest.AddText(spec.name);
  digest.AddNumber(num_keys);
  constexpr uint64_t kBatch = 512;
  uint64_t batch[kBatch];
  for (uint64_t first = 0; first < num_keys; first += kBatch) {
    const uint64_t count = std::min(kBatch, num_keys - first);
    for (uint64_t i = 0; i < count; ++i) batch[i] = KeyAt(rows.keys, first + i);
    digest.Add(batch, count * sizeof(uint64_t));
  }
  digest.Add(terms.data(), terms.size() * sizeof(int64_t));
}

}  // namespace

bool HasScores(const TensorSpec& spec) {
  return spec.privacy.has_value() && spec.privacy->keys != KeySelection::kPublic;
}

TensorSpec SumSpec(const TensorSpec& spec) {
  TensorSpec sum;
  sum.name = spec.name;
  sum.dtype = DType::kInt64;
  sum.num_rows = spec.num_rows;
  sum.row_width = spec.row_width + (HasScores(spec) ? 1 : 0);
  sum.layout = spec.layout;
  if (spec.layout == Layout::kDense) sum.aggregation.result_layout = ResultLayout::kDense;
  // The score of kWeightedGaussian tells no number of contributors.
  sum.aggregation.return_counts =
      spec.aggregation.min_contributors > 1 && spec.privacy->keys == KeySelection::kWeightedGaussian;
  return sum;
}

Lattice LatticeOf(const TensorSpec& spec) {
  const TensorPrivacy& privacy = *spec.privacy;
  return MakeLattice(privacy.noise_multiplier, privacy.weight_bound, privacy.l2, spec.aggregation.max_submissions);
}

absl::StatusOr<Bytes32> MakeTerms(absl::Span<const TensorSpec> specs, const Lattice& lattice,
                                  std::vector<ValidatedUpdate>& updates) {
  const double scale = std::ldexp(1.0, lattice.shift);
  std::vector<std::shared_ptr<Terms>> terms;
  std::vector<Rows> rows;
  double factor = 1.0;
  for (size_t t = 0; t < specs.size(); ++t) {
    terms.push_back(std::make_shared<Terms>());
    rows.push_back(FoldRows(specs[t], updates[t], *terms.back()));
    terms.back()->values.resize(NumKeys(rows.back().keys) * SumSpec(specs[t]).row_width);
    factor = std::min(factor, updates[t].factor());
  }
  const auto write_all = [&] {
    Uint128 sum = 0;
    for (size_t t = 0; t < specs.size(); ++t) {
      if (!WriteTerms(specs[t], rows[t], updates[t].weight(), factor, scale, lattice.norm_bound, terms[t]->values,
                      sum)) {
        return false;
      }
    }
    return true;
  };
  for (int repairs = 0; !write_all(); ++repairs) {
    if (repairs == kMostRepairs) return absl::InternalError("privacy: the norm of a submission is beyond its bound");
    factor *= kRepair;
  }
  Sha256 digest;
  for (size_t t = 0; t < specs.size(); ++t) {
    AddToDigest(specs[t], rows[t], terms[t]->values, digest);
    const auto* const bytes = reinterpret_cast<const std::byte*>(terms[t]->values.data());
    updates[t] = ValidatedUpdate::CreateFromTrusted({rows[t].keys, bytes, terms[t]}, 1.0, /*unique=*/true);
  }
  return digest.Finish();
}

uint64_t MakeTermsBytes(absl::Span<const TensorSpec> specs, absl::Span<const ValidatedUpdate> updates) {
  uint64_t bytes = 0;
  for (size_t t = 0; t < specs.size(); ++t) {
    const uint64_t of_key = sizeof(uint64_t) + (2 * uint64_t{specs[t].row_width} + 1) * sizeof(int64_t);
    bytes = SaturatingAdd(bytes, SaturatingMultiply(updates[t].num_keys(), of_key));
  }
  return bytes;
}

}  // namespace sparseagg::privacy
