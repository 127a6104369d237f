#include "service/rounds/round_snapshot.h"

namespace sparseagg::service {

absl::string_view Name(RoundState state) {
  switch (state) {
    case RoundState::kOpen:
      return "OPEN";
    case RoundState::kFinalizing:
      return "FINALIZING";
    case RoundState::kDone:
      return "DONE";
    case RoundState::kFailed:
      return "FAILED";
    case RoundState::kCancelled:
      return "CANCELLED";
  }
  return "?";
}

}  // namespace sparseagg::service
