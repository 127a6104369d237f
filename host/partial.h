// Partials: the layout in which unfinished rows leave one aggregation and enter another.
#ifndef SPARSEAGG_HOST_PARTIAL_H_
#define SPARSEAGG_HOST_PARTIAL_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/engine.h"
#include "host/spec/spec.h"
#include "host/unfinished_rows.h"

namespace sparseagg {

// A partial is what some submissions add up to, for tensors for which their order does not matter (OrderMatters). It is
// a sequence of blocks, and may be cut between any two. A block has the rows of one tensor in an interval of keys. The
// blocks of a tensor ascend, and their intervals leave no gap.
//
// Block, version 2. Numbers are little-endian; every column begins at a multiple of 8 bytes from the block's begin, and
// is followed by zero bytes up to the next multiple.
//
//   offset  bytes  content
//   0       4      "SAPR"
//   4       2      version, 2
//   6       2      bytes of the tensor's name
//   8       8      bytes of the block
//   16      1      fold of the values: 0 none (UNION), 2 sum of signed integers, 3 sum modulo 2^64,
//                  4 minimum and 5 maximum of floats, 6 minimum and 7 maximum of integers, 8 binned sum
//   17      1      bytes of a key: 4 or 8
//   18      1      flags: 1 counts, 2 weights, 4 a submission's weight is 0
//   19      1      dtype of the tensor: 0 float32, 1 float16, 2 bfloat16, 3 float64, 4 int32, 5 int64, 6 uint32,
//                  7 uint64
//   20      4      values a row; 0 for UNION
//   24      8      0
//   32      8      num_rows of the tensor; 0: all of uint64
//   40      8      N: submissions of the partial
//   48      8      sum of their weights, if these are integers, int64; 0 where the result needs none
//   56      8      rows of the block
//   64      8      first key of the interval
//   72      8      last key of the interval, inclusive
//   80             name of the tensor, then, of binned sums, the sum of weights as BinnedWeights: 3 digits, int64, from
//                  the top down, and the top, int64; of no weights unless they are by_weight. The columns:
//                  keys, which ascend strictly
//                  values: int64 (folds 6, 7), 128-bit integers (2), uint64 (3), float64 (4, 5), the K digits
//                  of a BinnedSum from the top down, int64 (8)
//                  counts, uint32: submissions that have the key
//                  weights, BinnedWeights: the sum of their weights
//                  tops, uint8: BinnedSum::top of each value (8)
//
// All blocks of a tensor repeat N and the sum of weights.

// One block, or all of a tensor's blocks in one.
struct PartialBlock {
  size_t tensor = 0;  // index
  PartialTotals totals;
  uint64_t first = 0;
  uint64_t last = std::numeric_limits<uint64_t>::max();
  UnfinishedRows rows;
};

// Returns: bytes of a block with `num_rows` rows. Saturates.
uint64_t PartialBlockBytes(const TensorSpec& spec, uint64_t num_rows);
// Returns: bytes of one row in memory and in a block.
uint64_t UnfinishedRowBytes(const TensorSpec& spec);

// Appends a block to `out`. `block.tensor` is ignored.
void AppendPartialBlock(const TensorSpec& spec, const PartialBlock& block, std::string& out);

// Takes the first block off `bytes`. Checks that it has the layout above, that it is of one of `tensors` with the same
// dtype, width, fold, scales and columns, and that no value is larger than its submissions can make it.
// Errors: INVALID_ARGUMENT names the block's place in bytes behind `offset`, the field and both values.
// FAILED_PRECONDITION: as of CheckHasPartials.
absl::StatusOr<PartialBlock> TakePartialBlock(absl::Span<const TensorSpec> tensors, uint64_t offset,
                                              absl::string_view& bytes);

// Collects the blocks of one partial.
//
//   PartialBuilder builder(tensors);
//   RETURN_IF_ERROR(builder.Append(bytes));  // whole blocks, any number of times
//   ASSIGN_OR_RETURN(std::vector<PartialBlock> partial, std::move(builder).Finish());
//
// Not thread-safe. After an error the builder may only be destroyed.
class PartialBuilder {
 public:
  // Borrows `tensors`. `first`, `last`: the interval of keys that blocks must cover.
  explicit PartialBuilder(absl::Span<const TensorSpec> tensors, uint64_t first = 0,
                          uint64_t last = std::numeric_limits<uint64_t>::max());

  // Errors: as of TakePartialBlock. INVALID_ARGUMENT: a block does not continue the one before it, or has other totals.
  absl::Status Append(absl::string_view blocks);
  // Returns: one block with all rows for each tensor.
  // Errors: INVALID_ARGUMENT: blocks are missing; a tensor of dense layout lacks rows; there are no submissions.
  absl::StatusOr<std::vector<PartialBlock>> Finish() &&;

  // Returns: how many submissions the partial is of; 0 before the first block.
  uint64_t num_submissions() const { return num_submissions_.value_or(0); }
  uint64_t num_rows() const { return num_rows_; }  // of all tensors
  // Returns: the rows of tensor t.
  uint64_t num_rows(size_t t) const { return parts_[t].has_value() ? parts_[t]->rows.num_rows : 0; }
  size_t memory_bytes() const { return memory_bytes_; }
  size_t num_bytes() const { return offset_; }  // of all blocks

 private:
  const absl::Span<const TensorSpec> tensors_;
  const uint64_t first_;
  const uint64_t last_;
  std::vector<std::optional<PartialBlock>> parts_;  // of each tensor, all rows so far
  std::optional<uint64_t> num_submissions_;
  uint64_t offset_ = 0;
  uint64_t num_rows_ = 0;
  size_t memory_bytes_ = 0;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_PARTIAL_H_
