#include "bench/loadgen/traffic.h"

#include <grpcpp/support/slice.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::bench {
namespace {

grpc::ByteBuffer Serialise(const v1::UpdateChunk& chunk) {
  const grpc::Slice slice(chunk.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

template <typename Key>
void SetKeys(const std::vector<Key>& keys, size_t begin, size_t end, v1::TensorSlice* slice) {
  slice->set_key_encoding(sizeof(Key) == sizeof(uint32_t) ? v1::KEY_ENCODING_U32 : v1::KEY_ENCODING_U64);
  slice->set_keys(keys.data() + begin, (end - begin) * sizeof(Key));
}

Submission MakeSubmission(const TensorSpec& spec, const ClientArrays& client, size_t number, uint64_t chunk_bytes) {
  Submission submission;
  submission.client_id = ClientId(number);
  const bool narrow = HasNarrowKeys(spec);
  const size_t count = narrow ? client.narrow_keys.size() : client.wide_keys.size();
  const size_t tuple_bytes = (narrow ? 4 : 8) + spec.width * sizeof(float);
  const size_t step = std::max<size_t>(1, chunk_bytes / tuple_bytes);
  submission.tuples = count;
  for (size_t begin = 0; begin < count; begin += step) {
    const size_t end = std::min(count, begin + step);
    v1::UpdateChunk chunk;
    chunk.set_sequence(1 + begin / step);
    chunk.set_last(end == count);
    v1::TensorSlice* slice = chunk.add_slices();
    slice->set_tensor(spec.name);
    narrow ? SetKeys(client.narrow_keys, begin, end, slice) : SetKeys(client.wide_keys, begin, end, slice);
    slice->set_value_encoding(v1::VALUE_ENCODING_FLOAT32);
    slice->set_values(client.values.data() + begin * spec.width, (end - begin) * spec.width * sizeof(float));
    submission.chunks.push_back(Serialise(chunk));
    submission.bytes += submission.chunks.back().Length();
  }
  return submission;
}

}  // namespace

std::string ClientId(size_t number) { return absl::StrFormat("c%08d", number); }

Traffic MakeTraffic(const Workload& workload, uint64_t chunk_bytes) {
  Traffic traffic;
  for (size_t k = 0; k < workload.clients.size(); ++k) {
    traffic.submissions.push_back(MakeSubmission(workload.spec, workload.clients[k], k, chunk_bytes));
    traffic.tuples += traffic.submissions.back().tuples;
    traffic.bytes += traffic.submissions.back().bytes;
  }
  return traffic;
}

grpc::ByteBuffer FirstChunk(const std::string& round, const std::string& client_id) {
  v1::UpdateChunk chunk;
  chunk.set_round(round);
  chunk.set_client_id(client_id);
  chunk.set_submission_id("s");
  return Serialise(chunk);
}

}  // namespace sparseagg::bench
