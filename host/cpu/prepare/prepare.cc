#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/prepare/coarse_order.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/prepare/repeat_fold.h"
#include "host/cpu/prepare/sorted_tuples.h"
#include "host/cpu/prepare/terms.h"
#include "host/cpu/rows/direct_output.h"
#include "host/cpu/rows/wire_value.h"
#include "host/cpu/simd/kernels.h"
#include "host/updates/input_checks.h"

namespace sparseagg::cpu {
namespace {

// Memory of an update that was sorted or folded.
template <typename Key>
using Storage = TupleColumns<Key>;

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

// Folds the rows of repeated keys. Sets `dtype` to the type of the folded rows. Inlined into its caller, its loops keep
// their state on the stack and take a third more time (GCC 12).
template <typename Key, typename Tuples>
ABSL_ATTRIBUTE_NOINLINE absl::Status FoldRows(const TensorSpec& spec, const Tuples& tuples, const std::byte* values,
                                              Storage<Key>& out, DType& dtype) {
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

// Returns: the bytes of the update's repeats.
size_t RepeatBytes(const CpuUpdate& update) {
  return update.repeats == nullptr ? 0 : sizeof(CpuUpdate) + update.repeats->bytes;
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
  out.bytes = storage->keys.size() * sizeof(Key) + storage->values.size() + RepeatBytes(out);
  out.owner = std::move(storage);
}

// Returns: an update without keys, with the weight, factor and dtype of `update`.
std::unique_ptr<CpuUpdate> MakeUpdate(const TensorSpec& spec, const ValidatedUpdate& update) {
  auto out = std::make_unique<CpuUpdate>();
  out->factor = update.factor();
  out->weight = update.weight();
  out->dtype = spec.dtype;
  return out;
}

// Makes an update of `words`.
template <typename Key>
void SetWords(std::shared_ptr<CoarseWords> words, CpuUpdate& out) {
  out.keys = absl::Span<const Key>();
  out.num_keys = words->size();
  out.words = words.get();
  // Counted as unpacked, since a merge may call Unpack: a round must not hold more than it has reserved.
  out.bytes = out.num_keys * (sizeof(Key) + sizeof(float)) + sizeof(CoarseWords);
  out.owner = std::move(words);
}

// Puts a large unsorted update into coarse order, and tuples with repeated keys, if they are few, into `repeats`.
// Returns: whether it has; else the outputs are unspecified.
template <typename Key>
absl::StatusOr<bool> OrderAndSeparate(const TensorSpec& spec, const ValidatedUpdate& update, CpuUpdate& out,
                                      Storage<Key>& repeats) {
  const auto& keys = std::get<absl::Span<const Key>>(update.keys());
  const size_t row_bytes = update.values() == nullptr ? 0 : SizeOf(spec.dtype) * spec.row_width;
  out.coarse_bits = CoarseBits(spec.num_rows);
  if (out.coarse_bits == 0) return false;
  if (update.values() != nullptr && spec.dtype == DType::kFloat32 && spec.row_width == 1) {
    auto words = std::make_shared<CoarseWords>();
    if (!OrderCoarselyInWords(keys, update.values(), out.coarse_bits, *words, repeats)) return false;
    SetWords<Key>(std::move(words), out);
    return true;
  }
  auto storage = std::make_shared<Storage<Key>>();
  if (!OrderCoarsely(keys, update.values(), row_bytes, out.coarse_bits, *storage, repeats)) return false;
  SetColumns(std::move(storage), out);
  return true;
}

// Makes `update`, which needs no change, `out`.
void TakeAsItIs(const TensorSpec& spec, const ValidatedUpdate& update, CpuUpdate& out) {
  const size_t key_bytes = std::holds_alternative<KeyRun>(update.keys()) ? 0 : KeyBytes(spec);
  out.keys = update.keys();
  out.unchecked = update.unchecked();
  out.num_keys = update.num_keys();
  out.values = update.values();
  out.owner = update.owner();
  out.bytes = out.num_keys * (key_bytes + (out.values == nullptr ? 0 : SizeOf(spec.dtype) * spec.row_width));
}

// Returns: whether an update is in coarse order already, without repeats, as those are that a cluster's servers export.
template <typename Key>
bool IsCoarse(const TensorSpec& spec, const ValidatedUpdate& update) {
  const int low_bits = CoarseBits(spec.num_rows);
  // From an eighth of what OrderCoarsely takes on: a server exports a part of such an update.
  return low_bits > 0 && !update.sorted() && update.num_keys() >= CurrentTuning().min_coarse_tuples / 8 &&
         IsCoarseAndUnique(std::get<absl::Span<const Key>>(update.keys()), low_bits);
}

// Sorts an update and folds the rows of repeated keys, only as far as needed unless `completely`.
template <typename Key>
absl::StatusOr<std::unique_ptr<CpuUpdate>> SortAndFold(const TensorSpec& spec, const ValidatedUpdate& update,
                                                       bool completely) {
  const auto& keys = std::get<absl::Span<const Key>>(update.keys());
  if (keys.size() > std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(spec), ": ", keys.size(), " unsorted tuples in one update; 2^32 - 1 is the most"));
  }
  // Folds sorted tuples into `to`.
  const auto fold = [&](const SortedTuples<Key>& sorted, const std::byte* values, CpuUpdate& to) {
    auto storage = std::make_shared<Storage<Key>>();
    RETURN_IF_ERROR(CopyOrFold(spec, sorted, values, *storage, to.dtype));
    SetColumns(std::move(storage), to);
    return CheckTerms(spec, to);
  };
  auto out = MakeUpdate(spec, update);
  Storage<Key> repeats;
  bool separated = false;
  if (!completely && !update.sorted()) {
    ASSIGN_OR_RETURN(separated, OrderAndSeparate(spec, update, *out, repeats));
  }
  if (!separated) {
    out = MakeUpdate(spec, update);
    RETURN_IF_ERROR(fold(SortedTuples<Key>(keys, update.sorted()), update.values(), *out));
    return out;
  }
  RETURN_IF_ERROR(CheckTerms(spec, *out));
  if (repeats.keys.empty()) return out;
  out->repeats = MakeUpdate(spec, update);
  const std::byte* const values = update.values() == nullptr ? nullptr : repeats.values.data();
  RETURN_IF_ERROR(fold(SortedTuples<Key>(repeats.keys, /*sorted=*/false), values, *out->repeats));
  out->bytes += RepeatBytes(*out);
  return out;
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
void UnpackAs(CpuUpdate& update) {
  auto storage = std::make_shared<Storage<Key>>();
  storage->resize(update.num_keys, sizeof(uint32_t));
  Key* key = storage->keys.data();
  std::byte* value = storage->values.data();
  update.words->ForEach([&](uint64_t found_key, uint32_t found_value) {
    *key++ = static_cast<Key>(found_key);
    std::memcpy(value, &found_value, sizeof(found_value));
    value += sizeof(found_value);
  });
  update.words = nullptr;
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

// The tuples of an update, as FoldRows takes them.
template <typename Key>
struct InPlace {
  absl::Span<const Key> keys;
  size_t size() const { return keys.size(); }
  Key key(size_t i) const { return keys[i]; }
  size_t position(size_t i) const { return i; }
};

// Puts the repeats behind the other rows, which take their type, and sorts them all.
template <typename Key>
void JoinRepeats(const TensorSpec& spec, CpuUpdate& update) {
  const auto keys = std::get<absl::Span<const Key>>(update.keys);
  auto storage = std::make_shared<Storage<Key>>();
  if (update.values == nullptr) {
    storage->keys = Column<Key>(keys.begin(), keys.end());
  } else {
    // No key repeats here, so no sum leaves its type.
    FoldRows(spec, InPlace<Key>{keys}, update.values, *storage, update.dtype).IgnoreError();
  }
  const CpuUpdate& repeats = *update.repeats;
  const auto repeated = std::get<absl::Span<const Key>>(repeats.keys);
  storage->keys.Append(repeated.data(), repeated.size());
  if (repeats.values != nullptr) {
    storage->values.Append(repeats.values, repeats.num_keys * spec.row_width * FoldedBytes(spec.dtype));
  }
  update.repeats = nullptr;
  SetColumns(std::move(storage), update);
  SortCompletelyAs<Key>(spec, update);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuUpdate>> PrepareUpdate(const TensorSpec& spec, const ValidatedUpdate& update,
                                                         bool may_stay_unfolded) {
  auto out = MakeUpdate(spec, update);
  const bool is_coarse =
      !update.unique() && (HasNarrowKeys(spec) ? IsCoarse<uint32_t>(spec, update) : IsCoarse<uint64_t>(spec, update));
  if (update.unique() || is_coarse) {
    TakeAsItIs(spec, update, *out);
    if (is_coarse) out->coarse_bits = CoarseBits(spec.num_rows);
    // Of terms in no order, an error might name any of several keys: below, it names the smallest one.
    absl::Status checked = CheckTerms(spec, *out);
    if (checked.ok()) return out;
    if (!is_coarse) return checked;
    out = MakeUpdate(spec, update);
  }
  if (may_stay_unfolded && CanStayUnfolded(spec, update)) {
    HasNarrowKeys(spec) ? SortOnly<uint32_t>(spec, update, *out) : SortOnly<uint64_t>(spec, update, *out);
    return out;
  }
  const auto sort_and_fold = HasNarrowKeys(spec) ? SortAndFold<uint32_t> : SortAndFold<uint64_t>;
  auto prepared = sort_and_fold(spec, update, /*completely=*/false);
  // Again, so that the error names the smallest key, whatever the order of arrival.
  return prepared.ok() ? std::move(prepared) : sort_and_fold(spec, update, /*completely=*/true);
}

void Fold(const TensorSpec& spec, CpuUpdate& update) {
  if (update.unfolded == nullptr) return;
  HasNarrowKeys(spec) ? FoldAs<uint32_t>(spec, update) : FoldAs<uint64_t>(spec, update);
}

absl::Status KeysNotInOrder(const TensorSpec& spec) {
  // Not for users: whoever leaves keys unchecked merges again, which says what is wrong with them.
  return absl::Status(absl::StatusCode::kAborted,
                      absl::StrCat(Quoted(spec), ": unchecked keys do not strictly ascend below num_rows"));
}

bool NarrowUnchecked(const TensorSpec& spec, std::shared_ptr<KeyArena> arena, CpuUpdate& update) {
  sparseagg::internal::KeyOrder order;
  const auto columns =
      sparseagg::internal::CopyKeys({&spec, std::nullopt}, std::get<absl::Span<const uint64_t>>(update.keys),
                                    std::move(update.owner), std::move(arena), order);
  if (!columns.ok() || !order.unique) return false;
  update.keys = columns->keys;
  update.owner = columns->owner;
  update.unchecked.reset();
  return true;
}

void Unpack(CpuUpdate& update) {
  if (update.words == nullptr) return;
  std::holds_alternative<absl::Span<const uint32_t>>(update.keys) ? UnpackAs<uint32_t>(update)
                                                                  : UnpackAs<uint64_t>(update);
}

uint64_t PrepareBytes(const TensorSpec& spec, const ValidatedUpdate& update) {
  if (update.unique()) return 0;
  const uint64_t row_bytes = update.values() == nullptr ? 0 : uint64_t{spec.row_width} * FoldedBytes(spec.dtype);
  return SaturatingAdd(SaturatingMultiply(update.num_keys(), SaturatingAdd(KeyBytes(spec), row_bytes)),
                       SortedTuplesBytes(spec, update.num_keys()));
}

uint64_t FoldedUpdateBytes(const TensorSpec& spec, const CpuUpdate& update) {
  if (update.unfolded == nullptr && update.repeats == nullptr) return 0;
  return SaturatingMultiply(update.total_keys(), KeyBytes(spec) + uint64_t{spec.row_width} * sizeof(double));
}

uint64_t SortBytes(const TensorSpec& spec, const CpuUpdate& update) {
  const uint64_t folded = FoldedUpdateBytes(spec, update);
  if (update.unfolded != nullptr) return folded;
  const uint64_t sorted = update.repeats != nullptr ? 2 * folded : update.coarse_bits > 0 ? update.bytes : 0;
  return sorted == 0 ? 0 : SaturatingAdd(sorted, SortedTuplesBytes(spec, update.total_keys()));
}

void SortCompletely(const TensorSpec& spec, CpuUpdate& update) {
  HasNarrowKeys(spec) ? SortCompletelyAs<uint32_t>(spec, update) : SortCompletelyAs<uint64_t>(spec, update);
}

void MakeWhole(const TensorSpec& spec, CpuUpdate& update) {
  Fold(spec, update);
  Unpack(update);
  if (update.repeats != nullptr) {
    HasNarrowKeys(spec) ? JoinRepeats<uint32_t>(spec, update) : JoinRepeats<uint64_t>(spec, update);
  } else if (update.coarse_bits > 0) {
    SortCompletely(spec, update);
  }
}

}  // namespace sparseagg::cpu
