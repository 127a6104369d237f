#include "service/codec/chunk_message.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace sparseagg::service {
namespace {

// Copying less than that costs less than taking it apart.
constexpr size_t kSmallestTakenApart = size_t{16} << 10;
// More in one message are unusual; what is noted of each must not add up.
constexpr size_t kMostSlices = 2048;

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr uint64_t Tag(int field, WireType type) { return static_cast<uint64_t>(field) << 3 | type; }
constexpr uint64_t kSlices = Tag(v1::UpdateChunk::kSlicesFieldNumber, kBytes);
constexpr uint64_t kKeys = Tag(v1::TensorSlice::kKeysFieldNumber, kBytes);
constexpr uint64_t kValues = Tag(v1::TensorSlice::kValuesFieldNumber, kBytes);

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// Goes through the bytes of slices. Everything returns false, and is then of no use any more, if there are too few.
class Cursor {
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
    pieces->clear();  // of a field that comes twice the last one counts
    while (count > 0) {
      pieces->push_back(Next(count));
      count -= pieces->back().size();
    }
    return true;
  }

 private:
  // Up to `most` bytes, at least one, of which there must be one.
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

// Copies the field that `tag` begins as it is. False: groups, field 0, or too few bytes.
bool CopyField(uint64_t tag, Cursor& cursor, std::string* out) {
  if (tag < Tag(1, kVarint) || tag > UINT32_MAX) return false;
  AppendVarint(tag, out);
  switch (tag & 7) {
    case kVarint: {
      uint64_t value;
      if (!cursor.Varint(&value)) return false;
      AppendVarint(value, out);
      return true;
    }
    case kFixed64:
      return cursor.Copy(8, out);
    case kBytes: {
      uint64_t size;
      if (!cursor.Varint(&size)) return false;
      AppendVarint(size, out);
      return cursor.Copy(size, out);
    }
    case kFixed32:
      return cursor.Copy(4, out);
    default:
      return false;
  }
}

}  // namespace

absl::Status ChunkMessage::Parse(grpc::ByteBuffer& bytes) {
  bool parsed = bytes.Length() >= kSmallestTakenApart && TakeApart(bytes);
  if (!parsed) {
    bulk_.clear();
    slices_.clear();
    parsed = grpc::SerializationTraits<v1::UpdateChunk>::Deserialize(&bytes, &head_).ok();
  }
  bytes.Clear();
  return parsed ? absl::OkStatus() : absl::InvalidArgumentError("a message that is no UpdateChunk");
}

bool ChunkMessage::TakeApart(const grpc::ByteBuffer& bytes) {
  if (!bytes.Dump(&slices_).ok()) return false;
  Cursor cursor(slices_);
  std::string head;
  while (cursor.left() > 0) {
    uint64_t tag;
    if (!cursor.Varint(&tag)) return false;
    if (tag != kSlices) {
      if (!CopyField(tag, cursor, &head)) return false;
      continue;
    }
    uint64_t size;
    if (bulk_.size() == kMostSlices || !cursor.Varint(&size) || size > cursor.left()) return false;
    const uint64_t end = cursor.left() - size;  // what is left then
    Bulk bulk;
    std::string slice;
    while (cursor.left() > end) {
      if (!cursor.Varint(&tag)) return false;
      if (tag == kKeys || tag == kValues) {
        if (!cursor.Varint(&size) || !cursor.Take(size, tag == kKeys ? &bulk.keys : &bulk.values)) return false;
      } else if (!CopyField(tag, cursor, &slice)) {
        return false;
      }
    }
    if (cursor.left() < end) return false;  // a field goes beyond its slice
    bulk_.push_back(std::move(bulk));
    AppendVarint(kSlices, &head);
    AppendVarint(slice.size(), &head);
    head += slice;
  }
  return head_.ParseFromString(head);
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
      most = kBitsPerByte * (bulk != nullptr ? Pieces(bulk->keys).size() : slice.keys().size());
    }
    keys += std::min(most, UINT64_MAX - keys);
  }
  return keys;
}

absl::StatusOr<Chunk> ChunkMessage::Decode() {
  std::vector<SliceBulk> bulk;
  bulk.reserve(bulk_.size());
  for (size_t i = 0; i < bulk_.size(); ++i) {
    SliceBulk found{Pieces(bulk_[i].keys), Pieces(bulk_[i].values)};
    const int encoding = head_.slices(static_cast<int>(i)).key_encoding();
    // Packed keys are looked at more than once.
    if (encoding != v1::KEY_ENCODING_U32 && encoding != v1::KEY_ENCODING_U64) {
      found.keys = found.keys.Flatten(bulk_[i].packed_keys);
    }
    bulk.push_back(found);
  }
  return DecodeChunk(head_, bulk);
}

}  // namespace sparseagg::service
