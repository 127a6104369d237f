#include "host/inspect/inner_products.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/base/attributes.h"
#include "host/base/float_environment.h"
#include "host/base/saturating.h"
#include "host/cpu/rows/wire_value.h"
#include "host/spec/dtype.h"

namespace sparseagg {
namespace {

constexpr size_t kLanes = 8;
constexpr uint64_t kBlockKeys = uint64_t{1} << InnerProducts::kBlockBits;
constexpr uint64_t kNoBlock = ~uint64_t{0};

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

// Returns: the sum of eight lanes, of which lane number `first` is the first one.
double Combined(const double (&lanes)[kLanes], uint64_t first = 0) {
  const auto lane = [&](uint64_t i) { return lanes[(first + i) % kLanes]; };
  return ((lane(0) + lane(1)) + (lane(2) + lane(3))) + ((lane(4) + lane(5)) + (lane(6) + lane(7)));
}

// Calls term(i, lane) for `n` values, of which the first one belongs to lane `lane`.
template <typename Term>
void ForEachLane(uint64_t n, uint64_t lane, Term term) {
  uint64_t i = 0;
  for (; i < n && lane % kLanes != 0; ++i, ++lane) term(i, lane % kLanes);
  for (; i + kLanes <= n; i += kLanes) {
    for (uint64_t l = 0; l < kLanes; ++l) term(i + l, l);
  }
  for (lane = 0; i < n; ++i, ++lane) term(i, lane % kLanes);
}

template <typename T>
Values<T> RowsFrom(const UpdateRows& rows, uint64_t place, uint32_t row_width) {
  return {rows.values + place * row_width * sizeof(T), rows.factor};
}

std::vector<double> SquaredNorms(const UpdateRows& rows, uint32_t row_width) {
  std::vector<double> norms(rows.num_keys);
  WithType(rows.dtype, [&](auto type) {
    for (uint64_t i = 0; i < rows.num_keys; ++i) {
      const auto row = RowsFrom<decltype(type)>(rows, i, row_width);
      double lanes[kLanes] = {};
      ForEachLane(row_width, 0, [&](uint64_t c, uint64_t lane) { lanes[lane] += row[c] * row[c]; });
      norms[i] = Combined(lanes);
    }
  });
  return norms;
}

// The sums of a block.
struct BlockSums {
  double products[kLanes] = {};
  double squares[kLanes] = {};

  // Adds `n` rows of common keys, the first of which is number `offset` of the block. Not inlined: at -O3, GCC 12 would
  // then believe that the lanes of bfloat16 are used uninitialized.
  template <typename Left, typename Right>
  ABSL_ATTRIBUTE_NOINLINE void AddCommon(Left left, Right right, uint64_t offset, uint64_t n, uint32_t row_width) {
    if (row_width == 1) {
      ForEachLane(n, offset, [&](uint64_t i, uint64_t lane) {
        const double difference = left[i] - right[i];
        products[lane] += left[i] * right[i];
        squares[lane] += difference * difference;
      });
      return;
    }
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t first = (offset + i) * row_width;  // a block has a multiple of eight keys
      double row[kLanes] = {};
      ForEachLane(row_width, first, [&](uint64_t c, uint64_t lane) {
        const double a = left[i * row_width + c];
        const double b = right[i * row_width + c];
        products[lane] += a * b;
        row[lane] += (a - b) * (a - b);
      });
      squares[(offset + i) % kLanes] += Combined(row, first);
    }
  }
};

}  // namespace

void InnerProducts::BlockRows::Start(const UpdateRows& of, const std::vector<double>& squared_norms) {
  rows = &of;
  norms = squared_norms.data();
  begin = end = 0;
}

uint64_t InnerProducts::BlockRows::NextBlock() const {
  return end < rows->num_keys ? KeyAt(rows->keys, end) / kBlockKeys : kNoBlock;
}

void InnerProducts::BlockRows::MoveTo(uint64_t block) {
  begin = end;
  offsets.clear();
  if (NextBlock() != block) return;
  if (const KeyRun* const run = std::get_if<KeyRun>(&rows->keys)) {
    const uint64_t offset = (run->first + begin) % kBlockKeys;
    end += std::min(rows->num_keys - begin, kBlockKeys - offset);
    offsets.resize(end - begin);
    std::iota(offsets.begin(), offsets.end(), static_cast<uint32_t>(offset));
    return;
  }
  const auto append = [&](const auto& keys) {
    for (; end < rows->num_keys && keys[end] / kBlockKeys == block; ++end) {
      offsets.push_back(static_cast<uint32_t>(keys[end] % kBlockKeys));
    }
  };
  const auto* const narrow = std::get_if<absl::Span<const uint32_t>>(&rows->keys);
  narrow != nullptr ? append(*narrow) : append(std::get<absl::Span<const uint64_t>>(rows->keys));
}

