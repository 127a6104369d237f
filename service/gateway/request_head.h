// The head of a request: its first line and its headers.
#ifndef SPARSEAGG_SERVICE_GATEWAY_REQUEST_HEAD_H_
#define SPARSEAGG_SERVICE_GATEWAY_REQUEST_HEAD_H_

#include <cstddef>
#include <optional>

#include "absl/time/time.h"
#include "service/gateway/http_message.h"
#include "service/gateway/peer_stream.h"

namespace sparseagg::service {

// Limits of a head. A longer one gets 431, a late one 408, a longer target 414.
inline constexpr size_t kMaxHeaderBytes = 16 << 10;
inline constexpr size_t kMaxTargetBytes = 8 << 10;
inline constexpr absl::Duration kHeaderTimeout = absl::Seconds(10);

// Sets all of `request` that the head says. Returns: the response to a head that breaks a limit; nullopt for others.
std::optional<HttpResponse> TakeHead(const HeaderParser& parser, HttpRequest* request);

// Returns: the response to a head that was not read, for `error`; nullopt if the peer has gone.
std::optional<HttpResponse> ExplainUnreadHead(const HttpError& error, bool has_expired);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_REQUEST_HEAD_H_
