#include "service/codec/sliced_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/byte_spans.h"
#include "host/base/status_macros.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/parse.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
namespace {

// Limits for one message on slices, and on bytes besides keys and values: they bound the memory of the parsed message,
// which no reservation covers. A chunk with a slice for each of a thousand tensors takes an eighth of either.
constexpr size_t kMaxSlices = 8192;
constexpr size_t kMaxHeadBytes = size_t{1} << 20;

constexpr uint64_t kSlices = WireTag(v1::UpdateChunk::kSlicesFieldNumber, kWireBytes);
static_assert(kSlices == WireTag(v1::SubmitBatchRequest::kSlicesFieldNumber, kWireBytes));
constexpr uint64_t kKeys = WireTag(v1::TensorSlice::kKeysFieldNumber, kWireBytes);
constexpr uint64_t kValues = WireTag(v1::TensorSlice::kValuesFieldNumber, kWireBytes);

bool IsKnown(const google::protobuf::Descriptor* message, uint64_t tag) {
  using google::protobuf::internal::WireFormat;
  const auto* const field = message->FindFieldByNumber(static_cast<int>(tag >> 3));
  return field != nullptr && static_cast<uint64_t>(WireFormat::WireTypeForField(field)) == (tag & 7);
}

}  // namespace

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

std::string WireFieldHead(int number, uint64_t size) {
  std::string head;
  AppendVarint(WireTag(number, kWireBytes), &head);
  AppendVarint(size, &head);
  return head;
}

bool ReadTag(MessageCursor& cursor, uint64_t* tag) {
  return cursor.Varint(tag) && *tag >= WireTag(1, kWireVarint) && *tag <= UINT32_MAX;
}

absl::Status CopyField(const google::protobuf::Descriptor* message, absl::string_view place, uint64_t tag,
                       MessageCursor& cursor, std::string* out) {
  if (!IsKnown(message, tag)) {
    return OlderThanTheClient(absl::StrCat("unknown field ", tag >> 3, " in ", place));
  }
  AppendVarint(tag, out);
  uint64_t value;
  bool is_copied = false;
  switch (tag & 7) {
    case kWireVarint:
      is_copied = cursor.Varint(&value);
      if (is_copied) AppendVarint(value, out);
      break;
    case kWireFixed64:
      is_copied = cursor.Copy(8, out);
      break;
    case kWireBytes:
      is_copied = cursor.Varint(&value);
      if (is_copied) AppendVarint(value, out);
      is_copied = is_copied && cursor.Copy(value, out);
      break;
    case kWireFixed32:
      is_copied = cursor.Copy(4, out);
      break;
    default:
      break;
  }
  return is_copied ? absl::OkStatus() : Malformed(message);
}

absl::Status TakeApart(const google::protobuf::Descriptor* type, MessageCursor& cursor, uint64_t end, std::string* head,
                       std::vector<SliceBytes>* bulk) {
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
    if (bulk->size() == kMaxSlices) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message of more than ", kMaxSlices, " slices; send more and smaller messages"));
    }
    const uint64_t slice_end = cursor.left() - size;  // bytes left where the slice ends
    SliceBytes bytes;
    std::string slice;
    const std::string place = absl::StrCat("slices[", bulk->size(), "] of ", type->name());
    while (cursor.left() > slice_end) {
      if (!ReadTag(cursor, &tag)) return malformed();
      if (tag == kKeys || tag == kValues) {
        if (!cursor.Varint(&size) || !cursor.Take(size, tag == kKeys ? &bytes.keys : &bytes.values)) return malformed();
      } else {
        RETURN_IF_ERROR(CopyField(v1::TensorSlice::descriptor(), place, tag, cursor, &slice));
      }
    }
    if (cursor.left() < slice_end) return malformed();  // a field goes beyond its slice
    bulk->push_back(std::move(bytes));
    AppendVarint(kSlices, head);
    AppendVarint(slice.size(), head);
    *head += slice;
  }
  if (cursor.left() < end) return malformed();
  if (head->size() > kMaxHeadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message with more than ", kMaxHeadBytes, " bytes besides keys and values"));
  }
  return absl::OkStatus();
}

namespace {

// Smaller messages are parsed whole: copying them is cheaper than taking them apart, and even parsed they stay small.
constexpr size_t kSmallestTakenApart = size_t{16} << 10;
constexpr uint64_t kChunk = WireTag(v1::AggregateRequest::kChunkFieldNumber, kWireBytes);

}  // namespace

absl::Status ChunkMessage::Parse(const absl::Cord& bytes) {
  if (bytes.size() < kSmallestTakenApart) return service::Parse(bytes, &head_);
  bytes_ = bytes;
  MessageCursor cursor(bytes_);
  std::string head;
  RETURN_IF_ERROR(TakeApart(v1::UpdateChunk::descriptor(), cursor, 0, &head, &bulk_));
  return head_.ParseFromString(head) ? absl::OkStatus() : Malformed(v1::UpdateChunk::descriptor());
}

