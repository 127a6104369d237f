// The fixture of the contract suite, which runs on every engine and on the reference itself.
//
// Hand-computed expectations thereby judge the reference too. Engines are also compared with it bit for bit.
#ifndef SPARSEAGG_TESTS_HOST_ENGINE_CONTRACT_H_
#define SPARSEAGG_TESTS_HOST_ENGINE_CONTRACT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "host/result.h"
#include "host/spec/spec.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/generators.h"
#include "tests/support/reference.h"
#include "tests/support/results.h"
#include "tests/support/submission.h"
#include "tests/support/values.h"

namespace sparseagg::testing {

// A submission of a one-tensor round; `values` are packed in the tensor's dtype, row by row.
inline RawSubmission Client(const TensorSpec& spec, std::string id, std::vector<uint64_t> keys,
                            const std::vector<double>& values, double weight = 1.0) {
  return {std::move(id), weight, {{std::move(keys), Pack(spec.dtype, values)}}};
}

// The same for integers that a double cannot hold.
inline RawSubmission IntegerClient(const TensorSpec& spec, std::string id, std::vector<uint64_t> keys,
                                   const std::vector<int64_t>& values, double weight = 1.0) {
  return {std::move(id), weight, {{std::move(keys), PackIntegers(spec.dtype, values)}}};
}

// Keys without values, for UNION.
inline RawSubmission KeysOnly(std::string id, std::vector<uint64_t> keys, double weight = 1.0) {
  return {std::move(id), weight, {{std::move(keys), "", false}}};
}

inline TensorSpec MakeSpec(DType dtype, Op op, uint64_t num_rows = 0, uint32_t row_width = 1) {
  TensorSpec spec;
  spec.name = "tensor-name";
  spec.dtype = dtype;
  spec.num_rows = num_rows;
  spec.row_width = row_width;
  spec.modular = IsModular(dtype);
  spec.aggregation.op = op;
  return spec;
}

// An engine, or the reference when `create` is empty.
inline std::vector<EngineCase> ContractSubjects() {
  std::vector<EngineCase> subjects = AvailableEngines();
  subjects.push_back({"reference", nullptr});
  return subjects;
}

inline std::string SubjectName(const ::testing::TestParamInfo<EngineCase>& info) { return info.param.name; }

class ContractTest : public ::testing::TestWithParam<EngineCase> {
 protected:
  bool is_reference() const { return GetParam().create == nullptr; }

  Driven Run(const std::vector<TensorSpec>& specs, const std::vector<RawSubmission>& submissions,
             const DriveOptions& options = {}) {
    for (const TensorSpec& spec : specs) EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
    const Verdict verdict = Judge(specs, submissions);
    if (is_reference()) return AsDriven(specs, submissions, verdict);
    Driven driven = Drive(*GetParam().create(), specs, submissions, options);
    EXPECT_EQ(Disagreement(specs, driven, verdict), "");
    return driven;
  }

  // The result of a one-tensor round in which every submission counts. Empty after a failed expectation.
  Result Merge(const TensorSpec& spec, const std::vector<RawSubmission>& submissions) {
    Driven driven = Run({spec}, submissions);
    for (const absl::Status& status : driven.submissions) EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(driven.results.ok()) << driven.results.status();
    return driven.results.ok() ? std::move(driven.results->front()) : Result();
  }

  // What Finish answers for a one-tensor round in which every submission counts.
  absl::Status MergeStatus(const TensorSpec& spec, const std::vector<RawSubmission>& submissions) {
    const Driven driven = Run({spec}, submissions);
    for (const absl::Status& status : driven.submissions) EXPECT_TRUE(status.ok()) << status;
    return driven.results.status();
  }

  // What the submission itself is answered, alone in a round; a refusal must leave that round empty.
  absl::Status SubmitStatus(const TensorSpec& spec, const RawSubmission& submission) {
    const Driven driven = Run({spec}, {submission});
    if (!driven.submissions[0].ok() && driven.results.ok() && spec.aggregation.result_layout == ResultLayout::kSparse) {
      EXPECT_EQ(driven.results->front().num_keys, 0u) << "a refused submission left something behind";
    }
    return driven.submissions[0];
  }

 private:
  static Driven AsDriven(const std::vector<TensorSpec>& specs, const std::vector<RawSubmission>& submissions,
                         const Verdict& verdict) {
    Driven driven;
    for (const std::vector<absl::Status>& flaws : verdict.flaws) {
      driven.submissions.push_back(flaws.empty() ? absl::OkStatus() : flaws.front());
    }
    driven.results = Reference(specs, submissions);
    return driven;
  }
};

#define SPARSEAGG_CONTRACT_SUITE(suite) \
  class suite : public ContractTest {}; \
  INSTANTIATE_TEST_SUITE_P(Engines, suite, ::testing::ValuesIn(ContractSubjects()), SubjectName)
// For suites without hand-computed expectations, which would only compare the reference with itself.
#define SPARSEAGG_ENGINE_SUITE(suite)   \
  class suite : public ContractTest {}; \
  INSTANTIATE_TEST_SUITE_P(Engines, suite, ::testing::ValuesIn(AvailableEngines()), SubjectName)

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_HOST_ENGINE_CONTRACT_H_
