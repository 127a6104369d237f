#include "service/rounds/row_export.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/half.h"
#include "host/base/status_macros.h"

namespace sparseagg::service {
namespace {

// Returns: the first of `num_keys` rows whose bucket is at least that of `key`. Requires: none before `from` is.
// Cost: logarithmic in the distance from `from`.
uint64_t LowerBound(const UpdateRows& update, uint64_t key, uint64_t from = 0) {
  return std::visit(
      [&](const auto& keys) -> uint64_t {
        if constexpr (std::is_same_v<std::decay_t<decltype(keys)>, KeyRun>) {
          return key <= keys.first ? 0 : std::min(key - keys.first, update.num_keys);
        } else {
          const auto is_before = [bits = update.coarse_bits](uint64_t a, uint64_t b) { return a >> bits < b >> bits; };
          if (from == keys.size() || !is_before(keys[from], key)) return from;
          uint64_t step = 64;
          for (; step < keys.size() - from && is_before(keys[from + step], key); step *= 2) from += step;
          const auto end = step < keys.size() - from ? keys.begin() + from + step : keys.end();
          return static_cast<uint64_t>(std::lower_bound(keys.begin() + from, end, key, is_before) - keys.begin());
        }
      },
      update.keys);
}

// Returns: the first key of the bucket after that of `key`; 0 if there is none.
uint64_t NextBucket(const UpdateRows& update, uint64_t key) {
  return ((key >> update.coarse_bits) + 1) << update.coarse_bits;
}

template <typename T>
void Append(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendKey(const TensorSpec& spec, uint64_t key, std::string& out) {
  HasNarrowKeys(spec) ? Append(static_cast<uint32_t>(key), out) : Append(key, out);
}

void AppendKeys(const TensorSpec& spec, const UpdateRows& update, RowInterval rows, std::string& out) {
  const auto copy = [&](const auto& keys) {
    using Keys = std::decay_t<decltype(keys)>;
    if constexpr (!std::is_same_v<Keys, KeyRun>) {
      if (sizeof(keys[0]) == KeyBytes(spec)) {
        out.append(reinterpret_cast<const char*>(keys.data() + rows.begin), (rows.end - rows.begin) * sizeof(keys[0]));
        return;
      }
    }
    for (uint64_t row = rows.begin; row < rows.end; ++row) AppendKey(spec, KeyAt(update.keys, row), out);
  };
  std::visit(copy, update.keys);
}

// Rows that are converted at a time.
constexpr uint64_t kNarrowedRows = 4096;

// How folded values become values of a dtype. Nearest clamps finite values to the finite range of the dtype; infinities
// and NaN stay.
struct Float32Terms {
  using Wide = double;
  using Value = float;
  static Value Nearest(double value) {
    constexpr double kMost = std::numeric_limits<float>::max();
    return static_cast<float>(std::isfinite(value) ? std::clamp(value, -kMost, kMost) : value);
  }
  // Beyond the range: infinite, which is another value.
  static Value Cast(double value) { return static_cast<float>(value); }
  static double Widen(float value) { return value; }
};
struct Float16Terms {
  using Wide = double;
  using Value = uint16_t;
  static Value Nearest(double value) {
    return RoundToFloat16(std::isfinite(value) ? std::clamp(value, -65504.0, 65504.0) : value);
  }
  static Value Cast(double value) { return RoundToFloat16(value); }
  static double Widen(uint16_t bits) { return WidenFloat16(bits); }
};
struct BFloat16Terms {
  using Wide = double;
  using Value = uint16_t;
  static Value Nearest(double value) {
    constexpr double kMost = 0x1.fep127;
    return RoundToBFloat16(std::isfinite(value) ? std::clamp(value, -kMost, kMost) : value);
  }
  static Value Cast(double value) { return RoundToBFloat16(value); }
  static double Widen(uint16_t bits) { return WidenBFloat16(bits); }
};
struct Int32Terms {
  using Wide = int64_t;
  using Value = int32_t;
  static Value Nearest(int64_t value) {
    using Limits = std::numeric_limits<int32_t>;
    return static_cast<int32_t>(std::clamp<int64_t>(value, Limits::min(), Limits::max()));
  }
  static Value Cast(int64_t value) { return static_cast<int32_t>(value); }
  static int64_t Widen(int32_t value) { return value; }
};

// Appends the row nearest to `rest`, and subtracts it. `narrow`: working memory of a row.
// Returns: whether nothing is left.
template <typename Terms>
bool AppendTerm(std::vector<typename Terms::Wide>& rest, std::vector<typename Terms::Value>& narrow, std::string& out) {
  bool is_whole = true;
  for (size_t c = 0; c < rest.size(); ++c) {
    narrow[c] = Terms::Nearest(rest[c]);
    const typename Terms::Wide left = rest[c] - Terms::Widen(narrow[c]);
    rest[c] = std::isnan(left) ? 0 : left;  // NaN: of a value that is not finite, which is sent once
    is_whole &= rest[c] == 0;
  }
  out.append(reinterpret_cast<const char*>(narrow.data()), narrow.size() * sizeof(narrow[0]));
  return is_whole;
}

// Converts values up to the first one that the dtype does not hold. Returns: their number.
template <typename Terms>
size_t NarrowExact(const std::byte* wide, size_t count, typename Terms::Value* out) {
  using Wide = typename Terms::Wide;
  constexpr size_t kStep = 64;  // few enough that what is converted in vain does not count
  for (size_t begin = 0; begin < count; begin += kStep) {
    const size_t end = std::min(count, begin + kStep);
    bool is_exact = true;
    for (size_t i = begin; i < end; ++i) {
      Wide value;
      std::memcpy(&value, wide + i * sizeof(Wide), sizeof(Wide));
      out[i] = Terms::Cast(value);
      is_exact &= Terms::Widen(out[i]) == value;
    }
    if (is_exact) continue;
    for (size_t i = begin;; ++i) {
      Wide value;
      std::memcpy(&value, wide + i * sizeof(Wide), sizeof(Wide));
      if (!(Terms::Widen(out[i]) == value)) return i;
    }
  }
  return count;
}

template <typename Terms>
absl::StatusOr<uint64_t> AppendWideRows(const TensorSpec& spec, const UpdateRows& update, RowInterval rows,
                                        uint64_t max_rows, ExportPage& page) {
  using Wide = typename Terms::Wide;
  std::vector<Wide> rest(spec.row_width);
  std::vector<typename Terms::Value> narrow(spec.row_width);
  std::vector<typename Terms::Value> narrowed;
  const size_t row_bytes = rest.size() * sizeof(Wide);
  uint64_t row = rows.begin;
  uint64_t first = row;  // rows in [first, row) have one term each; their keys are not appended yet
  const auto append_keys = [&] {
    AppendKeys(spec, update, {first, row}, page.keys);
    first = row;
  };
  const size_t columns = rest.size();
  while (row < rows.end) {
    // Most rows are those of keys that the submission lists once.
    const uint64_t room = std::max<uint64_t>(page.num_rows == 0 ? 1 : 0, max_rows - std::min(max_rows, page.num_rows));
    const uint64_t most = std::min({room, rows.end - row, kNarrowedRows});
    narrowed.resize(most * columns);
    const uint64_t exact =
        NarrowExact<Terms>(update.values + row * row_bytes, most * columns, narrowed.data()) / columns;
    page.values.append(reinterpret_cast<const char*>(narrowed.data()), exact * columns * sizeof(narrowed[0]));
    page.num_rows += exact;
    row += exact;
    if (most == 0) break;
    if (exact == most) continue;
    const size_t values_before = page.values.size();
    std::memcpy(rest.data(), update.values + row * row_bytes, row_bytes);
    uint64_t num_terms = 1;
    while (!AppendTerm<Terms>(rest, narrow, page.values) && num_terms <= kMaxTerms) ++num_terms;
    if (num_terms > kMaxTerms) {
      return absl::FailedPreconditionError(absl::StrCat(
          Quoted(spec), ", key ", KeyAt(update.keys, row), ": a submission lists the key several times, and its own ",
          "sum takes more than ", kMaxTerms, " values of ", Name(spec.dtype), ", so that it cannot be exported"));
    }
    if (page.num_rows > 0 && page.num_rows + num_terms > max_rows) {
      page.values.resize(values_before);
      break;
    }
    page.num_rows += num_terms;
    if (num_terms == 1) {
      ++row;
      continue;
    }
    append_keys();
    for (uint64_t term = 0; term < num_terms; ++term) AppendKey(spec, KeyAt(update.keys, row), page.keys);
    first = ++row;
  }
  append_keys();
  return row;
}

}  // namespace

absl::StatusOr<KeyCounter> KeyCounter::Create(const TensorSpec& spec, const KeyBuckets& buckets) {
  const bool is_whole = buckets.within.empty();
  const uint32_t bits = buckets.bits;
  const uint32_t within = is_whole ? static_cast<uint32_t>(std::bit_width(spec.num_rows - 1)) : buckets.within_bits;
  const uint32_t split = within - std::min(within, bits);
  if (bits > 63 || (!is_whole && (within > 63 || within <= bits)) || split > kMaxSplit ||
      buckets.within.size() > kMaxBuckets >> split) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": buckets: parts of ", bits, " bits of ",
                                                   is_whole ? 1 : buckets.within.size(), " buckets of ", within,
                                                   " bits; at most ", kMaxBuckets, " parts are counted"));
  }
  KeyCounter counter;
  counter.bits_ = bits;
  counter.within_bits_ = within;
  counter.mask_ = (uint64_t{1} << split) - 1;
  for (const uint64_t bucket : buckets.within) counter.begins_.try_emplace(bucket, counter.begins_.size() << split);
  counter.counts_.resize(std::max<size_t>(1, buckets.within.size()) << split);
  return counter;
}

