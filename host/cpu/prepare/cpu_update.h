// An update as the CPU engine merges it.
#ifndef SPARSEAGG_HOST_CPU_PREPARE_CPU_UPDATE_H_
#define SPARSEAGG_HOST_CPU_PREPARE_CPU_UPDATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "host/engine.h"
#include "host/spec/dtype.h"
#include "host/updates/update.h"

namespace sparseagg::cpu {

struct CoarseWords;

// Keys are distinct: sorted on arrival, duplicates folded. They ascend, but for the coarse_bits lowest bits of each: a
// merge that looks at stretches of keys, in steps of 2^coarse_bits, needs no more order. Rows are in `dtype`, which is
// the tensor's own unless duplicates were folded: then it is the type they are folded in (float64, int64).
class CpuUpdate : public PreparedUpdate {
 public:
  size_t memory_bytes() const override { return bytes; }

  KeyColumn keys;
  uint64_t num_keys = 0;
  // Not null: keys and values are in there instead, and `keys` and `values` empty.
  const CoarseWords* words = nullptr;
  int coarse_bits = 0;
  const std::byte* values = nullptr;
  DType dtype = DType::kFloat32;
  double weight = 1.0;
  std::shared_ptr<const void> owner;
  size_t bytes = 0;
};

// The most memory that PrepareUpdate takes beside `update`, what it returns included. Saturates.
uint64_t PrepareBytes(const TensorSpec& spec, const ValidatedUpdate& update);

// Sorts and folds where needed (a sorted unique update is taken as it is) and checks what only folded rows can tell.
// Errors as of Accumulator::Prepare.
absl::StatusOr<std::unique_ptr<CpuUpdate>> PrepareUpdate(const TensorSpec& spec, const ValidatedUpdate& update);

// Takes keys and values out of words.
void Unpack(CpuUpdate& update);
// Makes the keys ascend in all of their bits.
void SortCompletely(const TensorSpec& spec, CpuUpdate& update);
// The most memory that SortCompletely takes beside the update, what that becomes included; 0 if it has no more to sort.
uint64_t SortBytes(const TensorSpec& spec, const CpuUpdate& update);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_CPU_UPDATE_H_
