#include "host/inspect/inner_products.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "host/base/float_environment.h"
#include "host/base/saturating.h"
#include "host/cpu/rows/wire_value.h"
#include "host/spec/dtype.h"

namespace sparseagg {
namespace {

constexpr size_t kLanes = 8;
constexpr uint64_t kBlockKeys = uint64_t{1} << InnerProducts::kBlockBits;

uint64_t BlockOf(uint64_t key) { return key >> InnerProducts::kBlockBits; }

// Returns: the first place from `begin` on whose key is in a block after `block`, or in it if `inclusive`.
uint64_t FindBlock(const UpdateRows& rows, uint64_t begin, uint64_t block, bool inclusive) {
  const auto precedes = [&](uint64_t key) { return inclusive ? BlockOf(key) < block : BlockOf(key) <= block; };
  if (const KeyRun* const run = std::get_if<KeyRun>(&rows.keys)) {
    if (begin >= rows.num_keys || !precedes(run->first + begin)) return begin;
    // The run goes on, so that its keys reach the block's bound after a known number of them.
    const uint64_t last_before = ((block + (inclusive ? 0 : 1)) << InnerProducts::kBlockBits) - 1;
    return std::min(rows.num_keys, last_before - run->first + 1);
  }
  // Doubling steps: the blocks of a caller come in ascending order.
  uint64_t low = begin;  // all places below precede
  uint64_t step = 1;
  while (low + step <= rows.num_keys && precedes(KeyAt(rows.keys, low + step - 1))) {
    low += step;
    step *= 2;
  }
  uint64_t high = std::min(rows.num_keys, low + step);
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (precedes(KeyAt(rows.keys, middle))) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls take(offset in the block, place) for the keys at the places `begin` to `end`, which are in one block.
template <typename Take>
void ForEachOffset(const UpdateRows& rows, uint64_t begin, uint64_t end, Take take) {
  std::visit(
      [&](const auto& keys) {
        for (uint64_t i = begin; i < end; ++i) {
          uint64_t key;
          if constexpr (std::is_same_v<std::decay_t<decltype(keys)>, KeyRun>) {
            key = keys.first + i;
          } else {
            key = keys[i];
          }
          take(static_cast<uint32_t>(key % kBlockKeys), static_cast<uint32_t>(i - begin));
        }
      },
      rows.keys);
}

// Calls function(T()) for the type of floats that is stored as T.
template <typename Function>
void WithType(DType dtype, Function function) {
  switch (dtype) {
    case DType::kFloat32:
      return function(float());
    case DType::kFloat16:
      return function(cpu::Float16());
    case DType::kBFloat16:
      return function(cpu::BFloat16());
    case DType::kFloat64:
      return function(double());
    default:
      return;  // only floats are inspected
  }
}

// Consecutive values.
template <typename T>
struct Values {
  const std::byte* data;
  double factor;
  double operator[](uint64_t i) const { return cpu::Widen(cpu::LoadWire<T>(data, i)) * factor; }
};

// Adds the products of `n` values to the lanes, the first one to lane `lane`.
template <typename Left, typename Right>
void AddProducts(Left left, Right right, uint64_t n, uint64_t lane, double (&lanes)[kLanes]) {
  uint64_t i = 0;
  for (; i < n && lane % kLanes != 0; ++i, ++lane) lanes[lane % kLanes] += left[i] * right[i];
  for (; i + kLanes <= n; i += kLanes) {
    for (uint64_t l = 0; l < kLanes; ++l) lanes[l] += left[i + l] * right[i + l];
  }
  for (uint64_t l = 0; i < n; ++i, ++l) lanes[l] += left[i] * right[i];
}

}  // namespace

InnerProducts::InnerProducts(std::vector<InspectedTensor> tensors)
    : tensors_(std::move(tensors)), values_(num_submissions()), table_(kBlockKeys) {
  for (const InspectedTensor& tensor : tensors_) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = SaturatingAdd(values_[i], SaturatingMultiply(tensor.submissions[i].num_keys, tensor.row_width));
    }
  }
  matches_.reserve(kBlockKeys);
}

uint64_t InnerProducts::MemoryBytes(size_t num_tensors, size_t num_submissions) {
  const uint64_t of_submission =
      SaturatingAdd(2 * sizeof(uint64_t), SaturatingMultiply(num_tensors, sizeof(UpdateRows)));
  return SaturatingAdd(kBlockKeys * (sizeof(uint32_t) + sizeof(Match)),
                       SaturatingMultiply(num_submissions, of_submission));
}

