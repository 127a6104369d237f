#include "service/codec/batch_message.h"

#include <grpcpp/support/slice.h>

#include "host/base/byte_spans.h"
#include "host/base/status_macros.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/parse.h"
#include "service/codec/sliced_message.h"

namespace sparseagg::service {
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

absl::Status BatchMessage::Parse(const grpc::ByteBuffer& bytes, bool keep) {
  keeps_messages_ = keep;
  std::vector<grpc::Slice> buffers;
  if (!bytes.Dump(&buffers).ok()) return absl::InternalError("gRPC cannot read the message");
  MessageCursor cursor(buffers);
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
