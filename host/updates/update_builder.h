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
#include "absl/types/span.h"
#include "host/base/column.h"
#include "host/base/content_hash.h"
#include "host/spec/spec.h"
#include "host/updates/input_checks.h"
#include "host/updates/slice.h"
#include "host/updates/update.h"

namespace sparseagg {

// The decoded content of one tensor of an upload, in order of occurrence. Borrowed from the builder.
struct UpdateContent {
  uint64_t num_keys = 0;
  KeyColumn keys;
  absl::Span<const std::byte> values;  // kept values; none of a tensor with Op::kUnion
};

// Makes the ValidatedUpdate of one tensor from the slices of an upload's chunks. The class Upload owns one builder for
// each tensor. Append checks keys and values, so that the sender of a bad chunk hears at once which chunk, position and
// value is wrong. Finish checks what only all chunks together show.
//
//   UpdateBuilder builder(&spec);
//   builder.Reserve(num_keys);                                 // optional
//   // For each chunk, in the order in which its client numbered it: uint64_t chunk, SliceView view.
//   ASSIGN_OR_RETURN(const CheckedSlice slice, CheckedSlice::Create(spec, chunk, view));
//   RETURN_IF_ERROR(builder.Append(slice));
//   builder.DeclareSorted();                                   // if the sender declared it; any time before Finish
//   const ContentHash hash = builder.HashContent();            // optional
//   ASSIGN_OR_RETURN(ValidatedUpdate update, std::move(builder).Finish(weight));
//
// Keys of a slice are plain (arrays of integers), packed (compressed) or implicit (a first key and a count). Implicit
// keys that continue those before are held as one KeyRun. Undeclared keys may come in any order and repeat.
// Not thread-safe. After an error or std::bad_alloc of any call, the builder may only be destroyed.
class UpdateBuilder {
 public:
  // Borrows `spec`, which must outlive the builder, but not the update that Finish makes.
  explicit UpdateBuilder(const TensorSpec* spec);

  // Validates the keys and values of `slice` and appends them. Values of a tensor with Op::kUnion are checked, but not
  // kept. `growth`: kAhead at least doubles the capacity when it is used up; kExact adds only what the slice needs.
  // Requires: the slice was checked against the builder's spec; chunks come in order, each once (Upload checks that).
  // Errors: INVALID_ARGUMENT names tensor, chunk, key, position and value.
  // Cost: one pass over keys and values, which copies, validates and hashes them; and one over the keys of a run that
  // the slice does not continue, which are written out then.
  absl::Status Append(const CheckedSlice& slice, Growth growth = Growth::kAhead);
  // Returns: the peak of this Append, in bytes above the present memory_bytes(), without decoding buffers. Saturates.
  // A run takes no memory until keys follow that do not continue it.
  uint64_t AppendBytes(const CheckedSlice& slice, Growth growth) const;

  // Reserves memory for a total of `num_keys` plain or packed keys and their values, so that columns need not grow.
  void Reserve(uint64_t num_keys);
  // Returns: bytes that Reserve takes in a builder without keys. Saturates.
  uint64_t ReserveBytes(uint64_t num_keys) const;

  // Notes what the sender declared of the keys of all chunks. Finish checks it.
  void DeclareSorted() { declared_sorted_ = true; }  // keys never descend; they may repeat
  void DeclareUnique() { declared_unique_ = true; }  // no key repeats

  uint64_t num_keys() const { return num_keys_; }
  // Returns: capacity for keys and values, in bytes, without the builder object and its hash states.
  size_t memory_bytes() const;
  // Returns: XXH3-128 of the decoded content: keys, in their order and in the tensor's key type, and kept values. The
  // weight, the declarations and the tensor's name are not part of it.
  // Deterministic: the same for every chunking and packing of the same content.
  // Cost: O(1), because Append has hashed keys and values; one pass over the keys of a run that the thread has not
  // hashed before.
  ContentHash HashContent() const;

  // Returns: the same content, until the next call that changes the builder.
  UpdateContent Content() const;

  // Returns: bytes that Finish temporarily needs in addition to memory_bytes(): 0, or a copy of the keys to sort, if
  // they were declared unique and do not strictly ascend.
  uint64_t FinishBytes() const;
  // Makes the update. A sparse tensor that got no chunk has an update without keys. The builder is spent, after an
  // error too. Errors: INVALID_ARGUMENT: ValidateWeight refuses the weight; a dense tensor lacks rows; keys are not as
  // declared.
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
  // The same for kInt8Scaled: 8-bit multiples of a scale for each block of values.
  absl::Status AppendScaledValues(const internal::InputLocation& location, const CheckedSlice& slice, std::byte* out);
  // Returns: the key at `index` among all keys.
  uint64_t KeyAt(uint64_t index) const;
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
  // Whether Finish must sort a copy of the keys to find repeats.
  bool MustSearchRepeats() const { return declared_unique_ && !order_.unique; }
  absl::Status CheckDeclarations() const;
  template <typename Key>
  absl::Status CheckDeclarationsOf(const Column<Key>& keys) const;
  // INVALID_ARGUMENT that names the chunk and position of the key at `index` among all stored keys.
  absl::Status InvalidKey(uint64_t index, absl::string_view problem) const;

  const TensorSpec* spec_;
  // All keys so far are either one run, or stored in the column of the tensor's key type (HasNarrowKeys).
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
  ContentHasher key_hash_;  // of stored keys
  ContentHasher value_hash_;
  bool declared_sorted_ = false;
  bool declared_unique_ = false;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_UPDATES_UPDATE_BUILDER_H_
