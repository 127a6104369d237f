#include "service/grpc/call_errors.h"

#include <string>

#include "service/base/home_elsewhere.h"
#include "service/base/retry_later.h"
#include "service/handlers/call_errors.h"

namespace sparseagg::service {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), ShortMessage(status));
}

grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext& context) {
  if (const std::string delay = RetryDelayMs(status); !delay.empty()) {
    context.AddTrailingMetadata("grpc-retry-pushback-ms", delay);
  }
  if (const std::string home = HomeAddress(status); !home.empty()) {
    context.AddTrailingMetadata(kHomeMetadata, home);
    if (const std::string url = HomeUrl(status); !url.empty()) context.AddTrailingMetadata(kHomeUrlMetadata, url);
  }
  return ToGrpc(status);
}

}  // namespace sparseagg::service
