// Builds a validated update from chunks as they arrive.
#ifndef SPARSEAGG_HOST_UPDATES_UPDATE_BUILDER_H_
#define SPARSEAGG_HOST_UPDATES_UPDATE_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/byte_spans.h"
#include "host/base/column.h"
#include "host/base/content_hash.h"
#include "host/spec/spec.h"
#include "host/updates/scan.h"
#include "host/updates/update.h"
#include "host/wire/packed_values.h"

namespace sparseagg {

// Some (key, row) tuples in wire form: little-endian, packed, unaligned, borrowed for the call.
struct SliceView {
  enum class Keys { kU32, kU64, kImplicit, kDeltaBitpacked, kBitmap };
  Keys key_type = Keys::kU32;
  ByteSpans keys;          // bytes; empty for kImplicit
  uint64_t first_key = 0;  // all but kU32 and kU64
  uint64_t num_keys = 0;   // kImplicit and kDeltaBitpacked; otherwise found from `keys`
  bool has_values = true;  // false: no values, which only kUnion tensors take
  ByteSpans values;        // bytes
  wire::ValuePacking value_packing = wire::ValuePacking::kOwn;  // one that widens to the tensor's dtype

  // Keys that strictly ascend, and are decoded rather than copied.
  bool has_packed_keys() const { return key_type == Keys::kDeltaBitpacked || key_type == Keys::kBitmap; }
};

// Number of keys in a slice. INVALID_ARGUMENT: bytes that are no keys, or not num_keys of them where that has to be
// given. At most one pass; nothing is allocated.
absl::StatusOr<uint64_t> CountKeys(const SliceView& slice);

// Collects the chunks of one tensor of one submission. Each Append is validated at once and completely, so that a bad
// chunk is refused when it comes, with its chunk number and position in the message. Not thread-safe.
class UpdateBuilder {
 public:
  explicit UpdateBuilder(const TensorSpec* spec);  // borrowed; must outlive the builder

  // After INVALID_ARGUMENT the builder is good for nothing, and must be discarded.
  absl::Status Append(uint64_t chunk, const SliceView& slice, Growth growth = Growth::kAhead);
  // Bytes that Append of this slice, with its num_keys, takes for the while beside memory_bytes(). A run of implicit
  // keys is not held, but all of it is once something else follows. Saturates.
  uint64_t RoomBytes(const SliceView& slice, Growth growth) const;

  // Makes room for `num_keys` explicit keys in all and their values, so that chunks up to there copy nothing twice.
  // They need not come.
  void Reserve(uint64_t num_keys);

  // Promises to be checked: by Finish, over all chunks.
  void DeclareSorted() { declared_sorted_ = true; }
  void DeclareUnique() { declared_unique_ = true; }

  uint64_t num_keys() const { return num_keys_; }
  // Room for keys and values held.
  size_t memory_bytes() const;
  // XXH3-128 of the decoded content (keys in the tensor's type, and values), the same for every chunking and packing.
  // Cost: one pass over implicit keys; all else has been hashed as it came.
  ContentHash HashContent() const;

  // Bytes that Finish takes for the while: whether keys are repeated that do not ascend only a sorted copy tells.
  uint64_t FinishBytes() const;
  // Dense tensors must be complete. The builder is spent.
  absl::StatusOr<ValidatedUpdate> Finish(double weight) &&;

 private:
  absl::Status AppendKeys(const internal::Place& place, const SliceView& slice, uint64_t count);
  template <typename Key>
  absl::Status AppendPlainKeys(const internal::Place& place, const SliceView& slice, uint64_t count,
                               Column<Key>& column);
  template <typename Key>
  absl::Status AppendPackedKeys(const internal::Place& place, const SliceView& slice, uint64_t count,
                                Column<Key>& column);
  absl::Status AppendValues(const internal::Place& place, const SliceView& slice, uint64_t count);
  absl::Status TakeValues(const internal::Place& place, const SliceView& slice, uint64_t num_values, std::byte* out);
  absl::Status TakeScaledValues(const internal::Place& place, const SliceView& slice, uint64_t num_values,
                                std::byte* out);
  bool KeepsValues() const { return spec_->aggregation.op != Op::kUnion; }
  bool GoesOnRun(KeyRun keys) const;
  // What is held once `slice`, of `count` keys, has been appended. Saturates.
  struct Sizes {
    uint64_t keys;
    uint64_t value_bytes;
  };
  Sizes SizesWith(const SliceView& slice, uint64_t count) const;
  void StoreImplicit(KeyRun keys);
  void LeaveRun();
  void StoreRun(KeyRun run);
  ContentHash HashKeys() const;
  bool MustSeekRepeats() const { return declared_unique_ && !order_.unique; }
  absl::Status CheckPromises() const;
  template <typename Key>
  absl::Status CheckPromisesOf(const Column<Key>& keys) const;
  // `index`: of the key among all, which have been stored.
  absl::Status BrokenPromise(uint64_t index, absl::string_view what) const;

  const TensorSpec* spec_;
  // Either all keys so far are one run, or they are stored in one of the vectors.
  bool is_run_ = false;
  KeyRun run_;
  Column<uint32_t> narrow_keys_;
  Column<uint64_t> wide_keys_;
  Column<std::byte> values_;
  uint64_t num_keys_ = 0;
  struct ChunkBegin {
    uint64_t chunk;
    uint64_t first;  // of its keys, among all
  };
  absl::InlinedVector<ChunkBegin, 2> chunk_begins_;  // of those that have keys
  internal::KeyOrder order_;
  ContentHasher key_hash_;  // but not of those in run_
  ContentHasher value_hash_;
  bool declared_sorted_ = false;
  bool declared_unique_ = false;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_UPDATES_UPDATE_BUILDER_H_
