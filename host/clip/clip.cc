#include "host/clip/clip.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/clip/clip_kernels.h"
#include "host/cpu/finish/assemble.h"
#include "host/cpu/prepare/sorted_tuples.h"
#include "host/cpu/rows/wire_value.h"
#include "host/spec/spec.h"
#include "host/updates/input_checks.h"
#include "host/updates/update.h"

namespace sparseagg::clip {

// One tensor's update while its bounds are applied: its tuples in ascending order of key, and its rows, one for each
// distinct key: the sum of the tuples of that key. Owned by ApplyClips. Borrows spec and update.
//
//   ASSIGN_OR_RETURN(BoundedRows rows, BoundedRows::Create(spec, update));
//   RETURN_IF_ERROR(rows.KeepLargest().status());
//   RETURN_IF_ERROR(rows.AddSquaresTo(sum).status());              // also clamps
//   const ValidatedUpdate bounded = rows.Finish(factor);
//
// Not thread-safe.
class BoundedRows {
 public:
  // Sorts the tuples and folds repeated keys where needed. Errors: RESOURCE_EXHAUSTED: 2^32 or more unsorted tuples.
  static absl::StatusOr<BoundedRows> Create(const TensorSpec& spec, const ValidatedUpdate& update);

  // Keeps the max_keys rows of the largest sums of squares; of equal ones those of the lower keys.
  // Returns: whether there were more. Errors: RESOURCE_EXHAUSTED: there were, under kReject.
  absl::StatusOr<bool> KeepLargest();
  // Clamps the values of rows to ±linf, and adds their squares to `sum`.
  // Returns: whether a value was beyond linf. Errors: INVALID_ARGUMENT: one was, under kReject.
  absl::StatusOr<bool> AddSquaresTo(SquaredSum& sum);
  // Returns: the update with this factor, as sorting and the bounds have left it; the given arrays if unchanged.
  ValidatedUpdate Finish(double factor);

 private:
  // Memory of keys and values of our own.
  struct Storage {
    Column<uint32_t> narrow_keys;
    Column<uint64_t> wide_keys;
    Column<std::byte> values;
  };

  BoundedRows(const TensorSpec& spec, const ValidatedUpdate& update);
  template <typename Key>
  void SortAs();
  void FoldRepeats();
  template <typename Key>
  static Column<Key>& KeysOf(Storage& storage);
  template <typename Key>
  void SelectAs(const Column<uint8_t>& kept);
  void ClampRows();
  // Copies keys and values that are not our own yet.
  void Own();
  uint64_t num_rows() const { return unique_ ? NumKeys(keys_) : folded_.size() / spec_.row_width; }
  // The values of rows, and their type.
  const std::byte* rows() const { return unique_ ? values_ : reinterpret_cast<const std::byte*>(folded_.data()); }
  DType row_dtype() const { return unique_ ? spec_.dtype : DType::kFloat64; }
  size_t tuple_bytes() const { return SizeOf(spec_.dtype) * spec_.row_width; }

  const TensorSpec& spec_;
  const ValidatedUpdate& update_;
  std::shared_ptr<Storage> storage_;  // null: keys and values are those of the update
  KeyColumn keys_;                    // of tuples, like values_
  const std::byte* values_;
  bool unique_;
  Column<double> folded_;  // unless unique_: the rows
};

namespace {

// Calls use(tuple, row) for each tuple: `row` is the number of its key among the distinct keys, which ascend.
template <typename Use>
void ForTuples(const KeyColumn& keys, Use use) {
  const uint64_t n = NumKeys(keys);
  uint64_t row = 0;
  for (uint64_t i = 0; i < n; ++i) {
    if (i > 0 && KeyAt(keys, i) != KeyAt(keys, i - 1)) ++row;
    use(i, row);
  }
}

}  // namespace

BoundedRows::BoundedRows(const TensorSpec& spec, const ValidatedUpdate& update)
    : spec_(spec), update_(update), keys_(update.keys()), values_(update.values()), unique_(update.unique()) {}

absl::StatusOr<BoundedRows> BoundedRows::Create(const TensorSpec& spec, const ValidatedUpdate& update) {
  BoundedRows rows(spec, update);
  if (update.unique()) return rows;
  if (!update.sorted()) {
    if (update.num_keys() > std::numeric_limits<uint32_t>::max()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(Quoted(spec), ": ", update.num_keys(), " unsorted tuples in one update; 2^32 - 1 is the most"));
    }
    HasNarrowKeys(spec) ? rows.SortAs<uint32_t>() : rows.SortAs<uint64_t>();
  }
  if (!rows.unique_) rows.FoldRepeats();
  return rows;
}

