// InnerProducts: inner products and squared distances of the submissions of an aggregation, and the keys they share.
#ifndef SPARSEAGG_HOST_INSPECT_INNER_PRODUCTS_H_
#define SPARSEAGG_HOST_INSPECT_INNER_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "host/updates/update.h"

namespace sparseagg {

// The submissions of one tensor of floats.
struct InspectedTensor {
  uint32_t row_width = 1;
  std::vector<UpdateRows> submissions;  // in canonical order
};

// Computes rows of three symmetric matrices over the submissions j and k of some tensors: G[j][k] = <v_j, v_k>, the
// Gram matrix; D[j][k] = ||v_j - v_k||², the squared distances; and the overlap |K_j ∩ K_k|, the number of (tensor,
// key) that both list. Row j has the columns 0 to j. A key that a submission does not list is a zero of its vector.
//
//   InnerProducts products(std::move(tensors));
//   std::vector<double> gram(row + 1), squared_distances(row + 1);
//   std::vector<uint64_t> overlap(row + 1);
//   products.ComputeRow(row, absl::MakeSpan(gram), absl::MakeSpan(squared_distances), absl::MakeSpan(overlap));
//
// Distances come from differences of values: G_jj + G_kk - 2·G_jk cancels where submissions share a large value.
//
// Deterministic, to the bit: the values of a submission are float64(v) · factor, rounded. The sums run over each tensor
// in order, and each block of 2^16 keys in ascending order; those of the blocks are added one after the other, from 0
// on. In a block, the terms are added to eight float64 lanes in ascending order of keys and columns. The lanes start at
// 0, and are combined ((0+1)+(2+3))+((4+5)+(6+7)).
// - G: the product of column c of a common key i goes to lane (i · row_width + c) mod 8.
// - D: the squared distance of the rows of key i goes to lane i mod 8. It is a sum in eight lanes, too: the square of
//   the difference of column c goes to lane c mod 8.
// Every difference, product and sum is rounded once. So G[j][k] = G[k][j] and D[j][k] = D[k][j]. The matrices of all
// keys are the sums of those of disjoint ranges of keys, but for rounding.
//
// Owns the rows that it reads. Not thread-safe.
class InnerProducts {
 public:
  static constexpr int kBlockBits = 16;  // of the keys of a block

  // Requires: all tensors have equally many submissions, with values. Cost: reads all values once.
  explicit InnerProducts(std::vector<InspectedTensor> tensors);

  size_t num_submissions() const { return tensors_.empty() ? 0 : tensors_[0].submissions.size(); }
  // Returns: about the number of values that ComputeRow reads. Saturates.
  uint64_t RowCost(size_t row) const;
  // Computes the columns 0 to `row`. `gram`, `squared_distances`, `overlap`: of row + 1 elements.
  // Cost: O(RowCost).
  void ComputeRow(size_t row, absl::Span<double> gram, absl::Span<double> squared_distances,
                  absl::Span<uint64_t> overlap);
  // Returns: the memory of an object, without the rows and what NormBytes counts.
  static uint64_t MemoryBytes(size_t num_tensors, size_t num_submissions);
  // Returns: the memory of one number for each row.
  static uint64_t NormBytes(absl::Span<const InspectedTensor> tensors);

 private:
  // The rows of a submission in a block.
  struct BlockRows {
    const UpdateRows* rows = nullptr;
    const double* norms = nullptr;  // squared, of all rows
    uint64_t begin = 0;             // places of the block's rows
    uint64_t end = 0;
    std::vector<uint32_t> offsets;  // of the keys, in the block

    void Start(const UpdateRows& of, const std::vector<double>& squared_norms);
    // Returns: the next block with a key; ~0 at the end.
    uint64_t NextBlock() const;
    void MoveTo(uint64_t block);
    bool IsRun() const { return !offsets.empty() && offsets.back() - offsets.front() + 1 == offsets.size(); }
  };

  // Adds the sums over the keys of the block at left_ and right_. Returns: the number of common keys.
  uint64_t AddBlock(uint32_t row_width, double& product, double& squared_distance) const;

  const std::vector<InspectedTensor> tensors_;
  std::vector<uint64_t> values_;                         // of each submission, in all tensors
  std::vector<std::vector<std::vector<double>>> norms_;  // squared; of the rows of each submission of each tensor
  BlockRows left_;
  BlockRows right_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_INSPECT_INNER_PRODUCTS_H_
