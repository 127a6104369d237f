#include "service/codec/chunk_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/parse.h"

namespace sparseagg::service {
namespace {

// Smaller messages are parsed whole: copying them is cheaper than taking them apart, and even parsed they stay small.
constexpr size_t kSmallestTakenApart = size_t{16} << 10;
// Limits for one message on slices, and on bytes besides keys and values: they bound the memory of the parsed message,
// which no reservation covers. A chunk with a slice for each of a thousand tensors takes an eighth of either.
constexpr size_t kMaxSlices = 8192;
constexpr size_t kMaxHeadBytes = size_t{1} << 20;

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr uint64_t Tag(int field, WireType type) { return static_cast<uint64_t>(field) << 3 | type; }
constexpr uint64_t kChunk = Tag(v1::AggregateRequest::kChunkFieldNumber, kBytes);
constexpr uint64_t kSlices = Tag(v1::UpdateChunk::kSlicesFieldNumber, kBytes);
constexpr uint64_t kKeys = Tag(v1::TensorSlice::kKeysFieldNumber, kBytes);
constexpr uint64_t kValues = Tag(v1::TensorSlice::kValuesFieldNumber, kBytes);

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

bool IsKnown(const google::protobuf::Descriptor* message, uint64_t tag) {
  using google::protobuf::internal::WireFormat;
  const auto* const field = message->FindFieldByNumber(static_cast<int>(tag >> 3));
  return field != nullptr && static_cast<uint64_t>(WireFormat::WireTypeForField(field)) == (tag & 7);
}

}  // namespace

// Reads a sequence of slices. A read returns false if the bytes are malformed or too few; discard the cursor then.
class ChunkMessage::Cursor {
 public:
  explicit Cursor(const std::vector<grpc::Slice>& slices) : slices_(slices) {
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

namespace {

// Returns: false if the bytes are not a tag, or too few.
bool ReadTag(ChunkMessage::Cursor& cursor, uint64_t* tag) {
  return cursor.Varint(tag) && *tag >= Tag(1, kVarint) && *tag <= UINT32_MAX;
}

// Appends the field that begins with `tag` to `out`.
// Errors: INVALID_ARGUMENT: an unknown field, or one of another wire type; or too few bytes. `place`: which message
// this is, for the error.
absl::Status CopyField(const google::protobuf::Descriptor* message, absl::string_view place, uint64_t tag,
                       ChunkMessage::Cursor& cursor, std::string* out) {
  if (!IsKnown(message, tag)) {
    return OlderThanTheClient(absl::StrCat("unknown field ", tag >> 3, " in ", place));
  }
  AppendVarint(tag, out);
  uint64_t value;
  bool is_copied = false;
  switch (tag & 7) {
    case kVarint:
      is_copied = cursor.Varint(&value);
      if (is_copied) AppendVarint(value, out);
      break;
    case kFixed64:
      is_copied = cursor.Copy(8, out);
      break;
    case kBytes:
      is_copied = cursor.Varint(&value);
      if (is_copied) AppendVarint(value, out);
      is_copied = is_copied && cursor.Copy(value, out);
      break;
    case kFixed32:
      is_copied = cursor.Copy(4, out);
      break;
    default:
      break;
  }
  return is_copied ? absl::OkStatus() : Malformed(message);
}

}  // namespace

absl::Status ChunkMessage::Parse(const grpc::ByteBuffer& bytes) {
  if (bytes.Length() < kSmallestTakenApart) return service::Parse(bytes, &head_);
  RETURN_IF_ERROR(Dump(bytes));
  Cursor cursor(slices_);
  std::string head;
  RETURN_IF_ERROR(TakeApart(cursor, 0, &head));
  return head_.ParseFromString(head) ? absl::OkStatus() : Malformed(v1::UpdateChunk::descriptor());
}

absl::Status ChunkMessage::ParseFrom(const grpc::ByteBuffer& bytes, const Limits& limits,
                                     v1::AggregateRequest* request) {
  if (bytes.Length() < kSmallestTakenApart) {
    absl::Status status = service::Parse(bytes, request);
    if (request->has_chunk()) head_.Swap(request->mutable_chunk());
    return status;
  }
  const google::protobuf::Descriptor* const type = v1::AggregateRequest::descriptor();
  RETURN_IF_ERROR(Dump(bytes));
  Cursor cursor(slices_);
  std::string rest;
  std::string head;
  bool has_chunk = false;
  while (cursor.left() > 0) {
    uint64_t tag;
    if (!ReadTag(cursor, &tag)) return Malformed(type);
    if (tag == kChunk) {
      uint64_t size;
      if (!cursor.Varint(&size) || size > cursor.left()) return Malformed(type);
      RETURN_IF_ERROR(TakeApart(cursor, cursor.left() - size, &head));
      has_chunk = true;
    } else {
      RETURN_IF_ERROR(CopyField(type, type->name(), tag, cursor, &rest));
    }
  }
  google::protobuf::io::ArrayInputStream stream(rest.data(), static_cast<int>(rest.size()));
  RETURN_IF_ERROR(CheckSpec(type, rest.size(), &stream, limits));
  if (!request->ParseFromString(rest) || !head_.ParseFromString(head)) return Malformed(type);
  const std::string unknown = FindUnknownFields(*request);
  if (!unknown.empty()) return OlderThanTheClient(unknown);
  if (has_chunk) request->mutable_chunk();
  return absl::OkStatus();
}

absl::Status ChunkMessage::Dump(const grpc::ByteBuffer& bytes) {
  return bytes.Dump(&slices_).ok() ? absl::OkStatus() : absl::InternalError("gRPC cannot read the message");
}

absl::Status ChunkMessage::KeepMessage(const grpc::ByteBuffer& bytes) {
  if (slices_.empty()) RETURN_IF_ERROR(Dump(bytes));
  for (const grpc::Slice& slice : slices_) {
    message_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return absl::OkStatus();
}

absl::Status ChunkMessage::TakeApart(Cursor& cursor, uint64_t end, std::string* head) {
  const google::protobuf::Descriptor* const type = v1::UpdateChunk::descriptor();
  const auto malformed = [type] { return Malformed(type); };
  while (cursor.left() > end) {
    uint64_t tag;
    if (!ReadTag(cursor, &tag)) return malformed();
    if (tag != kSlices) {
      RETURN_IF_ERROR(CopyField(type, type->name(), tag, cursor, head));
      continue;
    }
    uint64_t size;
    if (!cursor.Varint(&size) || size > cursor.left()) return malformed();
    if (bulk_.size() == kMaxSlices) {
      return absl::InvalidArgumentError(
          absl::StrCat("a chunk of more than ", kMaxSlices, " slices; send more and smaller chunks"));
    }
    const uint64_t slice_end = cursor.left() - size;  // bytes left where the slice ends
    Bulk bulk;
    std::string slice;
    const std::string place = absl::StrCat("slices[", bulk_.size(), "] of ", type->name());
    while (cursor.left() > slice_end) {
      if (!ReadTag(cursor, &tag)) return malformed();
      if (tag == kKeys || tag == kValues) {
        if (!cursor.Varint(&size) || !cursor.Take(size, tag == kKeys ? &bulk.keys : &bulk.values)) return malformed();
      } else {
        RETURN_IF_ERROR(CopyField(v1::TensorSlice::descriptor(), place, tag, cursor, &slice));
      }
    }
    if (cursor.left() < slice_end) return malformed();  // a field goes beyond its slice
    bulk_.push_back(std::move(bulk));
    AppendVarint(kSlices, head);
    AppendVarint(slice.size(), head);
    *head += slice;
  }
  if (cursor.left() < end) return malformed();
  if (head->size() > kMaxHeadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk with more than ", kMaxHeadBytes, " bytes besides keys and values"));
  }
  return absl::OkStatus();
}

uint64_t ChunkMessage::MostKeysWithoutValues() const {
  constexpr uint64_t kBitsPerByte = 8;
  uint64_t keys = 0;
  for (int i = 0; i < head_.slices_size(); ++i) {
    const v1::TensorSlice& slice = head_.slices(i);
    const Bulk* const bulk = bulk_.empty() ? nullptr : &bulk_[static_cast<size_t>(i)];
    if (!slice.values().empty() || (bulk != nullptr && !bulk->values.empty())) continue;
    uint64_t most = slice.num_keys();
    if (slice.key_encoding() == v1::KEY_ENCODING_BITMAP) {
      most = kBitsPerByte * (bulk != nullptr ? ByteSpans(bulk->keys).size() : slice.keys().size());
    }
    keys += std::min(most, UINT64_MAX - keys);
  }
  return keys;
}

absl::StatusOr<Chunk> ChunkMessage::Decode() {
  std::vector<SliceBulk> bulk;
  bulk.reserve(bulk_.size());
  for (size_t i = 0; i < bulk_.size(); ++i) {
    SliceBulk found{ByteSpans(bulk_[i].keys), ByteSpans(bulk_[i].values)};
    const int encoding = head_.slices(static_cast<int>(i)).key_encoding();
    // Decoders of packed keys read them several times, so the keys must be in one span.
    if (encoding != v1::KEY_ENCODING_U32 && encoding != v1::KEY_ENCODING_U64) {
      found.keys = found.keys.Flatten(bulk_[i].packed_keys);
    }
    bulk.push_back(found);
  }
  ASSIGN_OR_RETURN(Chunk chunk, DecodeChunk(head_, bulk));
  chunk.message = message_;
  return chunk;
}

}  // namespace sparseagg::service