template <typename Key>
Column<Key>& BoundedRows::KeysOf(Storage& storage) {
  if constexpr (std::is_same_v<Key, uint32_t>) {
    return storage.narrow_keys;
  } else {
    return storage.wide_keys;
  }
}

template <typename Key>
void BoundedRows::SortAs() {
  storage_ = std::make_shared<Storage>();
  Column<Key>& keys = KeysOf<Key>(*storage_);
  const cpu::SortedTuples<Key> sorted(std::get<absl::Span<const Key>>(update_.keys()), /*sorted=*/false);
  sorted.With([&](const auto& tuples) {
    unique_ = !cpu::CopyKeysInOrder(tuples, keys);
    cpu::CopyValuesInOrder(tuples, update_.values(), tuple_bytes(), storage_->values);
  });
  keys_ = absl::MakeConstSpan(keys);
  values_ = storage_->values.data();
}

void BoundedRows::FoldRepeats() {
  const size_t width = spec_.row_width;
  uint64_t rows = 0;
  ForTuples(keys_, [&](uint64_t, uint64_t row) { rows = row + 1; });
  folded_.resize(rows * width);
  std::fill(folded_.begin(), folded_.end(), 0.0);
  ForTuples(keys_, [&](uint64_t tuple, uint64_t row) {
    for (size_t c = 0; c < width; ++c)
      folded_[row * width + c] += cpu::WidenAt(spec_.dtype, values_, tuple * width + c);
  });
}

absl::StatusOr<bool> BoundedRows::KeepLargest() {
  const uint64_t most = spec_.clip.max_keys;
  const uint64_t rows_before = num_rows();
  if (most == 0 || rows_before <= most) return false;
  if (spec_.clip.on_clip == ClipPolicy::kReject) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(spec_), ": ", rows_before, " keys are beyond clip.max_keys ", most));
  }
  Column<double> norms(rows_before);
  Column<uint64_t> order(rows_before);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (uint64_t row = 0; row < rows_before; ++row) {
    SquaredSum sum;
    AddSquares(row_dtype(), rows() + row * SizeOf(row_dtype()) * spec_.row_width, spec_.row_width, TensorClip::kNone,
               sum);
    norms[row] = sum.Total();
  }
  std::nth_element(order.begin(), order.begin() + most, order.end(),
                   [&](uint64_t a, uint64_t b) { return norms[a] != norms[b] ? norms[a] > norms[b] : a < b; });
  Column<uint8_t> kept(rows_before);
  std::fill(kept.begin(), kept.end(), uint8_t{0});
  for (uint64_t i = 0; i < most; ++i) kept[order[i]] = 1;
  HasNarrowKeys(spec_) ? SelectAs<uint32_t>(kept) : SelectAs<uint64_t>(kept);
  return true;
}

template <typename Key>
void BoundedRows::SelectAs(const Column<uint8_t>& kept) {
  uint64_t num_kept = 0;
  ForTuples(keys_, [&](uint64_t, uint64_t row) { num_kept += kept[row]; });
  auto selected = std::make_shared<Storage>();
  Column<Key>& keys = KeysOf<Key>(*selected);
  keys.resize(num_kept);
  selected->values.resize(num_kept * tuple_bytes());
  uint64_t to = 0;
  ForTuples(keys_, [&](uint64_t tuple, uint64_t row) {
    if (kept[row] == 0) return;
    keys[to] = static_cast<Key>(KeyAt(keys_, tuple));
    std::memcpy(selected->values.data() + to * tuple_bytes(), values_ + tuple * tuple_bytes(), tuple_bytes());
    ++to;
  });
  keys_ = absl::MakeConstSpan(keys);
  values_ = selected->values.data();
  storage_ = std::move(selected);
  if (!unique_) FoldRepeats();
}

