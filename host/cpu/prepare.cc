#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/cpu/cpu_update.h"
#include "host/cpu/kernels.h"
#include "host/cpu/radix_sort.h"
#include "host/cpu/terms.h"
#include "host/cpu/wire_value.h"
#include "host/status_macros.h"

namespace sparseagg::cpu {
namespace {

// What sorting and folding make.
template <typename Key>
struct Storage {
  std::vector<Key> keys;
  std::vector<std::byte> values;
};

std::string RowName(const TensorSpec& spec, uint64_t key, uint64_t column) {
  std::string text = absl::StrCat(Quoted(spec), ", key ", key);
  if (spec.width > 1) absl::StrAppend(&text, ", column ", column);
  return text;
}

uint64_t KeyAt(const KeyColumn& keys, uint64_t index) {
  if (const auto* run = std::get_if<KeyRun>(&keys)) return run->first + index;
  if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&keys)) return (*narrow)[index];
  return std::get<absl::Span<const uint64_t>>(keys)[index];
}

template <typename Key>
struct KeyPosition {
  Key key;
  uint32_t position;
};

// (key, position) in ascending order of key; duplicates in order of occurrence.
template <typename Key>
Column<KeyPosition<Key>> SortedEntries(absl::Span<const Key> keys, bool sorted) {
  const size_t n = keys.size();
  Column<KeyPosition<Key>> entries(n);
  if (sorted) {
    for (size_t i = 0; i < n; ++i) entries[i] = {keys[i], static_cast<uint32_t>(i)};
    return entries;
  }
  Key smallest = keys[0];
  Key largest = keys[0];
  for (const Key key : keys) {
    smallest = std::min(smallest, key);
    largest = std::max(largest, key);
  }
  const int key_bits = std::bit_width(static_cast<Key>(largest - smallest));
  const int position_bits = std::bit_width(n - 1);
  if (key_bits + position_bits > 64) {
    for (size_t i = 0; i < n; ++i) entries[i] = {static_cast<Key>(keys[i] - smallest), static_cast<uint32_t>(i)};
    Column<KeyPosition<Key>> scratch;
    StableSortByKey(entries, scratch, key_bits, [](const KeyPosition<Key>& entry) { return entry.key; });
    for (auto& entry : entries) entry.key = static_cast<Key>(entry.key + smallest);
    return entries;
  }
  // Mostly both fit one word, which is less to move.
  Column<uint64_t> words(n);
  Column<uint64_t> scratch;
  for (size_t i = 0; i < n; ++i) words[i] = uint64_t{static_cast<Key>(keys[i] - smallest)} << position_bits | i;
  StableSortByKey(words, scratch, key_bits, [position_bits](uint64_t word) { return word >> position_bits; });
  const uint64_t mask = (uint64_t{1} << position_bits) - 1;
  for (size_t i = 0; i < n; ++i) {
    entries[i] = {static_cast<Key>((words[i] >> position_bits) + smallest), static_cast<uint32_t>(words[i] & mask)};
  }
  return entries;
}

// Rows in the order of `entries`, as they are.
template <typename Key>
void GatherRows(const Column<KeyPosition<Key>>& entries, const std::byte* values, size_t row_bytes, Storage<Key>& out) {
  out.keys.resize(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) out.keys[i] = entries[i].key;
  if (values == nullptr) return;
  out.values.resize(entries.size() * row_bytes);
  for (size_t i = 0; i < entries.size(); ++i) {
    std::memcpy(out.values.data() + i * row_bytes, values + entries[i].position * row_bytes, row_bytes);
  }
}

// Adds up the rows of each key. `Sum` accumulates values of `Wire`; narrowing to `Stored` may refuse.
template <typename Wire, typename Sum, typename Stored, typename Key, typename Store>
absl::Status FoldRowsAs(const TensorSpec& spec, const Column<KeyPosition<Key>>& entries, const std::byte* values,
                        Storage<Key>& out, Store store) {
  const size_t width = spec.width;
  std::vector<Sum> row(width);
  std::vector<Stored> stored(width);
  for (size_t i = 0; i < entries.size();) {
    const Key key = entries[i].key;
    std::fill(row.begin(), row.end(), Sum{0});
    for (; i < entries.size() && entries[i].key == key; ++i) {
      for (size_t c = 0; c < width; ++c) {
        const Wire value = LoadWire<Wire>(values, uint64_t{entries[i].position} * width + c);
        if constexpr (std::is_same_v<Sum, double>) {
          row[c] += Widen(value);
        } else {
          row[c] += static_cast<Sum>(value);
        }
      }
    }
    for (size_t c = 0; c < width; ++c) RETURN_IF_ERROR(store(key, c, row[c], stored[c]));
    out.keys.push_back(key);
    const auto* bytes = reinterpret_cast<const std::byte*>(stored.data());
    out.values.insert(out.values.end(), bytes, bytes + width * sizeof(Stored));
  }
  return absl::OkStatus();
}

// Folds duplicates; sets `dtype` to what the folded rows are held in.
template <typename Key>
absl::Status FoldRows(const TensorSpec& spec, const Column<KeyPosition<Key>>& entries, const std::byte* values,
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
      return FoldRowsAs<float, double, double>(spec, entries, values, out, keep);
    case DType::kFloat64:
      return FoldRowsAs<double, double, double>(spec, entries, values, out, keep);
    case DType::kFloat16:
      dtype = DType::kFloat64;
      return FoldRowsAs<Float16, double, double>(spec, entries, values, out, keep);
    case DType::kBFloat16:
      dtype = DType::kFloat64;
      return FoldRowsAs<BFloat16, double, double>(spec, entries, values, out, keep);
    case DType::kInt32:
      dtype = DType::kInt64;
      return FoldRowsAs<int32_t, __int128, int64_t>(spec, entries, values, out, fit);
    case DType::kInt64:
      return FoldRowsAs<int64_t, __int128, int64_t>(spec, entries, values, out, fit);
    case DType::kUInt32:
      return FoldRowsAs<uint32_t, uint32_t, uint32_t>(spec, entries, values, out, keep);
    case DType::kUInt64:
      return FoldRowsAs<uint64_t, uint64_t, uint64_t>(spec, entries, values, out, keep);
  }
  return absl::InternalError("unknown dtype");
}

