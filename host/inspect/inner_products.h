// InnerProducts: inner products of the submissions of an aggregation, and how many keys they share.
#ifndef SPARSEAGG_HOST_INSPECT_INNER_PRODUCTS_H_
#define SPARSEAGG_HOST_INSPECT_INNER_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "host/updates/update_rows.h"

namespace sparseagg {

// The submissions of one tensor of floats.
struct InspectedTensor {
  uint32_t row_width = 1;
  std::vector<UpdateRows> submissions;  // in canonical order
};

// Computes rows of two symmetric matrices over the submissions j and k of some tensors: G[j][k] = <v_j, v_k>, the Gram
// matrix, and the overlap |K_j ∩ K_k|, the number of (tensor, key) that both list. Row j has the columns 0 to j.
//
//   InnerProducts products(std::move(tensors));
//   std::vector<double> gram(row + 1);
//   std::vector<uint64_t> overlap(row + 1);
//   products.ComputeRow(row, absl::MakeSpan(gram), absl::MakeSpan(overlap));
//
// Deterministic, to the bit: the values of a submission are float64(v) · factor, rounded. For each tensor in order, and
// each block of 2^16 keys in ascending order, the products at common keys are added to eight float64 lanes: that of
// column c of key i to lane (i · row_width + c) mod 8, keys in ascending order. The lanes start at 0, and are combined
// ((0+1)+(2+3))+((4+5)+(6+7)). The sums of the blocks are added one after the other, from 0 on. Every product and sum
// is rounded once. So G[j][k] = G[k][j].
//
// Owns the rows that it reads. Not thread-safe.
class InnerProducts {
 public:
  static constexpr int kBlockBits = 16;  // of the keys of a block

  // Requires: all tensors have equally many submissions, with values.
  explicit InnerProducts(std::vector<InspectedTensor> tensors);

  size_t num_submissions() const { return tensors_.empty() ? 0 : tensors_[0].submissions.size(); }
  // Returns: about the number of values that ComputeRow reads. Saturates.
  uint64_t RowCost(size_t row) const;
  // Computes the columns 0 to `row`. `gram`, `overlap`: of row + 1 elements.
  // Cost: O(RowCost), plus a search for each block of keys and submission. Allocates O(row).
  void ComputeRow(size_t row, absl::Span<double> gram, absl::Span<uint64_t> overlap);
  // Returns: the memory of an object, without the rows.
  static uint64_t MemoryBytes(size_t num_tensors, size_t num_submissions);

 private:
  // Keys of two submissions that follow each other, in a block, and in both submissions.
  struct Match {
    uint32_t offset;  // of the first key, in the block
    uint32_t left;    // places of its rows, counted from the first ones in the block
    uint32_t right;
    uint32_t count;
  };
  // The rows of a submission in a block.
  struct BlockRows {
    const UpdateRows* rows;
    uint64_t begin;
    uint64_t end;
  };

  void AddTensor(const InspectedTensor& tensor, size_t row, absl::Span<double> gram, absl::Span<uint64_t> overlap);
  // Sets matches_ to the keys that both have in the block. Returns: their number. `table_is_set`: table_ has the keys
  // of `left`; set if this call has needed them.
  uint64_t FindMatches(const BlockRows& left, const BlockRows& right, bool& table_is_set);
  // Returns: the sum of the products at matches_.
  double SumBlock(uint64_t block, uint32_t row_width, const BlockRows& left, const BlockRows& right) const;

  const std::vector<InspectedTensor> tensors_;
  std::vector<uint64_t> values_;  // of each submission, in all tensors
  std::vector<uint64_t> cursors_;
  std::vector<uint32_t> table_;  // by offset in the block: 1 + place of the left row; 0: none
  std::vector<Match> matches_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_INSPECT_INNER_PRODUCTS_H_
