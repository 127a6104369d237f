// Checks of updates whose arrays are in device memory: whether they must be refused, and how their keys are ordered. A
// refusal is rare, and the host makes its message.
#ifndef SPARSEAGG_CUDA_KERNELS_IMPORT_H_
#define SPARSEAGG_CUDA_KERNELS_IMPORT_H_

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cuda/kernels/block.h"
#include "cuda/kernels/number.h"

namespace sparseagg::cuda {

// What was found of an update: a set of these bits.
inline constexpr uint32_t kBadKey = 1;    // a key is negative, or above max_key
inline constexpr uint32_t kDescends = 2;  // a key is below the one before it
inline constexpr uint32_t kRepeats = 4;   // a key is not above the one before it
inline constexpr uint32_t kBadValue = 8;  // a value is NaN or infinite
inline constexpr uint32_t kBadForm = 16;  // no array was read: the host has found the update wrong

// The keys of an update, or its values.
struct ImportTask {
  const void* d_from = nullptr;
  DType type = DType::kInt64;  // of d_from: an integer type of keys, or a float type of values
  uint64_t count = 0;
  uint64_t first_part = 0;  // parts of the tasks before this one; a part is what one block reads
  uint32_t update = 0;      // index of the update
  // Of keys:
  uint32_t key_bytes = 0;  // in the key type of the tensor; of values 0
  uint64_t max_key = 0;
  void* d_to = nullptr;  // `count` keys in that type

  static constexpr uint64_t kPartEntries = 4096;
  uint64_t num_parts() const { return (count + kPartEntries - 1) / kPartEntries; }
};

// Block kernel, one block a part: copies the keys of many updates into the key types of their tensors, and checks keys
// and values.
struct ImportUpdates {
  struct Shared {
    uint32_t found;
  };
  struct Private {};
  static constexpr uint32_t kThreads = kBlockThreads;
  static constexpr uint32_t kMinBlocks = 1;

  const ImportTask* d_tasks = nullptr;  // with a part or more each
  uint32_t num_tasks = 0;
  uint64_t num_parts = 0;
  uint32_t* d_found = nullptr;  // of each update; 0 at the start

  uint64_t num_blocks() const { return num_parts; }

  template <typename Block>
  SPARSEAGG_HD void operator()(Block& block, Shared& shared) const {
    uint32_t low = 0;  // the last task whose parts begin at this one or before it
    for (uint32_t high = num_tasks; high - low > 1;) {
      const uint32_t middle = low + (high - low) / 2;
      (d_tasks[middle].first_part <= block.index() ? low : high) = middle;
    }
    const ImportTask task = d_tasks[low];
    const uint64_t first = (block.index() - task.first_part) * ImportTask::kPartEntries;
    block.Phase([&](uint32_t thread) {
      if (thread == 0) shared.found = 0;
    });
    block.Phase([&](uint32_t thread) {
      if (const uint32_t found = Read(task, first, thread); found != 0) AtomicOr(&shared.found, found);
    });
    block.Phase([&](uint32_t thread) {
      if (thread == 0 && shared.found != 0) AtomicOr(d_found + task.update, shared.found);
    });
  }

 private:
  // Returns: what a thread finds of its entries of the part that begins at `first`.
  SPARSEAGG_HD static uint32_t Read(const ImportTask& task, uint64_t first, uint32_t thread) {
    const uint64_t left = task.count - first;
    const uint64_t end = first + (left < ImportTask::kPartEntries ? left : ImportTask::kPartEntries);
    switch (task.type) {
      case DType::kInt32:
        return ReadKeys<int32_t>(task, first + thread, end);
      case DType::kUInt32:
        return ReadKeys<uint32_t>(task, first + thread, end);
      case DType::kInt64:
        return ReadKeys<int64_t>(task, first + thread, end);
      case DType::kUInt64:
        return ReadKeys<uint64_t>(task, first + thread, end);
      default:
        break;
    }
    uint32_t found = 0;
    for (uint64_t i = first + thread; i < end; i += kThreads) {
      // A comparison with NaN is false.
      if (!(fabs(FloatOf(task.type, LoadBits(task.d_from, task.type, i))) <= DBL_MAX)) found = kBadValue;
    }
    return found;
  }

  template <typename Key>
  SPARSEAGG_HD static uint32_t ReadKeys(const ImportTask& task, uint64_t i, uint64_t end) {
    const auto* const keys = static_cast<const Key*>(task.d_from);
    uint32_t found = 0;
    for (; i < end; i += kThreads) {
      const Key own = keys[i];  // read once: what is checked is what is copied
      const auto key = static_cast<uint64_t>(own);
      const bool is_negative = std::is_signed_v<Key> && static_cast<int64_t>(key) < 0;
      if (is_negative || key > task.max_key) found |= kBadKey;
      const Key before = i > 0 ? keys[i - 1] : Key{};
      if (i > 0 && before > own) found |= kDescends;
      if (i > 0 && before >= own) found |= kRepeats;
      StoreKey(task.d_to, task.key_bytes, i, key);
    }
    return found;
  }
};

}  // namespace sparseagg::cuda

#endif  // SPARSEAGG_CUDA_KERNELS_IMPORT_H_