// Makes keys strictly ascend.
template <typename Key>
absl::Status SortAndFold(const TensorSpec& spec, const ValidatedUpdate& update, CpuUpdate& out) {
  const auto& keys = std::get<absl::Span<const Key>>(update.keys());
  if (keys.size() > std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(spec), ": ", keys.size(), " unsorted tuples in one update; 2^32 - 1 is the most"));
  }
  const Column<KeyPosition<Key>> entries = SortedEntries(keys, update.sorted());
  bool repeats = false;
  for (size_t i = 1; i < entries.size(); ++i) repeats |= entries[i].key == entries[i - 1].key;

  auto storage = std::make_shared<Storage<Key>>();
  if (!repeats) {
    GatherRows(entries, update.values(), SizeOf(spec.dtype) * spec.width, *storage);
  } else if (update.values() == nullptr) {
    for (const auto& entry : entries) {
      if (storage->keys.empty() || storage->keys.back() != entry.key) storage->keys.push_back(entry.key);
    }
  } else {
    RETURN_IF_ERROR(FoldRows(spec, entries, update.values(), *storage, out.dtype));
  }
  storage->keys.shrink_to_fit();
  storage->values.shrink_to_fit();
  out.keys = absl::MakeConstSpan(storage->keys);
  out.num_keys = storage->keys.size();
  out.values = storage->values.empty() ? nullptr : storage->values.data();
  out.bytes = storage->keys.size() * sizeof(Key) + storage->values.size();
  out.owner = std::move(storage);
  return absl::OkStatus();
}

// Refuses fixed-point terms beyond the bound (under kClip only NaN, which has no sign to clip to).
absl::Status CheckBound(const TensorSpec& spec, const CpuUpdate& update) {
  const AggregationSpec& a = spec.aggregation;
  const double bound = a.on_bound == OnBound::kClip ? std::numeric_limits<double>::infinity() : a.value_bound;
  const LoadTerms<double> load = TermLoader<double>(update.dtype);
  TermParams params;
  params.weight = update.weight;
  constexpr size_t kBatch = 256;
  double terms[kBatch + kVectorSlack];
  const uint64_t n = update.num_keys * spec.width;
  for (uint64_t first = 0; first < n; first += kBatch) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(kBatch, n - first));
    load(update.values, n, first, count, params, terms);
    const size_t found = FindBeyond(terms, count, bound);
    if (found == count) continue;
    const uint64_t i = first + found;
    return absl::InvalidArgumentError(absl::StrCat(RowName(spec, KeyAt(update.keys, i / spec.width), i % spec.width),
                                                   ": term ", terms[found], " is beyond value_bound ", a.value_bound));
  }
  return absl::OkStatus();
}

// Refuses weighted integers that leave int64.
template <typename Wire>
absl::Status CheckProducts(const TensorSpec& spec, const CpuUpdate& update) {
  const int64_t weight = static_cast<int64_t>(update.weight);
  const uint64_t n = update.num_keys * spec.width;
  for (uint64_t i = 0; i < n; ++i) {
    const int64_t value = LoadWire<Wire>(update.values, i);
    int64_t product;
    if (!__builtin_mul_overflow(value, weight, &product)) continue;
    return absl::OutOfRangeError(absl::StrCat(RowName(spec, KeyAt(update.keys, i / spec.width), i % spec.width), ": ",
                                              value, " with weight ", weight, " leaves int64"));
  }
  return absl::OkStatus();
}

absl::Status CheckTerms(const TensorSpec& spec, const CpuUpdate& update) {
  if (update.values == nullptr) return absl::OkStatus();
  const Op op = spec.aggregation.op;
  if (op == Op::kMin || op == Op::kMax || op == Op::kUnion) return absl::OkStatus();
  if (UsesFixedPoint(spec)) return CheckBound(spec, update);
  if (IsSignedInteger(spec.dtype) && update.weight != 1.0) {
    return update.dtype == DType::kInt32 ? CheckProducts<int32_t>(spec, update) : CheckProducts<int64_t>(spec, update);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuUpdate>> PrepareUpdate(const TensorSpec& spec, const ValidatedUpdate& update) {
  auto out = std::make_unique<CpuUpdate>();
  out->weight = update.weight();
  out->dtype = spec.dtype;
  if (update.unique()) {
    const size_t key_bytes = std::holds_alternative<KeyRun>(update.keys()) ? 0 : HasNarrowKeys(spec) ? 4 : 8;
    out->keys = update.keys();
    out->num_keys = update.num_keys();
    out->values = update.values();
    out->owner = update.owner();
    out->bytes = out->num_keys * (key_bytes + (out->values == nullptr ? 0 : SizeOf(spec.dtype) * spec.width));
  } else if (HasNarrowKeys(spec)) {
    RETURN_IF_ERROR(SortAndFold<uint32_t>(spec, update, *out));
  } else {
    RETURN_IF_ERROR(SortAndFold<uint64_t>(spec, update, *out));
  }
  RETURN_IF_ERROR(CheckTerms(spec, *out));
  return out;
}

}  // namespace sparseagg::cpu