InnerProducts::InnerProducts(std::vector<InspectedTensor> tensors)
    : tensors_(std::move(tensors)), values_(num_submissions()), norms_(tensors_.size()) {
  const DefaultFloatEnvironment environment;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    for (size_t i = 0; i < values_.size(); ++i) {
      const UpdateRows& rows = tensors_[t].submissions[i];
      values_[i] = SaturatingAdd(values_[i], SaturatingMultiply(rows.num_keys, tensors_[t].row_width));
      norms_[t].push_back(SquaredNorms(rows, tensors_[t].row_width));
    }
  }
  left_.offsets.reserve(kBlockKeys);
  right_.offsets.reserve(kBlockKeys);
}

uint64_t InnerProducts::MemoryBytes(size_t num_tensors, size_t num_submissions) {
  const uint64_t of_submission = SaturatingAdd(
      sizeof(uint64_t), SaturatingMultiply(num_tensors, sizeof(UpdateRows) + sizeof(std::vector<double>)));
  return SaturatingAdd(2 * kBlockKeys * sizeof(uint32_t), SaturatingMultiply(num_submissions, of_submission));
}

uint64_t InnerProducts::NormBytes(absl::Span<const InspectedTensor> tensors) {
  uint64_t bytes = 0;
  for (const InspectedTensor& tensor : tensors) {
    for (const UpdateRows& rows : tensor.submissions) bytes += rows.num_keys * sizeof(double);
  }
  return bytes;
}

uint64_t InnerProducts::RowCost(size_t row) const {
  uint64_t cost = SaturatingMultiply(values_[row], row + 1);
  for (size_t k = 0; k <= row; ++k) cost = SaturatingAdd(cost, values_[k]);
  return cost;
}

void InnerProducts::ComputeRow(size_t row, absl::Span<double> gram, absl::Span<double> squared_distances,
                               absl::Span<uint64_t> overlap) {
  const DefaultFloatEnvironment environment;
  std::fill(gram.begin(), gram.end(), 0.0);
  std::fill(squared_distances.begin(), squared_distances.end(), 0.0);
  std::fill(overlap.begin(), overlap.end(), 0);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const InspectedTensor& tensor = tensors_[t];
    for (size_t k = 0; k <= row; ++k) {
      left_.Start(tensor.submissions[row], norms_[t][row]);
      right_.Start(tensor.submissions[k], norms_[t][k]);
      for (;;) {
        const uint64_t block = std::min(left_.NextBlock(), right_.NextBlock());
        if (block == kNoBlock) break;
        left_.MoveTo(block);
        right_.MoveTo(block);
        overlap[k] += AddBlock(tensor.row_width, gram[k], squared_distances[k]);
      }
    }
  }
}

uint64_t InnerProducts::AddBlock(uint32_t row_width, double& product, double& squared_distance) const {
  BlockSums sums;
  uint64_t num_common = 0;
  const bool are_runs = left_.IsRun() && right_.IsRun();
  WithType(left_.rows->dtype, [&](auto left_type) {
    WithType(right_.rows->dtype, [&](auto right_type) {
      const absl::Span<const uint32_t> left = left_.offsets;
      const absl::Span<const uint32_t> right = right_.offsets;
      const double* const left_norms = left_.norms + left_.begin;
      const double* const right_norms = right_.norms + right_.begin;
      size_t i = 0;
      size_t j = 0;
      while (i < left.size() && j < right.size()) {
        const uint32_t offset = std::min(left[i], right[j]);
        if (left[i] == right[j]) {
          const size_t n = are_runs ? std::min(left.size() - i, right.size() - j) : 1;
          sums.AddCommon(RowsFrom<decltype(left_type)>(*left_.rows, left_.begin + i, row_width),
                         RowsFrom<decltype(right_type)>(*right_.rows, right_.begin + j, row_width), offset, n,
                         row_width);
          num_common += n;
          i += n;
          j += n;
        } else {
          const bool takes_left = left[i] == offset;
          sums.squares[offset % kLanes] += takes_left ? left_norms[i] : right_norms[j];
          i += takes_left;
          j += !takes_left;
        }
      }
      for (; i < left.size(); ++i) sums.squares[left[i] % kLanes] += left_norms[i];
      for (; j < right.size(); ++j) sums.squares[right[j] % kLanes] += right_norms[j];
    });
  });
  product += Combined(sums.products);
  squared_distance += Combined(sums.squares);
  return num_common;
}

}  // namespace sparseagg
