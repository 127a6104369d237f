#include "tests/service/support/wire.h"

#include <numeric>

namespace sparseagg::service {

v1::RoundSpec SumSpec(uint64_t num_rows) {
  v1::RoundSpec spec;
  v1::TensorSpec* tensor = spec.add_tensors();
  tensor->set_name("v");
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  tensor->set_num_rows(num_rows);
  return spec;
}

v1::TensorSlice Slice(const std::vector<uint32_t>& keys, const std::vector<float>& values) {
  v1::TensorSlice slice;
  slice.set_tensor("v");
  slice.set_key_encoding(v1::KEY_ENCODING_U32);
  slice.set_keys(Packed(keys));
  slice.set_values(Packed(values));
  return slice;
}

v1::UpdateChunk MakeChunk(const std::string& round, const std::string& client, const std::vector<uint32_t>& keys,
                          const std::vector<float>& values, uint64_t sequence, bool last) {
  v1::UpdateChunk chunk;
  chunk.set_round(round);
  chunk.set_client_id(client);
  chunk.set_submission_id(client + "-1");
  chunk.set_sequence(sequence);
  chunk.set_last(last);
  *chunk.add_slices() = Slice(keys, values);
  return chunk;
}

std::map<uint64_t, float> ToMap(const std::vector<v1::ResultPage>& pages) {
  std::map<uint64_t, float> map;
  for (const v1::ResultPage& page : pages) {
    const v1::TensorSlice& slice = page.slice();
    const std::vector<float> values = Unpacked<float>(slice.values());
    std::vector<uint64_t> keys = Unpacked<uint64_t>(slice.keys());
    if (slice.key_encoding() == v1::KEY_ENCODING_U32) {
      const std::vector<uint32_t> narrow = Unpacked<uint32_t>(slice.keys());
      keys.assign(narrow.begin(), narrow.end());
    }
    if (slice.key_encoding() == v1::KEY_ENCODING_IMPLICIT) {
      keys.resize(values.size());
      std::iota(keys.begin(), keys.end(), slice.first_key());
    }
    for (size_t i = 0; i < values.size(); ++i) map[keys[i]] = values[i];
  }
  return map;
}

}  // namespace sparseagg::service
