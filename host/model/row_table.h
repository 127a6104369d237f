// The rows of one tensor of a model, at its newest version and at some older ones.
#ifndef SPARSEAGG_HOST_MODEL_ROW_TABLE_H_
#define SPARSEAGG_HOST_MODEL_ROW_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/column.h"
#include "host/base/mutex.h"
#include "host/base/saturating.h"
#include "host/model/model_spec.h"
#include "host/model/optimizer.h"
#include "host/model/row_block.h"
#include "host/result.h"

namespace sparseagg {

// A map from keys to 32-bit numbers: linear probing, at most three quarters full. Not absl::flat_hash_map, which an
// allocation that fails leaves unusable (20220623), and which may rehash when keys are erased and come back.
class KeyMap {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};  // no value

  // Returns: kNone: no such key.
  uint32_t Find(uint64_t key) const { return entries_.empty() ? kNone : entries_[SlotOf(key)].value; }
  void Prefetch(uint64_t key) const {
    if (!entries_.empty()) __builtin_prefetch(&entries_[HomeOf(key)]);
  }
  size_t size() const { return size_; }
  // Calls `take` with each key and its value.
  template <typename Take>
  void ForEach(Take take) const {
    for (const Entry& entry : entries_) {
      if (entry.value != kNone) take(entry.key(), entry.value);
    }
  }

  // Makes room for `more` calls of Set with new keys: builds a larger map, and then swaps under `mu`.
  void Reserve(size_t more, SharedMutex* mu);
  // Returns: the most bytes that Reserve needs besides those of the map.
  uint64_t ReserveBytes(size_t more) const { return HasRoom(more) ? 0 : SaturatingMultiply(size_ + more, 40); }
  // Requires: Reserve for a new key; a value but kNone.
  void Set(uint64_t key, uint32_t value);
  void Erase(uint64_t key);
  // Erases the keys with values up to `value`. Returns: whether there were any.
  bool EraseUpTo(uint32_t value);

 private:
  struct Entry {
    uint32_t low, high;  // of the key: together the entry has 12 bytes
    uint32_t value;
    uint64_t key() const { return uint64_t{high} << 32 | low; }
  };

  bool HasRoom(size_t more) const { return size_ + more <= entries_.size() / 4 * 3; }
  size_t HomeOf(uint64_t key) const { return absl::Hash<uint64_t>()(key) & (entries_.size() - 1); }
  size_t Next(size_t slot) const { return (slot + 1) & (entries_.size() - 1); }
  // Returns: the key's slot, or the free one where it would be.
  size_t SlotOf(uint64_t key) const {
    size_t slot = HomeOf(key);
    while (entries_[slot].value != kNone && entries_[slot].key() != key) slot = Next(slot);
    return slot;
  }
  // Empties a slot, and moves entries of later slots nearer to their homes, so that no search ends too early.
  void EraseAt(size_t slot);

  Column<Entry> entries_;  // none, or a power of two
  size_t size_ = 0;
};

// The touched rows of one tensor: for each its key, the version that touched it last, its values x, and its state m and
// v. Old values of the rows that the latest versions have changed are kept in undo records, one for each version.
//
// A read at version p looks for its key: if the row was touched at t ≤ p, it is the row. Otherwise the undo record of
// version t has the row before t, and the version t' < t that touched it before; and so on, until t' ≤ p. So a read
// costs one binary search for each version after p that has changed the row.
//
// Owned by Model, whose lock `mu` guards all members: readers hold it shared. There is one writer at a time, Model's
// applier. Since nobody else changes anything, it reads without the lock, computes outside of it, and holds it
// exclusively to write a block of rows at a time (kBlockBytes). Growing arrays and rehashing the index are prepared
// outside, too: the lock is held for a swap, or to move pages. Methods of the writer take the lock by themselves.
//
// Functions of the writer throw std::bad_alloc; Abandon then restores the state before Begin.
class RowTable {
 public:
  // Bytes of x, m and v that are written in one hold of the lock: tens of microseconds.
  static constexpr size_t kBlockBytes = size_t{128} << 10;
  // The version that has touched a key that none has.
  static constexpr uint32_t kNever = 0;

