// A prepared update of the CPU engine.
#ifndef SPARSEAGG_HOST_CPU_PREPARE_CPU_UPDATE_H_
#define SPARSEAGG_HOST_CPU_PREPARE_CPU_UPDATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "host/engine.h"
#include "host/spec/dtype.h"
#include "host/updates/update.h"

namespace sparseagg::cpu {

struct CoarseWords;

// One update with distinct keys in (at least coarse) order: what a merge reads. Made by PrepareUpdate; owned by the
// accumulator from Add until the update is merged.
class CpuUpdate : public PreparedUpdate {
 public:
  size_t memory_bytes() const override { return bytes; }
  uint64_t total_keys() const { return num_keys + (repeats == nullptr ? 0 : repeats->num_keys); }

  KeyColumn keys;  // distinct
  // The keys are 64-bit integers that nobody has checked, of a tensor with 32-bit keys (CreateWithUncheckedKeys). Table
  // folds take them as they are; everything else needs NarrowUnchecked first.
  std::optional<KeyBounds> unchecked;
  uint64_t num_keys = 0;
  // If not null, the folded rows of repeated keys, where these are few and the other rows are not folded: more keys of
  // this update, which `keys` has not. Sorted, without repeats of its own. A merge reads it right behind this.
  std::unique_ptr<CpuUpdate> repeats;
  // Keys ascend by key >> coarse_bits; 0: they ascend completely. A merge whose blocks begin at multiples of
  // 2^coarse_bits needs no more order.
  int coarse_bits = 0;
  // If not null, keys and values are packed in these words, and `keys` and `values` are empty.
  const CoarseWords* words = nullptr;
  // If not null, the rows of repeated keys are not folded yet: `values` are as they were sent, and this is their
  // SortedTuples of the tensor's key type. `keys` is empty then, and num_keys counts distinct keys.
  const void* unfolded = nullptr;
  const std::byte* values = nullptr;  // num_keys rows; null for UNION
  // Type of `values`: the tensor's dtype. If rows of repeated keys were folded: the type they were folded in (float64,
  // int64).
  DType dtype = DType::kFloat32;
  double factor = 1.0;  // of values, before the weight; 1 but for floats
  double weight = 1.0;
  std::shared_ptr<const void> owner;  // of the memory of keys and values
  size_t bytes = 0;                   // that keys and values take, those of `repeats` included
};

// Returns: an upper bound of the memory that PrepareUpdate temporarily needs in addition to `update`, including the
// update that it returns. Saturates.
uint64_t PrepareBytes(const TensorSpec& spec, const ValidatedUpdate& update);

// Sorts an update and folds the rows of repeated keys, as far as needed. A sorted update with unique keys is not
// copied.
// Errors: those of Accumulator::Prepare.
// Cost: O(n) for sorted keys (no pass over unique ones) and in coarse order; else a radix sort.
// `may_stay_unfolded`: a large update of rows of floats that needs a sort is only sorted, and its rows stay where they
// are. A merge of this update alone then writes them to the result (LoneMerger); every other merge needs Fold first.
// Thread-safe.
absl::StatusOr<std::unique_ptr<CpuUpdate>> PrepareUpdate(const TensorSpec& spec, const ValidatedUpdate& update,
                                                         bool may_stay_unfolded = false);

// Folds the rows of an update that PrepareUpdate has left unfolded. Does nothing to others.
void Fold(const TensorSpec& spec, CpuUpdate& update);

// The ABORTED of unchecked keys that do not strictly ascend below num_rows.
absl::Status KeysNotInOrder(const TensorSpec& spec);

// Copies unchecked keys as 32-bit ones and checks them. Takes the memory from `arena`, or new memory if that is full.
// Returns: false if they do not strictly ascend below num_rows. Requires: unchecked keys. Thread-safe for several
// updates and one arena.
bool NarrowUnchecked(const TensorSpec& spec, std::shared_ptr<KeyArena> arena, CpuUpdate& update);

// Moves packed keys and values to columns of their own. Does nothing if they are not packed.
void Unpack(CpuUpdate& update);

// Sorts the tuples of an update in coarse order by all bits of their keys. Its repeats stay apart.
void SortCompletely(const TensorSpec& spec, CpuUpdate& update);

// Makes one column of keys, sorted completely, and one of rows of an update, whatever form it has.
void MakeWhole(const TensorSpec& spec, CpuUpdate& update);

// Returns: an upper bound of the memory that SortCompletely, Fold or MakeWhole need in addition to the update,
// including the sorted or folded copy. 0 if the update is sorted completely and folded. Saturates.
uint64_t SortBytes(const TensorSpec& spec, const CpuUpdate& update);

// Returns: an upper bound of the bytes by which MakeWhole enlarges the update: those of its rows in the type of folded
// ones. 0 if its rows stay in their type. Saturates.
uint64_t FoldedUpdateBytes(const TensorSpec& spec, const CpuUpdate& update);

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_PREPARE_CPU_UPDATE_H_
