#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/prepare/coarse_order.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/prepare/repeat_fold.h"
#include "host/cpu/prepare/sorted_tuples.h"
#include "host/cpu/prepare/term_checks.h"
#include "host/cpu/prepare/terms.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/wire_value.h"
#include "host/cpu/simd/kernels.h"

namespace sparseagg::cpu {
namespace {

// Memory of an update that was sorted or folded.
template <typename Key>
struct Storage {
  Column<Key> keys;
  Column<std::byte> values;
};

// Bytes of one value of a folded row.
size_t FoldedBytes(DType dtype) { return dtype == DType::kUInt32 ? sizeof(uint32_t) : sizeof(uint64_t); }

// Adds up the rows of each key. `Sum` accumulates values of `Wire`. store(key, column, sum, stored) narrows one sum to
// `Stored`; its error is returned.
template <typename Wire, typename Sum, typename Stored, typename Key, typename Tuples, typename Store>
absl::Status FoldRowsAs(const TensorSpec& spec, const Tuples& tuples, const std::byte* values, Storage<Key>& out,
                        Store store) {
  const size_t row_width = spec.row_width;
  out.keys.reserve(tuples.size());
  out.values.reserve(tuples.size() * row_width * sizeof(Stored));
  std::vector<Sum> row(row_width);
  std::vector<Stored> stored(row_width);
  for (size_t i = 0; i < tuples.size();) {
    const Key key = tuples.key(i);
    std::fill(row.begin(), row.end(), Sum{0});
    for (; i < tuples.size() && tuples.key(i) == key; ++i) {
      for (size_t c = 0; c < row_width; ++c) {
        const Wire value = LoadWire<Wire>(values, uint64_t{tuples.position(i)} * row_width + c);
        if constexpr (std::is_same_v<Sum, double>) {
          row[c] += Widen(value);
        } else {
          row[c] += static_cast<Sum>(value);
        }
      }
    }
    for (size_t c = 0; c < row_width; ++c) RETURN_IF_ERROR(store(key, c, row[c], stored[c]));
    out.keys.push_back(key);
    out.values.Append(reinterpret_cast<const std::byte*>(stored.data()), row_width * sizeof(Stored));
  }
  return absl::OkStatus();
}

// Adds up the rows of each key, which are floats, as float64.
template <typename Key>
void FoldFloatRows(const TensorSpec& spec, const SortedTuples<Key>& sorted, const std::byte* values,
                   Storage<Key>& out) {
  const size_t width = spec.row_width;
  const size_t num_keys = sorted.CountKeys();
  out.keys.resize(num_keys);
  out.values.resize(num_keys * width * sizeof(double));
  RepeatFold<Key> fold(sorted, {values, sorted.size() * width, {}, spec.dtype}, {});
  DirectOutput<Key> output;
  output.keys = out.keys.data();
  output.values = out.values.data();
  output.columns = width;
  output.dtype = DType::kFloat64;
  const size_t step = std::max<size_t>(1, CurrentTuning().block_values / width);
  for (size_t begin = 0; begin < sorted.size();) {
    const size_t end = sorted.NextKey(begin + step);
    fold.Collect(begin, end);
    fold.WriteTo(output);
    output.keys += fold.num_keys();
    output.values += fold.num_keys() * output.row_bytes();
    begin = end;
  }
}

// Folds the rows of repeated keys. Sets `dtype` to the type of the folded rows.
template <typename Key, typename Tuples>
absl::Status FoldRows(const TensorSpec& spec, const Tuples& tuples, const std::byte* values, Storage<Key>& out,
                      DType& dtype) {
  const auto keep = [](Key, size_t, auto sum, auto& stored) {
    stored = static_cast<std::remove_reference_t<decltype(stored)>>(sum);
    return absl::OkStatus();
  };
  const auto fit = [&](Key key, size_t column, __int128 sum, int64_t& stored) {
    if (sum < std::numeric_limits<int64_t>::min() || sum > std::numeric_limits<int64_t>::max()) {
      return absl::OutOfRangeError(
          absl::StrCat(RowName(spec, key, column), ": the sum of this submission's own values leaves int64"));
    }
    stored = static_cast<int64_t>(sum);
    return absl::OkStatus();
  };
  switch (spec.dtype) {
    case DType::kFloat32:
      dtype = DType::kFloat64;
      return FoldRowsAs<float, double, double>(spec, tuples, values, out, keep);
    case DType::kFloat64:
      return FoldRowsAs<double, double, double>(spec, tuples, values, out, keep);
    case DType::kFloat16:
      dtype = DType::kFloat64;
      return FoldRowsAs<Float16, double, double>(spec, tuples, values, out, keep);
    case DType::kBFloat16:
      dtype = DType::kFloat64;
      return FoldRowsAs<BFloat16, double, double>(spec, tuples, values, out, keep);
    case DType::kInt32:
      dtype = DType::kInt64;
      return FoldRowsAs<int32_t, __int128, int64_t>(spec, tuples, values, out, fit);
    case DType::kInt64:
      return FoldRowsAs<int64_t, __int128, int64_t>(spec, tuples, values, out, fit);
    case DType::kUInt32:
      return FoldRowsAs<uint32_t, uint32_t, uint32_t>(spec, tuples, values, out, keep);
    case DType::kUInt64:
      return FoldRowsAs<uint64_t, uint64_t, uint64_t>(spec, tuples, values, out, keep);
  }
  return absl::InternalError("unknown dtype");
}

// Copies tuples in order, and folds the rows of repeated keys. `values` may be null.
template <typename Key>
absl::Status CopyOrFold(const TensorSpec& spec, const SortedTuples<Key>& sorted, const std::byte* values,
                        Storage<Key>& out, DType& dtype) {
  return sorted.With([&](const auto& tuples) -> absl::Status {
    if (!CopyKeysInOrder(tuples, out.keys)) {
      if (values != nullptr) CopyValuesInOrder(tuples, values, SizeOf(spec.dtype) * spec.row_width, out.values);
    } else if (values == nullptr) {
      out.keys.resize(static_cast<size_t>(std::unique(out.keys.begin(), out.keys.end()) - out.keys.begin()));
    } else if (IsFloat(spec.dtype) && spec.row_width > 1) {
      dtype = DType::kFloat64;
      FoldFloatRows(spec, sorted, values, out);
    } else {
      out.keys.clear();
      return FoldRows(spec, tuples, values, out, dtype);
    }
    return absl::OkStatus();
  });
}

// Makes `storage` the keys and values of `out`.
template <typename Key>
void SetColumns(std::shared_ptr<Storage<Key>> storage, CpuUpdate& out) {
  // Folding may leave few of many tuples, and the update may be kept for long.
  storage->keys.Trim();
  storage->values.Trim();
  out.keys = absl::MakeConstSpan(storage->keys);
  out.num_keys = storage->keys.size();
  out.values = storage->values.empty() ? nullptr : storage->values.data();
  out.bytes = storage->keys.size() * sizeof(Key) + storage->values.size();
  out.owner = std::move(storage);
}

// Returns: whether CheckTerms accepts the rows as they were sent. Packed rows can be checked no more. A refused update
// is sorted completely, and checked then, so that the error names the smallest key. `like`: dtype, factor
// and weight.
bool TermsAreGood(const TensorSpec& spec, const ValidatedUpdate& update, const CpuUpdate& like) {
  CpuUpdate rows;
  rows.keys = update.keys();
  rows.num_keys = update.num_keys();
  rows.values = update.values();
  rows.dtype = like.dtype;
  rows.weight = like.weight;
  rows.factor = like.factor;
  return CheckTerms(spec, rows, /*as_sent=*/true).ok();
}

// Returns: whether unsorted updates of this tensor are packed into words (CoarseWords).
bool FitsWords(const TensorSpec& spec, int coarse_bits) {
  return spec.dtype == DType::kFloat32 && spec.row_width == 1 && !HasNarrowKeys(spec) &&
         coarse_bits <= CoarseWords::kMaxLowBits;
}

// Puts an unsorted update into coarse order, in words.
// Returns: false if OrderCoarselyInWords does.
bool PackIntoWords(const ValidatedUpdate& update, int coarse_bits, CpuUpdate& out) {
  auto words = std::make_shared<CoarseWords>();
  const auto& keys = std::get<absl::Span<const uint64_t>>(update.keys());
  if (!OrderCoarselyInWords(keys, update.values(), coarse_bits, *words)) return false;
  out.keys = absl::Span<const uint64_t>();
  out.num_keys = keys.size();
  out.words = words.get();
  out.coarse_bits = coarse_bits;
  // Counted as unpacked, since a merge may call Unpack: a round must not hold more than it has reserved.
  out.bytes = keys.size() * (sizeof(uint64_t) + sizeof(float)) + sizeof(CoarseWords);
  out.owner = std::move(words);
  return true;
}

// Puts an update into coarse order if it is unsorted, large and without repeated keys; else sorts it completely and
// folds the rows of repeated keys.
template <typename Key>
absl::Status SortAndFold(const TensorSpec& spec, const ValidatedUpdate& update, CpuUpdate& out) {
  const auto& keys = std::get<absl::Span<const Key>>(update.keys());
  if (keys.size() > std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(spec), ": ", keys.size(), " unsorted tuples in one update; 2^32 - 1 is the most"));
  }
  const size_t row_bytes = update.values() == nullptr ? 0 : SizeOf(spec.dtype) * spec.row_width;
  auto storage = std::make_shared<Storage<Key>>();
  const int coarse_bits = CoarseBits(spec.num_rows);
  const bool in_words = update.values() != nullptr && FitsWords(spec, coarse_bits);
  if (!update.sorted() && in_words && TermsAreGood(spec, update, out) && PackIntoWords(update, coarse_bits, out)) {
    return absl::OkStatus();
  }
  if (!update.sorted() && coarse_bits > 0 && !in_words &&
      OrderCoarsely(keys, update.values(), row_bytes, coarse_bits, storage->keys, storage->values)) {
    out.coarse_bits = coarse_bits;
    SetColumns(std::move(storage), out);
    return absl::OkStatus();
  }
  const SortedTuples<Key> sorted(keys, update.sorted());
  storage->values.clear();
  RETURN_IF_ERROR(CopyOrFold(spec, sorted, update.values(), *storage, out.dtype));
  SetColumns(std::move(storage), out);
  return absl::OkStatus();
}

