// Makers and readers of API messages for tests.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_WIRE_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_WIRE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

// Returns: the bytes of the numbers, one after the other.
template <typename T>
std::string Packed(const std::vector<T>& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

// The inverse of Packed.
template <typename T>
std::vector<T> Unpacked(absl::string_view bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::copy_n(bytes.data(), numbers.size() * sizeof(T), reinterpret_cast<char*>(numbers.data()));
  return numbers;
}

// Returns: the spec of a round with one float32 tensor "v".
v1::RoundSpec SumSpec(uint64_t num_rows = 100);

// Returns: a slice of tensor "v" with U32 keys and float32 values.
v1::TensorSlice Slice(const std::vector<uint32_t>& keys, const std::vector<float>& values);

// Returns: a chunk with one Slice, of the submission "CLIENT-1". `round`: "rounds/ID".
v1::UpdateChunk MakeChunk(const std::string& round, const std::string& client, const std::vector<uint32_t>& keys,
                          const std::vector<float>& values, uint64_t sequence = 0, bool last = true);

// Returns: the keys and values of float32 pages of row_width 1.
std::map<uint64_t, float> ToMap(const std::vector<v1::ResultPage>& pages);
inline std::map<uint64_t, float> ToMap(const v1::ResultPage& page) { return ToMap(std::vector{page}); }

// "v": float32 rows of two values, "w": float64 with keys of any size, "u": a union of keys.
inline v1::RoundSpec ThreeTensors(uint64_t num_rows) {
  v1::RoundSpec spec;
  v1::TensorSpec* rows = spec.add_tensors();
  rows->set_name("v");
  rows->set_dtype(v1::DTYPE_FLOAT32);
  rows->set_num_rows(num_rows);
  rows->set_row_width(2);
  v1::TensorSpec* wide = spec.add_tensors();
  wide->set_name("w");
  wide->set_dtype(v1::DTYPE_FLOAT64);
  v1::TensorSpec* keys = spec.add_tensors();
  keys->set_name("u");
  keys->set_dtype(v1::DTYPE_FLOAT32);
  keys->set_num_rows(num_rows);
  keys->mutable_aggregation()->set_op(v1::OP_UNION);
  return spec;
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_WIRE_H_
