#include "host/clip/bounded_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/status_macros.h"
#include "host/cpu/prepare/sorted_tuples.h"
#include "host/cpu/rows/wire_value.h"
#include "host/updates/input_checks.h"

namespace sparseagg::clip {
namespace {

double WidenAt(DType dtype, const std::byte* values, uint64_t index) {
  switch (dtype) {
    case DType::kFloat16:
      return cpu::Widen(cpu::LoadWire<cpu::Float16>(values, index));
    case DType::kBFloat16:
      return cpu::Widen(cpu::LoadWire<cpu::BFloat16>(values, index));
    case DType::kFloat64:
      return cpu::LoadWire<double>(values, index);
    default:
      return cpu::LoadWire<float>(values, index);
  }
}

// Adds up the rows of each key in float64, in the order of occurrence, from +0.0.
template <typename Key, typename Tuples>
void FoldRepeats(const TensorSpec& spec, const Tuples& tuples, const std::byte* values, Column<Key>& keys,
                 Column<std::byte>& folded) {
  const size_t width = spec.row_width;
  keys.resize(static_cast<size_t>(std::unique(keys.begin(), keys.end()) - keys.begin()));
  folded.resize(keys.size() * width * sizeof(double));
  auto* const sums = reinterpret_cast<double*>(folded.data());
  std::fill_n(sums, keys.size() * width, 0.0);
  size_t row = 0;
  for (size_t i = 0; i < tuples.size(); ++i) {
    if (i > 0 && tuples.key(i) != tuples.key(i - 1)) ++row;
    for (size_t c = 0; c < width; ++c) {
      sums[row * width + c] += WidenAt(spec.dtype, values, uint64_t{tuples.position(i)} * width + c);
    }
  }
}

}  // namespace

BoundedRows::BoundedRows(const TensorSpec& spec, const ValidatedUpdate& update)
    : spec_(spec),
      update_(update),
      keys_(update.keys()),
      num_keys_(update.num_keys()),
      values_(update.values()),
      dtype_(spec.dtype) {}

absl::StatusOr<BoundedRows> BoundedRows::Create(const TensorSpec& spec, const ValidatedUpdate& update) {
  BoundedRows rows(spec, update);
  if (update.unique()) return rows;
  if (update.num_keys() > std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(spec), ": ", update.num_keys(), " unsorted tuples in one update; 2^32 - 1 is the most"));
  }
  HasNarrowKeys(spec) ? rows.SortAs<uint32_t>() : rows.SortAs<uint64_t>();
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
  const cpu::SortedTuples<Key> sorted(std::get<absl::Span<const Key>>(update_.keys()), update_.sorted());
  sorted.With([&](const auto& tuples) {
    if (cpu::CopyKeysInOrder(tuples, keys)) {
      FoldRepeats(spec_, tuples, update_.values(), keys, storage_->values);
      dtype_ = DType::kFloat64;
      folded_ = true;
    } else {
      cpu::CopyValuesInOrder(tuples, update_.values(), SizeOf(spec_.dtype) * spec_.row_width, storage_->values);
    }
  });
  keys_ = absl::MakeConstSpan(keys);
  num_keys_ = keys.size();
  values_ = storage_->values.data();
}

absl::StatusOr<bool> BoundedRows::KeepLargest() {
  const uint64_t most = spec_.clip.max_keys;
  if (most == 0 || num_keys_ <= most) return false;
  if (spec_.clip.on_clip == ClipPolicy::kReject) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(spec_), ": ", num_keys_, " keys are beyond clip.max_keys ", most));
  }
  Column<double> norms(num_keys_);
  Column<uint64_t> order(num_keys_);
  std::iota(order.begin(), order.end(), uint64_t{0});
  const size_t row_bytes = SizeOf(dtype_) * spec_.row_width;
  for (uint64_t row = 0; row < num_keys_; ++row) {
    SquaredSum sum;
    AddSquares(dtype_, values_ + row * row_bytes, spec_.row_width, TensorClip::kNone, sum);
    norms[row] = sum.Total();
  }
  std::nth_element(order.begin(), order.begin() + most, order.end(), [&](uint64_t a, uint64_t b) {
    return norms[a] != norms[b] ? norms[a] > norms[b] : a < b;
  });
  Column<uint8_t> kept(num_keys_);
  std::fill(kept.begin(), kept.end(), uint8_t{0});
  for (uint64_t i = 0; i < most; ++i) kept[order[i]] = 1;
  HasNarrowKeys(spec_) ? SelectAs<uint32_t>(kept, most) : SelectAs<uint64_t>(kept, most);
  changed_ = true;
  return true;
}

