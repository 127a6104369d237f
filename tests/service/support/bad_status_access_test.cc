// A test that reads an error as if it were a value fails, and does not end the program.
#include <gtest/gtest.h>

#include <string>

#include "absl/status/statusor.h"

namespace sparseagg::service {
namespace {

TEST(BadStatusAccessTest, Value_OfAnError_Throws) {
  const absl::StatusOr<std::string> failed = absl::InternalError("why");
  EXPECT_THROW((void)failed->size(), absl::BadStatusOrAccess);
  EXPECT_THROW((void)*failed, absl::BadStatusOrAccess);
  EXPECT_THROW((void)failed.value(), absl::BadStatusOrAccess);
}

}  // namespace
}  // namespace sparseagg::service
