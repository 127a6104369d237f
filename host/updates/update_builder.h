// Builder of a validated update from chunks as they arrive.
#ifndef SPARSEAGG_HOST_UPDATES_UPDATE_BUILDER_H_
#define SPARSEAGG_HOST_UPDATES_UPDATE_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/column.h"
#include "host/base/content_hash.h"
#include "host/spec/spec.h"
#include "host/updates/input_checks.h"
#include "host/updates/slice.h"
#include "host/updates/update.h"

namespace sparseagg {

// The update of one tensor in the making, owned by its upload. Each chunk is validated completely when it is appended,
// so that the sender of a bad chunk hears at once which chunk, position and value is wrong.
//
//   UpdateBuilder builder(&spec);
//   ASSIGN_OR_RETURN(const CheckedSlice slice, CheckedSlice::Create(spec, chunk, view));
//   RETURN_IF_ERROR(builder.Append(slice));                    // for each chunk, in order
//   builder.DeclareSorted();                                   // if the sender declared it
//   ASSIGN_OR_RETURN(ValidatedUpdate update, std::move(builder).Finish(weight));
//
// Append, DeclareSorted and DeclareUnique may come in any order; Finish is the last call.
// Not thread-safe.
class UpdateBuilder {
 public:
  // Borrows `spec`, which must outlive the builder.
  explicit UpdateBuilder(const TensorSpec* spec);

  // Validates the keys and values of `slice` and appends them.
  // Requires: the slice was checked against the builder's spec.
  // Errors: INVALID_ARGUMENT names tensor, chunk, position and value. The builder is unusable after it; discard it.
  // Cost: one pass over keys and values, which copies, validates and hashes them.
  absl::Status Append(const CheckedSlice& slice, Growth growth = Growth::kAhead);
  // Returns: bytes that Append of this slice temporarily needs in addition to memory_bytes(). Saturates.
  // A run of implicit keys takes no memory until other keys follow it; then all keys of the run are written out.
  uint64_t AppendBytes(const CheckedSlice& slice, Growth growth) const;

  // Reserves memory for `num_keys` explicit keys and their values in all, so that appending them copies nothing twice.
  void Reserve(uint64_t num_keys);
  // Returns: bytes that Reserve of an empty builder takes. Saturates.
  uint64_t ReserveBytes(uint64_t num_keys) const;

  // Notes what the sender declared of the keys of all chunks. Finish checks it.
  void DeclareSorted() { declared_sorted_ = true; }
  void DeclareUnique() { declared_unique_ = true; }

  uint64_t num_keys() const { return num_keys_; }
  // Returns: capacity for keys and values, in bytes.
  size_t memory_bytes() const;
  // Returns: XXH3-128 of the decoded content: keys in the tensor's key type, and values.
  // Deterministic: the same for every chunking and packing of the same content.
  // Cost: one pass over a run of implicit keys; everything else was hashed by Append.
  ContentHash HashContent() const;

  // Returns: bytes that Finish temporarily needs. Only the check of a declared uniqueness of unsorted keys needs any:
  // it sorts a copy.
  uint64_t FinishBytes() const;
  // Makes the update. The builder is spent.
  // Errors: INVALID_ARGUMENT: a bad weight; a dense tensor with missing rows; keys that are not as declared.
  absl::StatusOr<ValidatedUpdate> Finish(double weight) &&;

 private:
  absl::Status AppendKeys(const internal::InputLocation& location, const CheckedSlice& slice);
  template <typename Key>
  absl::Status AppendPlainKeys(const internal::InputLocation& location, const CheckedSlice& slice, Column<Key>& column);
  template <typename Key>
  absl::Status AppendPackedKeys(const internal::InputLocation& location, const CheckedSlice& slice,
                                Column<Key>& column);
  absl::Status AppendValues(const internal::InputLocation& location, const CheckedSlice& slice);
  // Validate the values of a slice and write them to `out`, if values are kept.
  absl::Status AppendFloatsOrIntegers(const internal::InputLocation& location, const CheckedSlice& slice,
                                      std::byte* out);
  absl::Status AppendScaledValues(const CheckedSlice& slice, std::byte* out);
  bool KeepsValues() const { return spec_->aggregation.op != Op::kUnion; }
  // Whether all keys so far, followed by `keys`, are one run.
  bool ExtendsRun(KeyRun keys) const;
  // Sizes of the columns once a slice has been appended. Saturate.
  struct Sizes {
    uint64_t keys;
    uint64_t value_bytes;
  };
  Sizes SizesWith(const CheckedSlice& slice) const;
  void AppendRun(KeyRun keys);
  // Writes out the keys that are held as a run.
  void ExpandRun();
  void WriteRun(KeyRun run);
  ContentHash HashKeys() const;
  bool MustSearchRepeats() const { return declared_unique_ && !order_.unique; }
  absl::Status CheckDeclarations() const;
  template <typename Key>
  absl::Status CheckDeclarationsOf(const Column<Key>& keys) const;
  // INVALID_ARGUMENT that names the chunk and position of the key at `index` among all stored keys.
  absl::Status InvalidKey(uint64_t index, absl::string_view problem) const;

  const TensorSpec* spec_;
  // All keys so far are either one run, or stored in one of the two columns.
  bool is_run_ = false;
  KeyRun run_;
  Column<uint32_t> narrow_keys_;
  Column<uint64_t> wide_keys_;
  Column<std::byte> values_;
  uint64_t num_keys_ = 0;
  struct ChunkBegin {
    uint64_t chunk;
    uint64_t first;  // index of the chunk's first key among all keys
  };
  absl::InlinedVector<ChunkBegin, 2> chunk_begins_;  // of chunks that have keys
  internal::KeyOrder order_;
  ContentHasher key_hash_;  // of stored keys; those of run_ are hashed by HashKeys
  ContentHasher value_hash_;
  bool declared_sorted_ = false;
  bool declared_unique_ = false;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_UPDATES_UPDATE_BUILDER_H_
