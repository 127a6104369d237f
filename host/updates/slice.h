// The (key, row) tuples of one tensor in one chunk, in wire form.
#ifndef SPARSEAGG_HOST_UPDATES_SLICE_H_
#define SPARSEAGG_HOST_UPDATES_SLICE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/byte_spans.h"
#include "host/spec/spec.h"
#include "host/wire/packed_values.h"

namespace sparseagg {

// A slice as received, unchecked. Keys and values are little-endian, packed and unaligned. Borrows their bytes.
struct SliceView {
  enum class Keys { kU32, kU64, kImplicit, kDeltaBitpacked };
  Keys key_type = Keys::kU32;
  ByteSpans keys;          // empty for kImplicit
  uint64_t first_key = 0;  // 0 for kU32 and kU64
  uint64_t num_keys = 0;   // as declared. 0: not declared; kDeltaBitpacked always declares it
  bool has_values = true;  // only kUnion tensors take slices without values
  ByteSpans values;
  wire::ValuePacking value_packing = wire::ValuePacking::kOwn;
};

// A slice whose lengths agree with each other and with the tensor. Keys and values themselves are not checked yet: that
// is UpdateBuilder::Append. Borrows the bytes of the view.
class CheckedSlice {
 public:
  // Errors: INVALID_ARGUMENT names tensor and chunk: byte lengths that are no whole number of keys or values, a
  // declared num_keys that is false, a number of values that is not num_keys × row_width, a packing that does not
  // widen to the tensor's dtype. Cost: at most one pass over packed keys; O(1) for others. Allocates only to join
  // packed keys that are in several spans.
  static absl::StatusOr<CheckedSlice> Create(const TensorSpec& spec, uint64_t chunk, const SliceView& view);

  const SliceView& view() const { return view_; }
  uint64_t chunk() const { return chunk_; }
  uint64_t num_keys() const { return num_keys_; }
  uint64_t num_values() const { return num_values_; }  // num_keys × row_width, or 0 without values
  // Packed keys strictly ascend, and are decoded rather than copied.
  bool has_packed_keys() const { return view_.key_type == SliceView::Keys::kDeltaBitpacked; }
  // Bytes of the keys: as received, or decoded if they are packed. Implicit keys take none.
  uint64_t key_bytes() const { return key_bytes_; }
  // Bytes of the values in the tensor's dtype.
  uint64_t value_bytes() const { return value_bytes_; }

 private:
  CheckedSlice() = default;

  SliceView view_;
  uint64_t chunk_ = 0;
  uint64_t num_keys_ = 0;
  uint64_t num_values_ = 0;
  uint64_t key_bytes_ = 0;
  uint64_t value_bytes_ = 0;
};

// INVALID_ARGUMENT with the text "tensor 'NAME', chunk N: PROBLEM".
absl::Status InvalidSlice(const TensorSpec& spec, uint64_t chunk, absl::string_view problem);

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_UPDATES_SLICE_H_