void KeyCounter::AddKey(uint64_t key, uint64_t number) {
  uint64_t begin = 0;
  if (!begins_.empty()) {
    if (const uint64_t bucket = key >> within_bits_; bucket != last_) {
      const auto found = begins_.find(bucket);
      begin_ = found == begins_.end() ? kMaxBuckets : found->second;
      last_ = bucket;
    }
    if (begin_ == kMaxBuckets) return;
    begin = begin_;
  }
  counts_[begin + ((key >> bits_) & mask_)] += number;
}

template <typename KeyAt>
void KeyCounter::AddRows(const KeyAt& key_at, RowInterval rows, bool ascends_by_bucket) {
  constexpr uint64_t kFew = 16;  // rows that are counted one by one
  if (!ascends_by_bucket || rows.end - rows.begin < kFew) {
    for (uint64_t row = rows.begin; row < rows.end; ++row) AddKey(key_at(row), 1);
    return;
  }
  const uint64_t first = key_at(rows.begin);
  if (first >> bits_ == key_at(rows.end - 1) >> bits_) return AddKey(first, rows.end - rows.begin);
  const uint64_t middle = rows.begin + (rows.end - rows.begin) / 2;
  AddRows(key_at, {rows.begin, middle}, ascends_by_bucket);
  AddRows(key_at, {middle, rows.end}, ascends_by_bucket);
}

