#include "tools/loadgen/traffic.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <stdexcept>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "host/base/half.h"
#include "host/wire/delta_keys.h"
#include "host/wire/packed_values.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::bench {
namespace {

grpc::ByteBuffer Serialize(const v1::UpdateChunk& chunk) {
  const grpc::Slice slice(chunk.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

template <typename Key>
void CheckAscending(const std::vector<Key>& keys, const std::string& client_id) {
  if (std::adjacent_find(keys.begin(), keys.end(), std::greater_equal<>()) == keys.end()) return;
  throw std::invalid_argument("the keys of " + client_id + " do not strictly ascend, which packed ones must");
}

template <typename Key>
void SetKeys(const TensorSpec& spec, absl::Span<const Key> keys, const WireForm& form, v1::TensorSlice* slice) {
  if (spec.layout == Layout::kDense) {
    slice->set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
    slice->set_first_key(keys.front());
    slice->set_num_keys(keys.size());
  } else if (form.packed_keys) {
    slice->set_key_encoding(v1::KEY_ENCODING_DELTA_BITPACKED);
    slice->set_first_key(keys.front());
    slice->set_num_keys(keys.size());
    slice->set_keys(wire::EncodeDeltaKeys(keys));
  } else {
    slice->set_key_encoding(sizeof(Key) == sizeof(uint32_t) ? v1::KEY_ENCODING_U32 : v1::KEY_ENCODING_U64);
    slice->set_keys(keys.data(), keys.size() * sizeof(Key));
  }
}

void SetValues(absl::Span<const float> values, const WireForm& form, v1::TensorSlice* slice) {
  if (!form.float16_values) {
    slice->set_value_encoding(v1::VALUE_ENCODING_FLOAT32);
    slice->set_values(values.data(), values.size() * sizeof(float));
    return;
  }
  for (const float value : values) {
    if (WidenFloat16(RoundToFloat16(value)) != value) throw std::invalid_argument("a value is no float16");
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  slice->set_value_encoding(v1::VALUE_ENCODING_FLOAT16);
  slice->set_values(*wire::PackValues(wire::ValuePacking::kFloat16, DType::kFloat32, bytes, values.size()));
}

// Returns: tuples per chunk, from the mean size of a tuple.
template <typename Key>
size_t ChunkTuples(const TensorSpec& spec, const std::vector<Key>& keys, uint64_t chunk_bytes, const WireForm& form) {
  const uint64_t key_bytes = spec.layout == Layout::kDense ? 0
                             : form.packed_keys            ? wire::DeltaKeyBytes(absl::MakeConstSpan(keys))
                                                           : keys.size() * sizeof(Key);
  const uint64_t bytes =
      key_bytes + keys.size() * spec.row_width * (form.float16_values ? sizeof(uint16_t) : sizeof(float));
  return std::max<size_t>(1, chunk_bytes * keys.size() / std::max<uint64_t>(1, bytes));
}

template <typename Key>
Submission MakeSubmission(const TensorSpec& spec, const std::vector<Key>& keys, const std::vector<float>& values,
                          size_t number, uint64_t chunk_bytes, const WireForm& form) {
  Submission submission;
  submission.client_id = ClientId(number);
  if (form.packed_keys) CheckAscending(keys, submission.client_id);
  const size_t count = keys.size();
  const size_t step = ChunkTuples(spec, keys, chunk_bytes, form);
  submission.tuples = count;
  for (size_t begin = 0; begin < count; begin += step) {
    const size_t end = std::min(count, begin + step);
    v1::UpdateChunk chunk;
    chunk.set_sequence(begin / step);
    chunk.set_last(end == count);
    v1::TensorSlice* slice = chunk.add_slices();
    slice->set_tensor(spec.name);
    SetKeys(spec, absl::MakeConstSpan(keys).subspan(begin, end - begin), form, slice);
    SetValues(absl::MakeConstSpan(values).subspan(begin * spec.row_width, (end - begin) * spec.row_width), form, slice);
    submission.chunks.push_back(Serialize(chunk));
    submission.bytes += submission.chunks.back().Length();
  }
  return submission;
}

}  // namespace

std::string ClientId(size_t number) { return absl::StrFormat("c%08d", number); }

void RoundValuesToFloat16(Workload& workload) {
  for (ClientArrays& client : workload.clients) {
    for (float& value : client.values) {
      value = WidenFloat16(RoundToFloat16(value));
      if (!std::isfinite(value)) throw std::invalid_argument("a value is beyond the range of float16");
    }
  }
}

void SplitClients(Workload& workload, uint64_t tuples) {
  std::vector<ClientArrays> parts;
  const auto part_of = [tuples](const auto& column, size_t begin, size_t width) {
    const auto at = [&](size_t tuple) { return column.begin() + std::min(tuple * width, column.size()); };
    return std::decay_t<decltype(column)>(at(begin), at(begin + tuples));
  };
  for (const ClientArrays& client : workload.clients) {
    const size_t count = std::max(client.narrow_keys.size(), client.wide_keys.size());
    for (size_t begin = 0; begin < count; begin += tuples) {
      parts.push_back({part_of(client.narrow_keys, begin, 1), part_of(client.wide_keys, begin, 1),
                       part_of(client.values, begin, workload.spec.row_width), client.weight});
    }
  }
  workload.clients = std::move(parts);
}

Traffic MakeTraffic(const Workload& workload, uint64_t chunk_bytes, const WireForm& form) {
  const TensorSpec& spec = workload.spec;
  Traffic traffic;
  for (size_t k = 0; k < workload.clients.size(); ++k) {
    const ClientArrays& client = workload.clients[k];
    traffic.submissions.push_back(HasNarrowKeys(spec)
                                      ? MakeSubmission(spec, client.narrow_keys, client.values, k, chunk_bytes, form)
                                      : MakeSubmission(spec, client.wide_keys, client.values, k, chunk_bytes, form));
    traffic.tuples += traffic.submissions.back().tuples;
    traffic.bytes += traffic.submissions.back().bytes;
  }
  return traffic;
}

grpc::ByteBuffer WithIds(const Submission& submission, const std::string& round) {
  v1::UpdateChunk ids;
  ids.set_round(round);
  ids.set_client_id(submission.client_id);
  ids.set_submission_id("s");
  // The concatenation of two serialized messages is the serialization of both, merged.
  std::vector<grpc::Slice> slices;
  if (!submission.chunks.front().Dump(&slices).ok()) throw std::runtime_error("a chunk that gRPC cannot read");
  slices.insert(slices.begin(), grpc::Slice(ids.SerializeAsString()));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace sparseagg::bench