absl::Status ChunkMessage::ParseFrom(const absl::Cord& bytes, const Limits& limits, v1::AggregateRequest* request) {
  if (bytes.size() < kSmallestTakenApart) {
    absl::Status status = service::Parse(bytes, request);
    if (request->has_chunk()) head_.Swap(request->mutable_chunk());
    return status;
  }
  const google::protobuf::Descriptor* const type = v1::AggregateRequest::descriptor();
  bytes_ = bytes;
  MessageCursor cursor(bytes_);
  std::string rest;
  std::string head;
  bool has_chunk = false;
  while (cursor.left() > 0) {
    uint64_t tag;
    if (!ReadTag(cursor, &tag)) return Malformed(type);
    if (tag == kChunk) {
      uint64_t size;
      if (!cursor.Varint(&size) || size > cursor.left()) return Malformed(type);
      RETURN_IF_ERROR(TakeApart(v1::UpdateChunk::descriptor(), cursor, cursor.left() - size, &head, &bulk_));
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

void ChunkMessage::KeepMessage(const absl::Cord& bytes) {
  bytes_ = bytes;
  keeps_message_ = true;
}

uint64_t ChunkMessage::MostKeysWithoutValues() const {
  uint64_t keys = 0;
  for (int i = 0; i < head_.slices_size(); ++i) {
    const v1::TensorSlice& slice = head_.slices(i);
    const SliceBytes* const bulk = bulk_.empty() ? nullptr : &bulk_[static_cast<size_t>(i)];
    if (!slice.values().empty() || (bulk != nullptr && !bulk->values.empty())) continue;
    keys += std::min<uint64_t>(slice.num_keys(), UINT64_MAX - keys);
  }
  return keys;
}

absl::StatusOr<Chunk> ChunkMessage::Decode() {
  std::vector<SliceBulk> bulk;
  bulk.reserve(bulk_.size());
  packed_keys_.resize(bulk_.size());
  for (size_t i = 0; i < bulk_.size(); ++i) {
    SliceBulk found{ByteSpans(bulk_[i].keys), ByteSpans(bulk_[i].values)};
    const int encoding = head_.slices(static_cast<int>(i)).key_encoding();
    // Decoders of packed keys read them several times, so the keys must be in one span.
    if (encoding != v1::KEY_ENCODING_U32 && encoding != v1::KEY_ENCODING_U64) {
      found.keys = found.keys.Flatten(packed_keys_[i]);
    }
    bulk.push_back(found);
  }
  ASSIGN_OR_RETURN(Chunk chunk, DecodeChunk(head_, bulk));
  if (keeps_message_) message_.assign(bytes_.chunk_begin(), bytes_.chunk_end());
  chunk.message = message_;
  return chunk;
}

namespace {

absl::string_view CopyOf(const std::vector<absl::string_view>& spans, std::deque<Column<char>>& owner) {
  const ByteSpans bytes(spans);
  Column<char>& copy = owner.emplace_back(bytes.size());
  bytes.CopyTo(copy.data());
  return {copy.data(), copy.size()};
}

std::string CopyOf(const ByteSpans& bytes) {
  std::string copy(bytes.size(), '\0');
  bytes.CopyTo(copy.data());
  return copy;
}

}  // namespace

absl::Status BatchMessage::Parse(const absl::Cord& bytes, bool keep) {
  keeps_messages_ = keep;
  MessageCursor cursor(bytes);
  std::string head;
  std::vector<SliceBytes> bulk;
  RETURN_IF_ERROR(TakeApart(v1::SubmitBatchRequest::descriptor(), cursor, 0, &head, &bulk));
  if (!head_.ParseFromString(head)) return Malformed(v1::SubmitBatchRequest::descriptor());
  slices_.mutable_slices()->Swap(head_.mutable_slices());
  std::vector<BatchSlice> columns;
  std::vector<SliceBulk> spans;
  for (const SliceBytes& slice : bulk) {
    const BatchSlice& column =
        columns.emplace_back(BatchSlice{{}, CopyOf(slice.keys, bytes_), CopyOf(slice.values, bytes_)});
    spans.push_back({column.keys, column.values});
  }
  ASSIGN_OR_RETURN(const Chunk decoded, DecodeChunk(slices_, spans));
  for (size_t i = 0; i < columns.size(); ++i) columns[i].slice = decoded.slices[i];
  return batch_.Split(head_.client_ids(), head_.weights(), head_.num_keys(), columns);
}

const Chunk& BatchMessage::Next() {
  Chunk& chunk = batch_.Next();
  if (head_.has_base_version()) chunk.base_version = head_.base_version();
  if (!keeps_messages_) return chunk;
  v1::UpdateChunk message;
  message.set_last(true);
  if (chunk.weight.has_value()) message.set_weight(*chunk.weight);
  if (chunk.base_version.has_value()) message.set_base_version(*chunk.base_version);
  int column = 0;
  for (const ChunkSlice& slice : chunk.slices) {
    // Slices of which a submission has no tuples are not in its chunk. All else of a slice is as in the message.
    while (slices_.slices(column).tensor() != slice.tensor) ++column;
    v1::TensorSlice& kept = *message.add_slices();
    kept = slices_.slices(column);
    kept.set_num_keys(slice.view.num_keys);
    kept.set_keys(CopyOf(slice.view.keys));
    kept.set_values(CopyOf(slice.view.values));
  }
  message_ = message.SerializeAsString();
  message_span_ = message_;
  chunk.message = {&message_span_, 1};
  return chunk;
}

}  // namespace sparseagg::service
