#include "host/clip/bounded_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/half.h"
#include "host/cpu/prepare/sorted_tuples.h"
#include "host/cpu/rows/wire_value.h"

namespace sparseagg::clip {
namespace {

// Writes a value that the type has.
void StoreAt(DType dtype, double value, std::byte* values, uint64_t index) {
  const auto store = [&](auto narrow) { std::memcpy(values + index * sizeof(narrow), &narrow, sizeof(narrow)); };
  switch (dtype) {
    case DType::kFloat16:
      return store(RoundToFloat16(value));
    case DType::kBFloat16:
      return store(RoundToBFloat16(value));
    case DType::kFloat64:
      return store(value);
    default:
      return store(static_cast<float>(value));
  }
}

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
  if (clip.linf == TensorClip::kNone || largest <= clip.linf) return false;  // without linf, it may be NaN
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
  // The first tuple of a key gets the clamped sum, the others 0: the type has the limit, but may not have other sums.
  const size_t width = spec_.row_width;
  uint64_t last_row = num_rows();
  ForTuples(keys_, [&](uint64_t tuple, uint64_t row) {
    for (size_t c = 0; c < width; ++c) {
      const double sum = folded_[row * width + c];
      if (std::abs(sum) <= limit) continue;
      StoreAt(spec_.dtype, row == last_row ? 0.0 : std::copysign(limit, sum), values, tuple * width + c);
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
