// Input of a merge.
#ifndef SPARSEAGG_HOST_CPU_MERGE_MERGE_INPUT_H_
#define SPARSEAGG_HOST_CPU_MERGE_MERGE_INPUT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "host/cpu/prepare/coarse_order.h"
#include "host/cpu/prepare/cpu_update.h"
#include "host/cpu/rows/folded_rows.h"
#include "host/spec/spec.h"

namespace sparseagg::cpu {

// Updates and base of one merge. Borrowed from the accumulator; shared by all threads of the merge.
template <typename Key, typename Fold>
struct MergeInput {
  const TensorSpec* spec = nullptr;
  RowShape shape;
  double weight_scale = 1.0;                                  // 2^t of KeyWeights::kFixed
  std::vector<const CpuUpdate*> updates;                      // in canonical order
  const FoldedRows<Key, typename Fold::Acc>* base = nullptr;  // rows merged earlier; null: none
  // Counts the tuples that table folds have taken; null unless an update has unchecked keys. Of those, folds leave what
  // is not in order, so that fewer are taken than there are.
  std::atomic<uint64_t>* taken = nullptr;
  bool base_is_first = false;  // the order matters, so the base's rows must be folded before the updates'

  // Adds an update, and its repeats right behind it.
  void Add(const CpuUpdate& update) {
    updates.push_back(&update);
    if (update.repeats != nullptr) updates.push_back(update.repeats.get());
  }
};

// Reader of single keys of a source: an array, a run, packed words or unchecked keys, which may change at any time.
template <typename Key>
struct KeyReader {
  const Key* keys = nullptr;  // null: the run first, first + 1, …
  Key first = 0;
  const CoarseWords* words = nullptr;   // if not null, the keys are in these words
  const uint64_t* unchecked = nullptr;  // if not null, the keys are these, of which none counts as beyond `bounds`
  KeyBounds bounds = {};
  Key operator[](uint64_t index) const {
    if (words != nullptr) return static_cast<Key>(words->KeyAt(index));
    if (unchecked != nullptr) {
      return static_cast<Key>(std::clamp<uint64_t>(unchecked[index], bounds.smallest, bounds.largest));
    }
    return keys != nullptr ? keys[index] : static_cast<Key>(first + index);
  }
  // Returns: the first and the last of `count` keys.
  std::pair<Key, Key> Ends(uint64_t count) const {
    if (unchecked != nullptr) return {static_cast<Key>(bounds.smallest), static_cast<Key>(bounds.largest)};
    return {(*this)[0], (*this)[count - 1]};
  }
};

template <typename Key>
KeyReader<Key> ReaderOf(const CpuUpdate& update) {
  if (const auto* run = std::get_if<KeyRun>(&update.keys)) return {nullptr, static_cast<Key>(run->first)};
  if (update.unchecked.has_value()) {
    return {nullptr, 0, nullptr, std::get<absl::Span<const uint64_t>>(update.keys).data(), *update.unchecked};
  }
  return {std::get<absl::Span<const Key>>(update.keys).data(), 0, update.words};
}

}  // namespace sparseagg::cpu

#endif  // SPARSEAGG_HOST_CPU_MERGE_MERGE_INPUT_H_