void KeyCounter::Add(const KeyColumn& keys, RowInterval rows, int coarse_bits) {
  const auto add = [&](const auto& column) {
    const auto key_at = [&](uint64_t row) -> uint64_t {
      if constexpr (std::is_same_v<std::decay_t<decltype(column)>, KeyRun>) {
        return column.first + row;
      } else {
        return column[row];
      }
    };
    AddRows(key_at, rows, static_cast<uint32_t>(coarse_bits) <= bits_);
  };
  std::visit(add, keys);
}

uint64_t ExportedRowBytes(const TensorSpec& spec) {
  return KeyBytes(spec) + (spec.aggregation.op == Op::kUnion ? 0 : uint64_t{spec.row_width} * SizeOf(spec.dtype));
}

bool IsRunFrom(const TensorSpec& spec, const UpdateRows& update, uint64_t begin) {
  if (update.num_keys == 0) return true;
  const auto* const run = std::get_if<KeyRun>(&update.keys);
  return run != nullptr && run->first <= begin && update.values != nullptr && update.dtype == spec.dtype;
}

ExportedRows::ExportedRows(const UpdateRows& update, KeyInterval keys, std::vector<RowPiece>& pieces)
    : pieces_(pieces) {
  pieces_.clear();
  uint64_t from = 0;  // rows before have been added, or are before the interval
  if (update.repeats != nullptr) {
    const UpdateRows& repeats = *update.repeats;
    const uint64_t end = keys.end == 0 ? repeats.num_keys : LowerBound(repeats, keys.end);
    for (uint64_t row = LowerBound(repeats, keys.begin); row < end;) {
      const uint64_t border = NextBucket(update, KeyAt(repeats.keys, row));
      const uint64_t next = border == 0 ? end : std::min(end, LowerBound(repeats, border, row));
      const bool is_last = border == 0 || (keys.end != 0 && border >= keys.end);
      // Repeats follow the other rows of their bucket.
      AddKeys(update, {keys.begin, is_last ? keys.end : border}, from);
      Add(repeats, {row, next});
      if (is_last) return;
      keys.begin = border;
      row = next;
    }
  }
  AddKeys(update, keys, from);
}

void ExportedRows::Add(const UpdateRows& update, RowInterval rows) {
  if (rows.begin >= rows.end) return;
  pieces_.push_back({&update, rows});
  size_ += rows.end - rows.begin;
}

