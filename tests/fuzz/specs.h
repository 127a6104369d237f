// A round's spec and limits for the fuzz targets.
#ifndef SPARSEAGG_TESTS_FUZZ_SPECS_H_
#define SPARSEAGG_TESTS_FUZZ_SPECS_H_

#include "service/base/limits.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

// Limits under which an input takes little time and memory, whatever it asks for.
inline Limits SmallLimits() {
  Limits limits;
  limits.memory_limit_bytes = uint64_t{256} << 20;
  limits.max_memory_per_tenant = uint64_t{4} << 20;
  limits.max_tuples_per_submission = 100'000;
  limits.max_tensors = 16;
  limits.max_width = 64;
  return limits;
}

// "v": float32 rows of two values, "w": float64, "u": a union of keys.
inline v1::RoundSpec ThreeTensors() {
  v1::RoundSpec spec;
  v1::TensorSpec* rows = spec.add_tensors();
  rows->set_name("v");
  rows->set_dtype(v1::DTYPE_FLOAT32);
  rows->set_dimension(3000);
  rows->set_width(2);
  v1::TensorSpec* wide = spec.add_tensors();
  wide->set_name("w");
  wide->set_dtype(v1::DTYPE_FLOAT64);
  v1::TensorSpec* keys = spec.add_tensors();
  keys->set_name("u");
  keys->set_dtype(v1::DTYPE_FLOAT32);
  keys->set_dimension(3000);
  keys->mutable_aggregation()->set_op(v1::OP_UNION);
  return spec;
}

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_FUZZ_SPECS_H_