absl::StatusOr<bool> BoundedRows::AddSquaresTo(SquaredSum& sum) {
  const TensorClip& clip = spec_.clip;
  const uint64_t count = num_rows() * spec_.row_width;
  const double largest = AddSquares(row_dtype(), rows(), count, clip.linf, sum);
  if (clip.linf == TensorClip::kNone || largest <= clip.linf) return false;  // NaN only where linf is kNone
  if (clip.on_clip == ClipPolicy::kClip) {
    ClampRows();
    return true;
  }
  uint64_t i = 0;
  while (std::abs(cpu::WidenAt(row_dtype(), rows(), i)) <= clip.linf) ++i;
  uint64_t key = 0;
  ForTuples(keys_, [&](uint64_t tuple, uint64_t row) { key = row == i / spec_.row_width ? KeyAt(keys_, tuple) : key; });
  std::string where = absl::StrCat(Quoted(spec_), ", key ", key);
  if (spec_.row_width > 1) absl::StrAppend(&where, ", column ", i % spec_.row_width);
  return absl::InvalidArgumentError(absl::StrFormat("%s: value %.9g is beyond clip.linf %.9g", where,
                                                    cpu::WidenAt(row_dtype(), rows(), i), clip.linf));
}

void BoundedRows::ClampRows() {
  Own();
  const double limit = spec_.clip.linf;
  std::byte* const values = storage_->values.data();
  if (unique_) return Clamp(spec_.dtype, values, NumKeys(keys_) * spec_.row_width, limit);
  // Where the sum of a key is beyond the limit, its first tuple gets ±limit, and its others 0. Sums within it stay
  // spread over their tuples: the dtype has the limit, but perhaps not those sums.
  const size_t width = spec_.row_width;
  uint64_t last_row = num_rows();
  ForTuples(keys_, [&](uint64_t tuple, uint64_t row) {
    for (size_t c = 0; c < width; ++c) {
      const double sum = folded_[row * width + c];
      if (std::abs(sum) <= limit) continue;
      const double clamped = row == last_row ? 0.0 : std::copysign(limit, sum);
      cpu::RoundTo(spec_.dtype, &clamped, 1, values + tuple * tuple_bytes() + c * SizeOf(spec_.dtype));
    }
    last_row = row;
  });
}

void BoundedRows::Own() {
  if (storage_ != nullptr) return;
  storage_ = std::make_shared<Storage>();
  const auto copy = [this](const auto& keys) {
    using Key = typename std::decay_t<decltype(keys)>::value_type;
    Column<Key>& copied = KeysOf<Key>(*storage_);
    copied = Column<Key>(keys.begin(), keys.end());
    keys_ = absl::Span<const Key>(copied.data(), copied.size());
  };
  if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&update_.keys())) copy(*narrow);
  if (const auto* wide = std::get_if<absl::Span<const uint64_t>>(&update_.keys())) copy(*wide);
  storage_->values = Column<std::byte>(values_, values_ + NumKeys(keys_) * tuple_bytes());
  values_ = storage_->values.data();
}

ValidatedUpdate BoundedRows::Finish(double factor) {
  if (storage_ == nullptr) return update_.WithFactor(factor);
  return ValidatedUpdate::CreateFromTrusted({keys_, values_, storage_}, update_.weight(), unique_).WithFactor(factor);
}

}  // namespace sparseagg::clip

