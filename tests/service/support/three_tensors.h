// A round's spec with tensors of three kinds.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_THREE_TENSORS_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_THREE_TENSORS_H_

#include <cstdint>

#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

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

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_THREE_TENSORS_H_