// The tuples of an update that is not folded yet, and the owner of its rows.
template <typename Key>
struct Unfolded {
  SortedTuples<Key> tuples;
  std::shared_ptr<const void> value_owner;
};

// Returns: whether updates of this tensor may stay unfolded: those with rows of floats. Single values are moved in the
// sort at no more cost than their positions.
bool CanStayUnfolded(const TensorSpec& spec, const ValidatedUpdate& update) {
  const uint64_t n = update.num_keys();
  return IsFloat(spec.dtype) && spec.row_width > 1 && update.values() != nullptr &&
         n >= CurrentTuning().min_coarse_tuples && n <= std::numeric_limits<uint32_t>::max();
}

template <typename Key>
void SortOnly(const TensorSpec& spec, const ValidatedUpdate& update, CpuUpdate& out) {
  const auto& keys = std::get<absl::Span<const Key>>(update.keys());
  auto unfolded = std::make_shared<Unfolded<Key>>(
      Unfolded<Key>{SortedTuples<Key>(keys, update.sorted(), /*keeps_scratch=*/false), update.value_owner()});
  out.keys = absl::Span<const Key>();
  out.num_keys = unfolded->tuples.CountKeys();
  out.values = update.values();
  out.unfolded = &unfolded->tuples;
  out.bytes = unfolded->tuples.memory_bytes() + update.num_keys() * SizeOf(spec.dtype) * spec.row_width;
  out.owner = std::move(unfolded);
}

