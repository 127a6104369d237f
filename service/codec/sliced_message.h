// Parts of messages with tensor slices, whose keys and values stay in gRPC's buffers.
#ifndef SPARSEAGG_SERVICE_CODEC_SLICED_MESSAGE_H_
#define SPARSEAGG_SERVICE_CODEC_SLICED_MESSAGE_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

enum WireType : uint32_t { kWireVarint = 0, kWireFixed64 = 1, kWireBytes = 2, kWireFixed32 = 5 };

// Returns: the number in front of a field.
constexpr uint64_t WireTag(int field, WireType type) { return static_cast<uint64_t>(field) << 3 | type; }

// Reads a sequence of slices. A read returns false if the bytes are malformed or too few; discard the cursor then.
class MessageCursor {
 public:
  explicit MessageCursor(const std::vector<grpc::Slice>& slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices) left_ += slice.size();
  }

  uint64_t left() const { return left_; }

  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_ == 0) return false;
      const auto byte = static_cast<uint8_t>(Next(1)[0]);
      if (shift == 63 && byte > 1) return false;
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool Copy(uint64_t count, std::string* out) {
    if (count > left_) return false;
    while (count > 0) {
      const absl::string_view piece = Next(count);
      out->append(piece.data(), piece.size());
      count -= piece.size();
    }
    return true;
  }
  bool Take(uint64_t count, std::vector<absl::string_view>* pieces) {
    if (count > left_) return false;
    pieces->clear();  // if a field comes twice, the last one counts
    while (count > 0) {
      pieces->push_back(Next(count));
      count -= pieces->back().size();
    }
    return true;
  }

 private:
  // Returns: at least one and at most `most` bytes, from one slice. Requires: most ≥ 1 and left() ≥ 1.
  absl::string_view Next(uint64_t most) {
    while (offset_ == slices_[slice_].size()) {
      ++slice_;
      offset_ = 0;
    }
    const grpc::Slice& slice = slices_[slice_];
    const auto* begin = reinterpret_cast<const char*>(slice.begin()) + offset_;
    const size_t count = static_cast<size_t>(std::min<uint64_t>(most, slice.size() - offset_));
    offset_ += count;
    left_ -= count;
    return {begin, count};
  }

  const std::vector<grpc::Slice>& slices_;
  size_t slice_ = 0;
  size_t offset_ = 0;
  uint64_t left_ = 0;
};

// Returns: false if the bytes are not a tag, or too few.
bool ReadTag(MessageCursor& cursor, uint64_t* tag);

// Appends the field that begins with `tag` to `out`.
// Errors: INVALID_ARGUMENT: an unknown field, or one of another wire type; or too few bytes. `place`: which message
// this is, for the error.
absl::Status CopyField(const google::protobuf::Descriptor* message, absl::string_view place, uint64_t tag,
                       MessageCursor& cursor, std::string* out);

// Keys and values of one slice. Borrowed.
struct SliceBytes {
  std::vector<absl::string_view> keys;
  std::vector<absl::string_view> values;
};

// Reads a message with `repeated TensorSlice slices = 7` up to the point where `end` bytes are left. Keys and values of
// each slice go to `bulk`; all other known fields are appended to `head`, to be parsed.
// Errors: INVALID_ARGUMENT: not a `type`, or unknown fields, or too many slices, or too many bytes besides keys and
// values.
absl::Status TakeApart(const google::protobuf::Descriptor* type, MessageCursor& cursor, uint64_t end, std::string* head,
                       std::vector<SliceBytes>* bulk);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_SLICED_MESSAGE_H_
