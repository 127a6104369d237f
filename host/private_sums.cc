#include "host/private_sums.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <variant>

#include "host/base/float_environment.h"
#include "host/base/saturating.h"
#include "host/cpu/finish/assemble.h"
#include "host/privacy/key_selection.h"
#include "host/privacy/lattice.h"
#include "host/privacy/noise.h"
#include "host/privacy/terms.h"

namespace sparseagg {
namespace {

using privacy::Bytes32;
using privacy::Int128;
using privacy::NoisePurpose;
using privacy::NoiseStream;

constexpr uint64_t kNoRow = ~uint64_t{0};

// The keys of a result that is being made.
struct Selected {
  Column<uint64_t> keys;         // ascending
  Column<uint64_t> rows;         // in the sums; kNoRow: all sums are 0
  Column<int64_t> noisy_scores;  // of kCountGaussian, else empty
};

// Calls use(i) for all i < count, on all threads, in the environment of the numerics.
template <typename Use>
void ForAll(uint64_t count, Use use) {
  tbb::parallel_for(tbb::blocked_range<uint64_t>(0, count, 64), [&](const tbb::blocked_range<uint64_t>& range) {
    const DefaultFloatEnvironment environment;
    for (uint64_t i = range.begin(); i != range.end(); ++i) use(i);
  });
}

const int64_t* RowAt(const Result& sums, uint64_t row) {
  return reinterpret_cast<const int64_t*>(sums.values.data()) + row * sums.row_width;
}

Selected SelectKeys(const TensorSpec& spec, const Result& sums, const Bytes32& round_key) {
  const privacy::KeyRule rule(*spec.privacy, spec.clip.max_keys, spec.aggregation.min_contributors);
  const Bytes32 stream_key = DeriveStreamKey(round_key, NoisePurpose::kKeys, spec.name);
  Column<uint8_t> kept(sums.num_keys);
  Column<int64_t> noisy(sums.num_keys);
  ForAll(sums.num_keys, [&](uint64_t row) {
    NoiseStream stream(stream_key, sums.KeyAt(row));
    const int64_t score = RowAt(sums, row)[spec.row_width];
    // Scores of other selections are numbers of contributors. Without counts one is all that is asked for.
    const bool weighted = spec.privacy->keys == KeySelection::kWeightedGaussian;
    const uint64_t contributors =
        !weighted ? static_cast<uint64_t>(score) : (sums.counts.empty() ? 1 : sums.counts[row]);
    noisy[row] = 0;
    kept[row] = rule.Keeps(score, contributors, stream, noisy[row]) ? 1 : 0;
  });
  const auto num_kept = static_cast<uint64_t>(std::count(kept.begin(), kept.end(), 1));
  Selected selected{Column<uint64_t>(num_kept), Column<uint64_t>(num_kept), {}};
  if (spec.privacy->keys == KeySelection::kCountGaussian) selected.noisy_scores.resize(num_kept);
  uint64_t to = 0;
  for (uint64_t row = 0; row < sums.num_keys; ++row) {
    if (kept[row] == 0) continue;
    selected.keys[to] = sums.KeyAt(row);
    selected.rows[to] = row;
    if (!selected.noisy_scores.empty()) selected.noisy_scores[to] = noisy[row];
    ++to;
  }
  return selected;
}

Selected PublicKeys(const TensorSpec& spec, const Result& sums) {
  const std::vector<uint64_t>* const listed = spec.privacy->public_keys.get();
  const uint64_t count = listed == nullptr ? spec.num_rows : listed->size();
  Selected selected{Column<uint64_t>(count), Column<uint64_t>(count), {}};
  uint64_t row = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t key = listed == nullptr ? i : (*listed)[i];
    while (row < sums.num_keys && sums.KeyAt(row) < key) ++row;
    selected.keys[i] = key;
    selected.rows[i] = row < sums.num_keys && sums.KeyAt(row) == key ? row : kNoRow;
  }
  return selected;
}

// Writes the noisy row of one selected key.
class RowWriter {
 public:
  RowWriter(const TensorSpec& spec, const Result& sums, const Bytes32& round_key)
      : spec_(spec),
        sums_(sums),
        lattice_(privacy::LatticeOf(spec)),
        gaussian_(lattice_.sigma),
        stream_key_(DeriveStreamKey(round_key, NoisePurpose::kValues, spec.name)),
        unit_(std::ldexp(1.0, -lattice_.shift)),
        dtype_(ResultDType(spec)) {}