template <typename Key>
void FoldAs(const TensorSpec& spec, CpuUpdate& update) {
  auto storage = std::make_shared<Storage<Key>>();
  const auto& sorted = *static_cast<const SortedTuples<Key>*>(update.unfolded);
  if (update.num_keys == sorted.size()) {
    sorted.With([&](const auto& tuples) {
      CopyKeysInOrder(tuples, storage->keys);
      CopyValuesInOrder(tuples, update.values, SizeOf(spec.dtype) * spec.row_width, storage->values);
    });
  } else {
    update.dtype = DType::kFloat64;
    FoldFloatRows(spec, sorted, update.values, *storage);
  }
  update.unfolded = nullptr;
  SetColumns(std::move(storage), update);
}

template <typename Key>
void SortCompletelyAs(const TensorSpec& spec, CpuUpdate& update) {
  Unpack(update);
  auto storage = std::make_shared<Storage<Key>>();
  SortedTuples<Key>(std::get<absl::Span<const Key>>(update.keys), false).With([&](const auto& tuples) {
    CopyKeysInOrder(tuples, storage->keys);
    if (update.values != nullptr) {
      CopyValuesInOrder(tuples, update.values, SizeOf(update.dtype) * spec.row_width, storage->values);
    }
  });
  SetColumns(std::move(storage), update);
  update.coarse_bits = 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuUpdate>> PrepareUpdate(const TensorSpec& spec, const ValidatedUpdate& update,
                                                         bool may_stay_unfolded) {
  auto out = std::make_unique<CpuUpdate>();
  out->factor = update.factor();
  out->weight = update.weight();
  out->dtype = spec.dtype;
  if (update.unique()) {
    const size_t key_bytes = std::holds_alternative<KeyRun>(update.keys()) ? 0 : KeyBytes(spec);
    out->keys = update.keys();
    out->num_keys = update.num_keys();
    out->values = update.values();
    out->owner = update.owner();
    out->bytes = out->num_keys * (key_bytes + (out->values == nullptr ? 0 : SizeOf(spec.dtype) * spec.row_width));
  } else if (may_stay_unfolded && CanStayUnfolded(spec, update)) {
    HasNarrowKeys(spec) ? SortOnly<uint32_t>(spec, update, *out) : SortOnly<uint64_t>(spec, update, *out);
    return out;
  } else if (HasNarrowKeys(spec)) {
    RETURN_IF_ERROR(SortAndFold<uint32_t>(spec, update, *out));
  } else {
    RETURN_IF_ERROR(SortAndFold<uint64_t>(spec, update, *out));
  }
  absl::Status status = CheckTerms(spec, *out, /*as_sent=*/update.unique());
  if (!status.ok() && out->coarse_bits > 0) {
    SortCompletely(spec, *out);
    status = CheckTerms(
        spec, *out, update.unique());  // again, so that the error names the smallest key, whatever the order of arrival
  }
  if (!status.ok()) return status;
  return out;
}

void Fold(const TensorSpec& spec, CpuUpdate& update) {
  if (update.unfolded == nullptr) return;
  HasNarrowKeys(spec) ? FoldAs<uint32_t>(spec, update) : FoldAs<uint64_t>(spec, update);
}

void Unpack(CpuUpdate& update) {
  if (update.words == nullptr) return;
  auto storage = std::make_shared<Storage<uint64_t>>();
  storage->keys.resize(update.num_keys);
  storage->values.resize(update.num_keys * sizeof(uint32_t));
  uint64_t* key = storage->keys.data();
  std::byte* value = storage->values.data();
  update.words->ForEach([&](uint64_t found_key, uint32_t found_value) {
    *key++ = found_key;
    std::memcpy(value, &found_value, sizeof(found_value));
    value += sizeof(found_value);
  });
  update.words = nullptr;
  SetColumns(std::move(storage), update);
}

uint64_t PrepareBytes(const TensorSpec& spec, const ValidatedUpdate& update) {
  if (update.unique()) return 0;
  const uint64_t row_bytes = update.values() == nullptr ? 0 : uint64_t{spec.row_width} * FoldedBytes(spec.dtype);
  return SaturatingAdd(SaturatingMultiply(update.num_keys(), SaturatingAdd(KeyBytes(spec), row_bytes)),
                       SortedTuplesBytes(spec, update.num_keys()));
}

uint64_t SortBytes(const TensorSpec& spec, const CpuUpdate& update) {
  if (update.unfolded != nullptr) {
    return SaturatingMultiply(update.num_keys, KeyBytes(spec) + uint64_t{spec.row_width} * sizeof(double));
  }
  if (update.coarse_bits == 0) return 0;
  return SaturatingAdd(update.bytes, SortedTuplesBytes(spec, update.num_keys));
}

void SortCompletely(const TensorSpec& spec, CpuUpdate& update) {
  HasNarrowKeys(spec) ? SortCompletelyAs<uint32_t>(spec, update) : SortCompletelyAs<uint64_t>(spec, update);
}

}  // namespace sparseagg::cpu
