#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "host/base/column.h"
#include "host/base/saturating.h"
#include "host/clip/clip.h"
#include "host/cpu/prepare/sorted_tuples.h"
#include "host/cpu/rows/wire_value.h"

namespace sparseagg {
namespace {

using cpu::LoadWire;

// The keys and squares of an update, and what the keys are borrowed from.
template <typename Key>
struct Squares {
  Column<Key> keys;
  Column<double> values;
  std::shared_ptr<const void> owner;
};

// Float rows are added in float64. Integer rows are added modulo 2^64, which is exact: Accumulator::Prepare refuses the
// update if a sum overflows int64.
struct FloatSum {
  double sum = 0.0;
  void Add(double value) { sum += value; }
  double Get() const { return sum; }
};
struct IntegerSum {
  uint64_t sum = 0;
  void Add(int64_t value) { sum += static_cast<uint64_t>(value); }
  double Get() const { return static_cast<double>(static_cast<int64_t>(sum)); }
};

// Calls use(load, sum): load(values, index) returns a value of the dtype, which `sum` takes.
template <typename Use>
void WithDType(DType dtype, Use use) {
  switch (dtype) {
    case DType::kFloat16:
      return use([](const std::byte* v, uint64_t i) { return cpu::Widen(LoadWire<cpu::Float16>(v, i)); }, FloatSum());
    case DType::kBFloat16:
      return use([](const std::byte* v, uint64_t i) { return cpu::Widen(LoadWire<cpu::BFloat16>(v, i)); }, FloatSum());
    case DType::kFloat64:
      return use([](const std::byte* v, uint64_t i) { return LoadWire<double>(v, i); }, FloatSum());
    case DType::kInt32:
      return use([](const std::byte* v, uint64_t i) -> int64_t { return LoadWire<int32_t>(v, i); }, IntegerSum());
    case DType::kInt64:
      return use([](const std::byte* v, uint64_t i) { return LoadWire<int64_t>(v, i); }, IntegerSum());
    default:
      return use([](const std::byte* v, uint64_t i) -> double { return LoadWire<float>(v, i); }, FloatSum());
  }
}

double Square(double value, double factor) {
  const double scaled = value * factor;
  return scaled * scaled;
}

// The squares of an update that has each key once.
void SquareUnique(const TensorSpec& spec, const ValidatedUpdate& update, Column<double>& out) {
  out.resize(update.num_keys() * spec.row_width);
  WithDType(spec.dtype, [&](auto load, auto sum) {
    for (uint64_t i = 0; i < out.size(); ++i) {
      auto one = sum;
      one.Add(load(update.values(), i));
      out[i] = Square(one.Get(), update.factor());
    }
  });
}

// The same where keys may repeat. `tuples`: in ascending order of key, equal keys in order of occurrence.
template <typename Key, typename Tuples>
void SquareSorted(const TensorSpec& spec, const ValidatedUpdate& update, const Tuples& tuples, Squares<Key>& out) {
  const size_t width = spec.row_width;
  WithDType(spec.dtype, [&](auto load, auto sum) {
    Column<decltype(sum)> row(width);
    for (size_t i = 0; i < tuples.size();) {
      const Key key = tuples.key(i);
      for (auto& column : row) column = sum;
      for (; i < tuples.size() && tuples.key(i) == key; ++i) {
        for (size_t c = 0; c < width; ++c) row[c].Add(load(update.values(), tuples.position(i) * width + c));
      }
      out.keys.push_back(key);
      for (const auto& column : row) out.values.push_back(Square(column.Get(), update.factor()));
    }
  });
}

template <typename Key>
ValidatedUpdate SquareAs(const TensorSpec& spec, const ValidatedUpdate& update) {
  auto squares = std::make_shared<Squares<Key>>();
  KeyColumn keys = update.keys();
  if (update.unique()) {
    squares->owner = update.owner();
    SquareUnique(spec, update, squares->values);
  } else {
    const cpu::SortedTuples<Key> sorted(std::get<absl::Span<const Key>>(keys), update.sorted());
    squares->keys.reserve(update.num_keys());
    squares->values.reserve(update.num_keys() * spec.row_width);
    sorted.With([&](const auto& tuples) { SquareSorted(spec, update, tuples, *squares); });
    squares->keys.Trim();
    squares->values.Trim();
    keys = absl::Span<const Key>(squares->keys.data(), squares->keys.size());
  }
  const auto* values = reinterpret_cast<const std::byte*>(squares->values.data());
  return ValidatedUpdate::CreateFromTrusted({keys, values, std::move(squares)}, update.weight(), /*unique=*/true);
}

}  // namespace

TensorSpec MomentsSpec(const TensorSpec& spec) {
  TensorSpec moments;
  moments.name = spec.name;
  moments.dtype = DType::kFloat64;
  moments.num_rows = spec.num_rows;
  moments.row_width = spec.row_width;
  moments.layout = spec.layout;
  moments.aggregation.weighting = spec.aggregation.weighting;
  moments.aggregation.min_contributors = spec.aggregation.min_contributors;
  moments.aggregation.on_nonfinite = NonfinitePolicy::kPropagate;  // a square may be infinite
  moments.aggregation.on_empty = EmptyPolicy::kKeep;
  return moments;
}

absl::StatusOr<ValidatedUpdate> SquareRows(const TensorSpec& spec, const ValidatedUpdate& update) {
  if (update.on_device()) {
    return absl::UnimplementedError(
        absl::StrCat(Quoted(spec),
                     ": return_moments takes updates in host memory, and this one is in device memory: copy it to the "
                     "host first"));
  }
  if (!update.unique() && update.num_keys() > std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Quoted(spec), ": ", update.num_keys(), " unsorted tuples in one update; 2^32 - 1 is the most"));
  }
  return HasNarrowKeys(spec) ? SquareAs<uint32_t>(spec, update) : SquareAs<uint64_t>(spec, update);
}

uint64_t SquareRowsBytes(const TensorSpec& spec, const ValidatedUpdate& update) {
  const uint64_t of_row = sizeof(double) * uint64_t{spec.row_width};
  if (update.unique()) return SaturatingMultiply(update.num_keys(), of_row);
  return SaturatingAdd(SaturatingMultiply(update.num_keys(), of_row + KeyBytes(spec)),
                       cpu::SortedTuplesBytes(spec, update.num_keys()));
}

}  // namespace sparseagg
