#include "service/codec/sliced_message.h"

#include <google/protobuf/wire_format.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
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

}  // namespace sparseagg::service
