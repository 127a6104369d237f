// Requests and responses of HTTP, without the connection.
#ifndef SPARSEAGG_SERVICE_GATEWAY_HTTP_MESSAGE_H_
#define SPARSEAGG_SERVICE_GATEWAY_HTTP_MESSAGE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

// A request without its body. Names of headers are in lower case.
struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // as sent, percent-encoded
  std::string query;   // as sent, without "?"
  HttpFields headers;
  uint64_t body_bytes = 0;
  std::string peer;                            // "ipv4:127.0.0.1:1234"
  std::vector<std::string> certificate_names;  // URIs of the verified client certificate

  // Returns: the first value; empty if there is none.
  absl::string_view Header(absl::string_view name) const;
  // Returns: the media type of a header such as Content-Type, in lower case, without parameters.
  std::string MediaType(absl::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  HttpFields headers;
  std::vector<std::string> body;  // in pieces, sent one after the other
};

// Returns: the method if it is one of those that browsers and clients send, else "other".
absl::string_view KnownMethod(absl::string_view method);

// Returns: a response of one piece.
HttpResponse MakeResponse(int status, absl::string_view content_type, std::string body);

// Returns: the bytes before the body.
std::string SerializeHead(const HttpResponse& response);

// Returns: the error as RFC 9457 problem details, with the code and the text that gRPC sends, and Retry-After where the
// lack passes by itself. `status` 0: the one that google.rpc.Code assigns to the code.
HttpResponse MakeProblem(const absl::Status& error, int status = 0);

// Returns: the status code of HTTP that google.rpc.Code assigns to a code.
int HttpStatusOf(absl::StatusCode code);

// Decodes %XX, and "+" if `is_query`. Returns: false if the escapes are malformed.
bool PercentDecode(absl::string_view text, bool is_query, std::string* decoded);

// Returns: the text as a string of JSON, with quotes. Bytes that are not UTF-8 become U+FFFD.
std::string JsonQuote(absl::string_view text);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_HTTP_MESSAGE_H_
