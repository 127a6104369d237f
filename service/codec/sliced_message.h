// Parts of messages with tensor slices, whose keys and values stay where they were received.
#ifndef SPARSEAGG_SERVICE_CODEC_SLICED_MESSAGE_H_
#define SPARSEAGG_SERVICE_CODEC_SLICED_MESSAGE_H_

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "host/base/column.h"
#include "service/base/limits.h"
#include "service/codec/chunk_codec.h"
#include "service/rounds/submission_batch.h"
#include "service/rounds/upload.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

enum WireType : uint32_t { kWireVarint = 0, kWireFixed64 = 1, kWireBytes = 2, kWireFixed32 = 5 };

// Returns: the number in front of a field.
constexpr uint64_t WireTag(int field, WireType type) { return static_cast<uint64_t>(field) << 3 | type; }

void AppendVarint(uint64_t value, std::string* out);
// Returns: the tag and the length in front of a field of `size` bytes: of a string, of bytes or of a message.
std::string WireFieldHead(int number, uint64_t size);
// Returns: such a field.
inline std::string WireField(int number, absl::string_view bytes) {
  return WireFieldHead(number, bytes.size()).append(bytes.data(), bytes.size());
}

// Reads the pieces of a message. A read returns false if the bytes are malformed or too few; discard the cursor then.
class MessageCursor {
 public:
  // `bytes` must outlive the cursor, and stay where it is.
  explicit MessageCursor(const absl::Cord& bytes) : next_(bytes.chunk_begin()), left_(bytes.size()) {}

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
  // Returns: at least one and at most `most` bytes, from one piece. Requires: most ≥ 1 and left() ≥ 1.
  absl::string_view Next(uint64_t most) {
    while (piece_.empty()) piece_ = *next_++;
    const absl::string_view taken = piece_.substr(0, most);
    piece_.remove_prefix(taken.size());
    left_ -= taken.size();
    return taken;
  }

  absl::Cord::ChunkIterator next_;
  absl::string_view piece_;  // what is left of the piece before it
  uint64_t left_;
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

// One received UpdateChunk. Owned by the call that received it: one Parse or ParseFrom, then Decode, then the round
// copies the keys and values. Not thread-safe.
//
// Protocol Buffers copies `bytes` fields, which costs a sixth of the receive rate. Some messages take a hundred times
// their wire size once parsed, which no reservation covers. So messages of 16 KiB and more are taken apart first: keys
// and values stay where they are, unknown fields are refused, and Protocol Buffers parses the rest, usually a few
// dozen bytes. Smaller messages are parsed whole.
class ChunkMessage {
 public:
  // Parses an UpdateChunk, whose bytes this object shares.
  // Errors: INVALID_ARGUMENT: not an UpdateChunk, or unknown fields, or too many slices, or too many bytes besides keys
  // and values.
  absl::Status Parse(const absl::Cord& bytes);
  // Parses an AggregateRequest. The chunk goes into this object; `request` gets all other fields, and an empty chunk if
  // the message has a chunk.
  // Errors: as of Parse. RESOURCE_EXHAUSTED: as of CheckSpec for the other fields, if the message is taken apart.
  absl::Status ParseFrom(const absl::Cord& bytes, const Limits& limits, v1::AggregateRequest* request);

  // Makes Decode give the chunk its message, for the store. `bytes`: as of Parse, which came before.
  void KeepMessage(const absl::Cord& bytes);

  // Returns: the chunk. If the message was taken apart, its slices have no keys and values.
  const v1::UpdateChunk& head() const { return head_; }
  // Returns: the most keys that slices without values declare. A few bytes on the wire may declare very many such keys;
  // all other keys take bytes of the message, or are refused before they are decoded. Saturates.
  uint64_t MostKeysWithoutValues() const;
  // Decodes the chunk. Returns: a chunk that borrows from this object. Errors: as of DecodeChunk.
  absl::StatusOr<Chunk> Decode();

 private:
  v1::UpdateChunk head_;
  absl::Cord bytes_;                       // of a message that was taken apart, or is kept
  std::vector<SliceBytes> bulk_;           // in bytes_, by slice; empty: the message was parsed whole
  std::vector<Column<char>> packed_keys_;  // in one span, of slices whose keys are not U32 or U64; made by Decode
  bool keeps_message_ = false;
  std::vector<absl::string_view> message_;  // the pieces of bytes_, if the message is kept; made by Decode
};

// One received SubmitBatchRequest: a Parse, then Next for each of client_ids(). Keys and values are copied once, into
// one span for each slice, from which chunks borrow them. Not thread-safe.
class BatchMessage {
 public:
  // `keep`: chunks have messages of their own, for the store.
  // Errors: INVALID_ARGUMENT: not a SubmitBatchRequest, or unknown fields; or as of DecodeChunk and
  // SubmissionBatch::Split.
  absl::Status Parse(const absl::Cord& bytes, bool keep);

  const std::string& round() const { return head_.round(); }
  const std::string& submission_id() const { return head_.submission_id(); }
  const std::vector<absl::string_view>& client_ids() const { return batch_.client_ids(); }
  // SubmissionBatch::CheckSize.
  absl::Status CheckSize(const RoundConfig& config) const { return batch_.CheckSize(config); }

  // Returns: the only chunk of the next submission, until the next call.
  const Chunk& Next();

 private:
  v1::SubmitBatchRequest head_;
  v1::UpdateChunk slices_;          // of the message, without keys and values
  std::deque<Column<char>> bytes_;  // of keys and values
  SubmissionBatch batch_;
  bool keeps_messages_ = false;
  std::string message_;  // of the last chunk
  absl::string_view message_span_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_SLICED_MESSAGE_H_