void ExportedRows::AddKeys(const UpdateRows& update, KeyInterval keys, uint64_t& from) {
  if (update.num_keys == 0 || (keys.begin >= keys.end && keys.end != 0)) return;
  const uint64_t last = keys.end - 1;  // an end of 0 is behind the last key
  const auto end_of = [&](uint64_t key) {
    const uint64_t next = NextBucket(update, key);
    return next == 0 ? update.num_keys : LowerBound(update, next, from);
  };
  const auto search = [&](RowInterval rows) {
    uint64_t begin = rows.begin;  // of rows whose keys are in the interval
    for (uint64_t row = rows.begin; row < rows.end; ++row) {
      const uint64_t key = KeyAt(update.keys, row);
      if (keys.begin <= key && key <= last) continue;
      Add(update, {begin, row});
      begin = row + 1;
    }
    Add(update, {begin, rows.end});
  };
  from = LowerBound(update, keys.begin, from);
  RowInterval rows = {from, end_of(last)};
  const RowInterval whole = rows;
  const bool cuts_first = keys.begin >> update.coarse_bits << update.coarse_bits != keys.begin;
  const bool cuts_last = NextBucket(update, last) != keys.end;
  if (cuts_first) rows.begin = std::min(rows.end, end_of(keys.begin));
  if (cuts_last) rows.end = std::max(rows.begin, LowerBound(update, last, from));
  if (cuts_first) search({whole.begin, rows.begin});
  Add(update, rows);
  if (cuts_last) search({rows.end, whole.end});
  if (!cuts_last) from = whole.end;
}

uint64_t ExportedRows::Key(uint64_t index) const {
  const RowPiece* piece = pieces_.data();
  for (; index >= piece->rows.end - piece->rows.begin; ++piece) index -= piece->rows.end - piece->rows.begin;
  return KeyAt(piece->update->keys, piece->rows.begin + index);
}

void ExportedRows::Count(KeyCounter& counter) const {
  for (const RowPiece& piece : pieces_) counter.Add(piece.update->keys, piece.rows, piece.update->coarse_bits);
}

absl::StatusOr<uint64_t> ExportedRows::Append(const TensorSpec& spec, RowInterval rows, uint64_t max_rows,
                                              ExportPage& page) const {
  uint64_t first = 0;  // of the piece
  uint64_t at = rows.begin;
  for (const RowPiece& piece : pieces_) {
    const uint64_t size = piece.rows.end - piece.rows.begin;
    const uint64_t stop = std::min(rows.end, first + size);
    if (at < stop) {
      const uint64_t shift = piece.rows.begin - first;  // wraps around
      ASSIGN_OR_RETURN(const uint64_t next,
                       AppendRows(spec, *piece.update, {at + shift, stop + shift}, max_rows, page));
      at = next - shift;
      if (at < stop) return at;
    }
    first += size;
  }
  return at;
}

absl::StatusOr<uint64_t> AppendRows(const TensorSpec& spec, const UpdateRows& update, RowInterval rows,
                                    uint64_t max_rows, ExportPage& page) {
  if (rows.begin == rows.end) return rows.end;
  if (update.values != nullptr && update.dtype != spec.dtype) {
    switch (spec.dtype) {
      case DType::kFloat32:
        return AppendWideRows<Float32Terms>(spec, update, rows, max_rows, page);
      case DType::kFloat16:
        return AppendWideRows<Float16Terms>(spec, update, rows, max_rows, page);
      case DType::kBFloat16:
        return AppendWideRows<BFloat16Terms>(spec, update, rows, max_rows, page);
      case DType::kInt32:
        return AppendWideRows<Int32Terms>(spec, update, rows, max_rows, page);
      default:
        return absl::InternalError(absl::StrCat(Quoted(spec), ": rows of another dtype than the tensor's"));
    }
  }
  const uint64_t least = page.num_rows == 0 ? 1 : 0;
  const uint64_t room = std::max(least, max_rows - std::min(max_rows, page.num_rows));
  rows.end = rows.begin + std::min(room, rows.end - rows.begin);
  if (!page.has_runs) AppendKeys(spec, update, rows, page.keys);
  if (update.values != nullptr) {
    const uint64_t row_bytes = uint64_t{spec.row_width} * SizeOf(spec.dtype);
    page.values.append(reinterpret_cast<const char*>(update.values) + rows.begin * row_bytes,
                       (rows.end - rows.begin) * row_bytes);
  }
  page.num_rows += rows.end - rows.begin;
  return rows.end;
}

}  // namespace sparseagg::service