  // `position`: of the tensor in the model. `mu`: Model's; outlives the table.
  RowTable(const ModelTensorSpec& spec, uint32_t position, uint32_t keep_versions, SharedMutex* mu);
  RowTable(const RowTable&) = delete;
  RowTable& operator=(const RowTable&) = delete;

  const ModelTensorSpec& spec() const { return spec_; }
  const StepState& steps() const { return steps_; }

  // ---- the writer: Begin, then Commit or Abandon ----

  // Returns: the most bytes by which Begin may increase memory_bytes(), and needs besides. `delta`: null: no rows.
  uint64_t BeginBytes(const Result* delta) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Makes version `version` of the rows of `delta`, whose keys are ascending and unique: a sparse result, or a dense
  // one, of which the rows with a count of 0 are left out. Takes a step for each; then removes rows by expire_after and
  // max_rows. `delta` null: takes no step, but removes. Version 0: sets the rows, without a step. Readers of earlier
  // versions see no difference. Requires: CheckFits; version is one above the committed one. Errors: OUT_OF_RANGE: a
  // value that is not finite, or that int32 does not hold; names tensor, key and column. RESOURCE_EXHAUSTED: `delta`
  // alone has more rows than max_rows, or the table would have 2^32 rows. After an error or std::bad_alloc call
  // Abandon.
  absl::Status Begin(uint32_t version, const Result* delta,
                     std::optional<double> learning_rate) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Keeps the version; drops the undo record of `version` − keep_versions, and what it takes to Abandon.
  void Commit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Restores rows, states, index and StepState as they were before Begin.
  void Abandon() ABSL_NO_THREAD_SAFETY_ANALYSIS;

  // ---- readers ----

  // Tell the analysis of locks that the model's lock is `mu`.
  void AssertReaderHeld() const ABSL_ASSERT_SHARED_LOCK(mu_) {}
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK(mu_) {}