namespace sparseagg {
namespace {

// Returns: the factor that brings the norm down to `bound`; 1 if it is not above.
// Errors: INVALID_ARGUMENT: the norm is not finite, or above the bound under kReject. `where`: how the text begins.
absl::StatusOr<double> FactorOf(const clip::SquaredSum& sum, double bound, ClipPolicy policy,
                                const std::string& where) {
  if (bound == TensorClip::kNone) return 1.0;
  const double norm = std::sqrt(sum.Total());
  if (!std::isfinite(norm)) {
    return absl::InvalidArgumentError(absl::StrCat(where, "the squared L2 norm of the submission is beyond float64"));
  }
  if (norm <= bound) return 1.0;
  if (policy == ClipPolicy::kClip) return bound / norm;
  const int digits = absl::StrFormat("%.9g", norm) == absl::StrFormat("%.9g", bound) ? 17 : 9;  // so that they differ
  return absl::InvalidArgumentError(absl::StrFormat("%sthe L2 norm %.*g of the submission is beyond clip.l2 %.*g",
                                                    where, digits, norm, digits, bound));
}

// Errors: INVALID_ARGUMENT: a value is not finite; as of ValidatedUpdate::Create.
absl::Status CheckValues(const TensorSpec& spec, const ValidatedUpdate& update) {
  return internal::CheckValues({&spec, std::nullopt}, 0, reinterpret_cast<const char*>(update.values()),
                               update.num_keys() * spec.row_width,
                               [&update](uint64_t position) { return KeyAt(update.keys(), position); });
}

}  // namespace

absl::StatusOr<ClipOutcome> ApplyClips(absl::Span<const TensorSpec> specs, std::vector<ValidatedUpdate>& updates) {
  ClipOutcome outcome;
  std::vector<std::optional<clip::BoundedRows>> rows(specs.size());
  std::vector<double> factors(specs.size(), 1.0);
  clip::SquaredSum shared;
  const TensorClip* sharing = nullptr;
  for (size_t t = 0; t < specs.size(); ++t) {
    const TensorClip& clip = specs[t].clip;
    if (!clip.has_bound() || updates[t].num_keys() == 0) continue;
    if (updates[t].on_device()) {
      return absl::UnimplementedError(
          absl::StrCat(Quoted(specs[t]),
                       ": clip takes updates in host memory, and this one is in device memory: copy "
                       "it to the host first"));
    }
    ASSIGN_OR_RETURN(clip::BoundedRows bounded, clip::BoundedRows::Create(specs[t], updates[t]));
    rows[t].emplace(std::move(bounded));
    ASSIGN_OR_RETURN(const bool drops_keys, rows[t]->KeepLargest());
    clip::SquaredSum own;
    clip::SquaredSum& sum = clip.shares_l2 ? shared : own;
    ASSIGN_OR_RETURN(const bool clamps, rows[t]->AddSquaresTo(sum));
    if (clip.checks_values() && !std::isfinite(sum.Total())) RETURN_IF_ERROR(CheckValues(specs[t], updates[t]));
    outcome.max_keys |= drops_keys;
    outcome.linf |= clamps;
    if (clip.shares_l2) {
      sharing = &clip;
    } else {
      ASSIGN_OR_RETURN(factors[t], FactorOf(own, clip.l2, clip.on_l2, absl::StrCat(Quoted(specs[t]), ": ")));
    }
  }
  double shared_factor = 1.0;
  if (sharing != nullptr) {
    ASSIGN_OR_RETURN(shared_factor, FactorOf(shared, sharing->l2, sharing->on_l2, ""));
  }
  for (size_t t = 0; t < specs.size(); ++t) {
    if (!rows[t].has_value()) continue;
    const double factor = specs[t].clip.shares_l2 ? shared_factor : factors[t];
    outcome.factor = std::min(outcome.factor, factor);
    updates[t] = rows[t]->Finish(factor);
  }
  return outcome;
}

uint64_t ApplyClipsBytes(absl::Span<const TensorSpec> specs, absl::Span<const ValidatedUpdate> updates) {
  uint64_t bytes = 0;
  for (size_t t = 0; t < specs.size(); ++t) {
    const TensorSpec& spec = specs[t];
    if (!spec.clip.has_bound()) continue;
    const uint64_t num_keys = updates[t].num_keys();
    if (updates[t].unique() && spec.clip.linf == TensorClip::kNone && spec.clip.max_keys == 0) continue;
    // Sorted or clamped tuples, folded rows, and the tuples that max_keys keeps, with norms and order of all.
    const uint64_t tuple_bytes = KeyBytes(spec) + SizeOf(spec.dtype) * uint64_t{spec.row_width};
    uint64_t of_key = tuple_bytes;
    if (!updates[t].unique()) of_key += sizeof(double) * uint64_t{spec.row_width};
    if (spec.clip.max_keys != 0) of_key += tuple_bytes + 3 * sizeof(uint64_t);
    bytes = SaturatingAdd(bytes, SaturatingMultiply(num_keys, of_key));
    if (!updates[t].unique()) bytes = SaturatingAdd(bytes, cpu::SortedTuplesBytes(spec, num_keys));
  }
  return bytes;
}

}  // namespace sparseagg