  // `to`: the row of `values` to write. `divisor`: 1 for a sum.
  void Write(uint64_t key, uint64_t row, double divisor, std::byte* values, uint64_t to) const {
    NoiseStream stream(stream_key_, key);
    for (uint32_t c = 0; c < spec_.row_width; ++c) {
      const int64_t sum = row == kNoRow ? 0 : RowAt(sums_, row)[c];
      const Int128 noisy = Int128{sum} + gaussian_.Sample(stream);
      const double value = static_cast<double>(noisy) * unit_ / divisor;
      cpu::RoundTo(dtype_, &value, 1, values + (to * spec_.row_width + c) * SizeOf(dtype_));
    }
  }

 private:
  const TensorSpec& spec_;
  const Result& sums_;
  const privacy::Lattice lattice_;
  const privacy::DiscreteGaussian gaussian_;
  const Bytes32 stream_key_;
  const double unit_;
  const DType dtype_;
};

double DivisorOf(const TensorSpec& spec, const Selected& selected, uint64_t i) {
  if (spec.aggregation.op == Op::kMean) return spec.aggregation.fixed_divisor;
  if (spec.aggregation.op == Op::kSum) return 1.0;
  return static_cast<double>(std::max<int64_t>(selected.noisy_scores[i], 1));
}

}  // namespace

Result MakePrivateResult(const TensorSpec& spec, const Result& sums, const Bytes32& round_key) {
  const bool is_public = spec.privacy->keys == KeySelection::kPublic;
  const Selected selected = is_public ? PublicKeys(spec, sums) : SelectKeys(spec, sums, round_key);
  const uint64_t num_selected = selected.keys.size();
  const RowWriter writer(spec, sums, round_key);
  Result result = cpu::MakeSparse(spec, num_selected);
  std::visit([&](auto& keys) { std::copy(selected.keys.begin(), selected.keys.end(), keys.begin()); }, result.keys);
  ForAll(num_selected, [&](uint64_t i) {
    writer.Write(selected.keys[i], selected.rows[i], DivisorOf(spec, selected, i), result.values.data(), i);
    if (!result.counts.empty()) {
      result.counts[i] = static_cast<uint32_t>(std::clamp<int64_t>(selected.noisy_scores[i], 0, 0xffffffff));
    }
  });
  return cpu::CutAndLayOut(spec, num_selected, std::move(result));
}

uint64_t PrivateResultBytes(const TensorSpec& spec, uint64_t num_keys) {
  const std::vector<uint64_t>* const listed = spec.privacy->public_keys.get();
  const bool is_public = spec.privacy->keys == KeySelection::kPublic;
  const uint64_t rows = !is_public ? num_keys : listed == nullptr ? spec.num_rows : listed->size();
  const uint64_t working = SaturatingMultiply(rows, 4 * sizeof(uint64_t));
  return SaturatingAdd(working, ResultBytes(spec, rows));
}

Bytes32 SpecDigest(absl::Span<const TensorSpec> specs) {
  privacy::Sha256 digest;
  const auto add_float = [&](double value) { digest.AddNumber(std::bit_cast<uint64_t>(value)); };
  const auto add_enum = [&](auto value) { digest.AddNumber(static_cast<uint64_t>(value)); };
  for (const TensorSpec& spec : specs) {
    const AggregationSpec& a = spec.aggregation;
    digest.AddText(spec.name);
    add_enum(spec.dtype);
    digest.AddNumber(spec.num_rows);
    digest.AddNumber(spec.row_width);
    add_enum(spec.layout);
    add_enum(a.op);
    add_enum(a.weighting);
    add_enum(a.result_layout);
    add_enum(ResultDType(spec));
    digest.AddNumber(a.return_counts ? 1 : 0);
    digest.AddNumber(a.min_contributors);
    add_float(a.fill);
    add_float(a.dense_threshold.value_or(0.0));
    add_float(a.fixed_divisor);
    digest.AddNumber(a.max_submissions);
    add_float(spec.clip.l2);
    add_float(spec.clip.linf);
    digest.AddNumber(spec.clip.max_keys);
    if (!spec.privacy.has_value()) continue;
    const TensorPrivacy& p = *spec.privacy;
    add_float(p.noise_multiplier);
    add_float(p.weight_bound);
    add_enum(p.keys);
    add_float(p.key_noise_multiplier);
    add_float(p.key_delta);
    digest.AddNumber(p.public_keys == nullptr ? 0 : p.public_keys->size());
    if (p.public_keys == nullptr) continue;
    for (const uint64_t key : *p.public_keys) digest.AddNumber(key);
  }
  return digest.Finish();
}

}  // namespace sparseagg
