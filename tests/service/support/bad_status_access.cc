// Workaround: * and -> of an absl::StatusOr that holds an error end the program, though its value() throws. This
// definition comes before the library's, and throws, too: a test that reads a StatusOr which it expects to be ok fails,
// and the other tests run. Remove with: tests that check every StatusOr.
#include "absl/status/statusor.h"

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace internal_statusor {

void Helper::Crash(const absl::Status& status) { throw absl::BadStatusOrAccess(status); }

}  // namespace internal_statusor
ABSL_NAMESPACE_END
}  // namespace absl
