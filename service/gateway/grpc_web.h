// The framing of gRPC-Web for unary calls.
#ifndef SPARSEAGG_SERVICE_GATEWAY_GRPC_WEB_H_
#define SPARSEAGG_SERVICE_GATEWAY_GRPC_WEB_H_

#include <grpcpp/support/slice.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/gateway/http_message.h"

namespace sparseagg::service {

inline constexpr absl::string_view kGrpcWebType = "application/grpc-web+proto";

// Returns: whether a media type is that of gRPC-Web in binary form.
bool IsGrpcWeb(absl::string_view media_type);

// Returns: the time of the header grpc-timeout: at most eight digits and one of the units H, M, S, m, u, n.
// Errors: INVALID_ARGUMENT.
absl::StatusOr<absl::Duration> ParseGrpcTimeout(absl::string_view text);

// Returns: the message in the body of a unary request, which shares the memory of the body.
// Errors: UNIMPLEMENTED: a compressed message. INVALID_ARGUMENT: not one frame of the size that it declares.
absl::StatusOr<grpc::Slice> UnframeGrpcWeb(const grpc::Slice& body);

// Returns: the response, which is 200 also for an error: the frame of the message, if there is no error, and the
// trailers.
HttpResponse MakeGrpcWebResponse(const absl::Status& status, std::string message);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_GRPC_WEB_H_
