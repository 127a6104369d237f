// A client's update in plain form, the common input of engines and reference.
#ifndef SPARSEAGG_TESTS_SUPPORT_SUBMISSION_H_
#define SPARSEAGG_TESTS_SUPPORT_SUBMISSION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace sparseagg::testing {

// One tensor of one submission.
struct RawTensor {
  std::vector<uint64_t> keys;  // in order of occurrence
  std::string values;          // rows in the same order: little-endian, packed, row-major
  bool has_values = true;
};

struct RawSubmission {
  std::string client_id;
  double weight = 1.0;
  std::vector<RawTensor> tensors;  // one for each tensor of the spec
};

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_SUPPORT_SUBMISSION_H_