  // A key at some version.
  struct Found {
    const std::byte* row = nullptr;  // in the table or an undo record; null: untouched
    uint32_t touched = kNever;       // by which version at last, or removed by; 0 also: by the initial round
  };
  // Requires: `version` is committed, and kept.
  Found Find(uint64_t key, uint32_t version) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Returns: all keys that some kept version may have, and those of remembered removals, in ascending order; the same
  // list until a version adds or removes a key. Cost: of the first call after that, a copy of the keys under the lock
  // and a sort outside of it (80 ns a key).
  std::shared_ptr<const Column<uint64_t>> SortedKeys() const ABSL_LOCKS_EXCLUDED(mu_, sorted_mu_);
  // The smallest `since` of a read. Removals are forgotten, those of versions up to `version` − keep_versions, when
  // they are more than 65,536 and a quarter of the rows.
  uint32_t oldest_since() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return oldest_since_; }
  uint64_t num_rows() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return num_rows_; }
  uint64_t num_removed() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return num_removed_; }
  void Prefetch(uint64_t key) const ABSL_SHARED_LOCKS_REQUIRED(mu_) { index_.Prefetch(key); }
  // The formula of v1::Model.memory_bytes.
  uint64_t memory_bytes() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  // ---- snapshots: by the writer, between Commit and Begin ----

  // What blocks do not have.
  struct Header {
    double learning_rate, power_1, power_2;
    uint64_t num_entries;  // of all blocks
    uint64_t num_removed, oldest_since;
  };
  Header SavedHeader() const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void RestoreHeader(const Header& header) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Calls `take` with row blocks (row_block.h): all rows with their states, and remembered removals. Undo records are
  // not saved.
  absl::Status Save(absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)> take) const
      ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Adds a block of Save. Requires: parsed by RowBlock::Parse; no key twice. Errors: DATA_LOSS: a block of kDelta.
  absl::Status Restore(const RowBlock& block) ABSL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  // x, m and v of rows, one after the other in each plane; without m and v if the optimizer has none.
  using Planes = std::vector<Column<std::byte>>;

  // The rows that a version has changed, as they were before. Two runs of ascending keys: touched rows, then removed
  // ones.
  struct Undo {
    uint32_t version = 0;
    size_t num_touched = 0;  // length of the first run
    Column<uint64_t> keys;
    Column<uint32_t> touched;  // the version that had touched or removed it; 0: none
    Column<uint32_t> row;      // index in `planes`; kNone: the key was untouched
    Planes planes;             // only x after Commit
  };
  static constexpr uint32_t kNone = KeyMap::kNone;
  static constexpr uint32_t kFreeSlot = ~uint32_t{0};  // in touched_
  // Rows of Abandon in one hold of the lock.
  static constexpr size_t kAbandonRows = 256;
  static constexpr size_t kMostRemembered = 65536;

  size_t BlockRows() const;
  std::byte* RowOf(size_t plane, uint32_t slot) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return planes_[plane].data() + slot * spec_.PlaneBytes(plane);
  }
  // Takes a step of some rows. `work`: planes of at least so many rows, which the caller reuses.
  absl::Status Touch(const OptimizerSpec& optimizer, absl::Span<const uint64_t> keys, const std::byte* values,
                     DType dtype, Planes& work) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // The keys to remove at `version`: expired ones, then the excess above max_rows; ascending. Requires: the version's
  // rows are touched. Cost: a pass over touched_, unless no row can be old enough.
  Column<uint64_t> ChooseRemovals(uint32_t version) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void Remove(absl::Span<const uint64_t> keys) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Makes room for entries and rows of the undo record.
  void Reserve(size_t num_entries, size_t num_rows, Undo& undo) const;
  // Copies a row to the end of the undo record, past the caches: call EndStreaming before the lock is released.
  void KeepOld(uint64_t key, uint32_t slot, Undo& undo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns: a slot for a new row. Requires: free_slots_ has one, or the columns have capacity.
  uint32_t TakeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ResizeSlots(size_t num_slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Restores what the last entry of the undo record has, and removes the entry.
  void RestoreLast(Undo& undo) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ModelTensorSpec spec_;
  const uint32_t position_;
  const uint32_t keep_versions_;
  SharedMutex& mu_;

  StepState steps_;
  // The writer's, of Begin.
  bool is_begun_ = false;
  bool has_other_keys_ = false;  // a row was added or removed
  StepState steps_before_;
  uint32_t oldest_touch_ = 0;  // no row was touched before

  KeyMap index_ ABSL_GUARDED_BY(mu_);           // key: slot
  Column<uint64_t> keys_ ABSL_GUARDED_BY(mu_);  // by slot, as the next three
  Column<uint32_t> touched_ ABSL_GUARDED_BY(mu_);
  Planes planes_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> free_slots_ ABSL_GUARDED_BY(mu_);
  KeyMap removed_ ABSL_GUARDED_BY(mu_);  // key: version that removed it
  uint32_t oldest_since_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_rows_ ABSL_GUARDED_BY(mu_) = 0;  // committed ones
  uint64_t num_removed_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Undo> undo_ ABSL_GUARDED_BY(mu_);         // ascending versions without gaps; the last may be of a Begin
  uint64_t num_key_changes_ ABSL_GUARDED_BY(mu_) = 0;  // versions that added or removed keys

  mutable Mutex sorted_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable std::shared_ptr<const Column<uint64_t>> sorted_ ABSL_GUARDED_BY(sorted_mu_);  // null: never asked for
  mutable uint64_t sorted_at_ ABSL_GUARDED_BY(sorted_mu_) = 0;                          // num_key_changes_ then
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_MODEL_ROW_TABLE_H_