template <typename Key>
void BoundedRows::SelectAs(const Column<uint8_t>& kept, uint64_t num_kept) {
  auto selected = std::make_shared<Storage>();
  Column<Key>& keys = KeysOf<Key>(*selected);
  keys.resize(num_kept);
  const size_t row_bytes = SizeOf(dtype_) * spec_.row_width;
  selected->values.resize(num_kept * row_bytes);
  uint64_t to = 0;
  for (uint64_t row = 0; row < num_keys_; ++row) {
    if (kept[row] == 0) continue;
    keys[to] = static_cast<Key>(KeyAt(keys_, row));
    std::copy_n(values_ + row * row_bytes, row_bytes, selected->values.data() + to * row_bytes);
    ++to;
  }
  keys_ = absl::MakeConstSpan(keys);
  num_keys_ = num_kept;
  values_ = selected->values.data();
  storage_ = std::move(selected);
}

absl::StatusOr<bool> BoundedRows::AddSquaresTo(SquaredSum& sum) {
  const TensorClip& clip = spec_.clip;
  if (AddSquares(dtype_, values_, num_values(), clip.linf, sum) <= clip.linf) return false;
  if (clip.on_clip == ClipPolicy::kClip) {
    changed_ = true;
    return true;
  }
  uint64_t i = 0;
  while (std::abs(WidenAt(dtype_, values_, i)) <= clip.linf) ++i;
  std::string where = absl::StrCat(Quoted(spec_), ", key ", KeyAt(keys_, i / spec_.row_width));
  if (spec_.row_width > 1) absl::StrAppend(&where, ", column ", i % spec_.row_width);
  return absl::InvalidArgumentError(absl::StrFormat("%s: value %.9g is beyond clip.linf %.9g", where,
                                                    WidenAt(dtype_, values_, i), clip.linf));
}

absl::StatusOr<ValidatedUpdate> BoundedRows::Finish(double factor) {
  if (!changed_ && factor == 1.0) {
    // As sent: folded rows have not been rounded, so the engine folds them once more.
    if (storage_ == nullptr || folded_) return update_;
    return ValidatedUpdate::CreateFromTrusted({keys_, values_, storage_}, update_.weight());
  }
  auto bounded = std::make_shared<Storage>();
  if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&keys_)) {
    // Keys of the update are copied, so that it does not keep its values alive.
    if (storage_ == nullptr) bounded->narrow_keys = Column<uint32_t>(narrow->begin(), narrow->end());
    if (storage_ != nullptr) bounded->narrow_keys = std::move(storage_->narrow_keys);
    keys_ = absl::MakeConstSpan(bounded->narrow_keys);
  } else if (const auto* wide = std::get_if<absl::Span<const uint64_t>>(&keys_)) {
    if (storage_ == nullptr) bounded->wide_keys = Column<uint64_t>(wide->begin(), wide->end());
    if (storage_ != nullptr) bounded->wide_keys = std::move(storage_->wide_keys);
    keys_ = absl::MakeConstSpan(bounded->wide_keys);
  }
  bounded->values.resize(num_values() * SizeOf(spec_.dtype));
  ScaleAndRound(dtype_, values_, num_values(), spec_.clip.linf, factor, spec_.dtype, bounded->values.data());
  if (folded_ && spec_.dtype != DType::kFloat64) {
    RETURN_IF_ERROR(internal::CheckValues({&spec_, std::nullopt}, 0,
                                          reinterpret_cast<const char*>(bounded->values.data()), num_values(),
                                          [&](uint64_t position) { return KeyAt(keys_, position); }));
  }
  const std::byte* const values = bounded->values.data();
  return ValidatedUpdate::CreateFromTrusted({keys_, values, std::move(bounded)}, update_.weight());
}

}  // namespace sparseagg::clip