uint64_t InnerProducts::RowCost(size_t row) const {
  uint64_t cost = values_[row];
  for (size_t k = 0; k < row; ++k) cost = SaturatingAdd(cost, values_[k]);
  return cost;
}

void InnerProducts::ComputeRow(size_t row, absl::Span<double> gram, absl::Span<uint64_t> overlap) {
  const DefaultFloatEnvironment environment;
  std::fill(gram.begin(), gram.end(), 0.0);
  std::fill(overlap.begin(), overlap.end(), 0);
  for (const InspectedTensor& tensor : tensors_) AddTensor(tensor, row, gram, overlap);
}

void InnerProducts::AddTensor(const InspectedTensor& tensor, size_t row, absl::Span<double> gram,
                              absl::Span<uint64_t> overlap) {
  const UpdateRows& rows = tensor.submissions[row];
  cursors_.assign(row + 1, 0);
  for (uint64_t begin = 0; begin < rows.num_keys;) {
    const uint64_t block = BlockOf(KeyAt(rows.keys, begin));
    const BlockRows left = {&rows, begin, FindBlock(rows, begin, block, /*inclusive=*/false)};
    bool table_is_set = false;
    for (size_t k = 0; k <= row; ++k) {
      const UpdateRows& others = tensor.submissions[k];
      if (others.num_keys == 0) continue;
      const uint64_t first = FindBlock(others, cursors_[k], block, /*inclusive=*/true);
      cursors_[k] = FindBlock(others, first, block, /*inclusive=*/false);
      if (first == cursors_[k]) continue;
      const BlockRows right = {&others, first, cursors_[k]};
      const uint64_t num_common = FindMatches(left, right, table_is_set);
      if (num_common == 0) continue;
      overlap[k] += num_common;
      gram[k] += SumBlock(block, tensor.row_width, left, right);
    }
    if (table_is_set) {
      ForEachOffset(rows, left.begin, left.end, [&](uint32_t offset, uint32_t) { table_[offset] = 0; });
    }
    begin = left.end;
  }
}

uint64_t InnerProducts::FindMatches(const BlockRows& left, const BlockRows& right, bool& table_is_set) {
  matches_.clear();
  const KeyRun* const left_run = std::get_if<KeyRun>(&left.rows->keys);
  const KeyRun* const right_run = std::get_if<KeyRun>(&right.rows->keys);
  if (left_run != nullptr && right_run != nullptr) {
    const uint64_t left_first = left_run->first + left.begin;
    const uint64_t right_first = right_run->first + right.begin;
    const uint64_t first = std::max(left_first, right_first);
    const uint64_t last = std::min(left_run->first + (left.end - 1), right_run->first + (right.end - 1));
    if (first > last) return 0;
    const uint64_t count = last - first + 1;
    matches_.push_back({static_cast<uint32_t>(first % kBlockKeys), static_cast<uint32_t>(first - left_first),
                        static_cast<uint32_t>(first - right_first), static_cast<uint32_t>(count)});
    return count;
  }
  if (!table_is_set) {
    ForEachOffset(*left.rows, left.begin, left.end, [&](uint32_t offset, uint32_t at) { table_[offset] = at + 1; });
    table_is_set = true;
  }
  uint64_t num_common = 0;
  ForEachOffset(*right.rows, right.begin, right.end, [&](uint32_t offset, uint32_t at) {
    const uint32_t found = table_[offset];
    if (found == 0) return;
    ++num_common;
    if (!matches_.empty()) {
      Match& before = matches_.back();
      if (before.offset + before.count == offset && before.left + before.count == found - 1 &&
          before.right + before.count == at) {
        ++before.count;
        return;
      }
    }
    matches_.push_back({offset, found - 1, at, 1});
  });
  return num_common;
}

double InnerProducts::SumBlock(uint64_t block, uint32_t row_width, const BlockRows& left,
                               const BlockRows& right) const {
  double lanes[kLanes] = {};
  WithType(left.rows->dtype, [&](auto left_type) {
    WithType(right.rows->dtype, [&](auto right_type) {
      using L = decltype(left_type);
      using R = decltype(right_type);
      for (const Match& match : matches_) {
        const uint64_t left_at = (left.begin + match.left) * row_width * sizeof(L);
        const uint64_t right_at = (right.begin + match.right) * row_width * sizeof(R);
        const uint64_t key = block * kBlockKeys + match.offset;
        AddProducts(Values<L>{left.rows->values + left_at, left.rows->factor},
                    Values<R>{right.rows->values + right_at, right.rows->factor}, uint64_t{match.count} * row_width,
                    key * row_width, lanes);
      }
    });
  });
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace sparseagg
