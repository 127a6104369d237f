// Says visibly that the contract suite did not run on a GPU.
#include <gtest/gtest.h>

#include "tests/support/engines.h"

namespace sparseagg::testing {
namespace {

TEST(CudaEngine, ContractSuite_WithoutADevice_IsSkipped) {
  const absl::Status status = CudaStatus();
  if (!status.ok()) GTEST_SKIP() << status;
}

}  // namespace
}  // namespace sparseagg::testing
