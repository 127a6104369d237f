// Requests and responses of HTTP, without the connection.
#ifndef SPARSEAGG_SERVICE_GATEWAY_HTTP_MESSAGE_H_
#define SPARSEAGG_SERVICE_GATEWAY_HTTP_MESSAGE_H_

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

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

// Returns: the error as RFC 9457 problem details, with the code, the text and the ErrorInfo that gRPC sends, and
// Retry-After where the shortage is temporary. `status` 0: the one that google.rpc.Code assigns to the code.
HttpResponse MakeProblem(const absl::Status& error, int status = 0);

// Returns: the status code of HTTP that google.rpc.Code assigns to a code.
int HttpStatusOf(absl::StatusCode code);

// Decodes %XX, and "+" if `is_query`. Returns: false if the escapes are malformed.
bool PercentDecode(absl::string_view text, bool is_query, std::string* decoded);

// Returns: the text as a string of JSON, with quotes. Bytes that are not UTF-8 become U+FFFD.
std::string JsonQuote(absl::string_view text);

// Returns: whether a field of a chunk or of its slice is in the body; all others are in the query.
bool IsInBulkBody(const google::protobuf::FieldDescriptor* field);

// Makes an UpdateChunk with one slice. The body is the slice's keys, `key_bytes` of them, and then its values. All else
// comes from the query: the fields of UpdateChunk and of TensorSlice, and key_bytes.
// Returns: the serialized chunk, which shares the memory of the body.
// Errors: INVALID_ARGUMENT: an unknown parameter, a value that does not fit, or key_bytes above the size of the body.
absl::StatusOr<absl::Cord> BulkToChunk(const HttpFields& parameters, const absl::Cord& body);

// Makes the body of a result page: the bytes of the header as uint32, the header in JSON, filled with spaces so that
// what follows begins at a multiple of 8 bytes, then keys, values, counts and weights, and moments if there are any.
// The header is
//   {"sections":[bytes of keys, of values, of counts, of weights],"page":ResultPage without these bytes}
// with a fifth number for moments. A RowsPage has keys and values only. `type`: of `page`, ResultPage or RowsPage.
// Errors: INTERNAL: not such a page.
absl::StatusOr<std::vector<std::string>> PageToBulk(const google::protobuf::Descriptor* type, const std::string& page);

// The framing of gRPC-Web for unary calls.
inline constexpr absl::string_view kGrpcWebType = "application/grpc-web+proto";

// Returns: whether a media type is that of gRPC-Web in binary form.
bool IsGrpcWeb(absl::string_view media_type);

// Returns: the time of the header grpc-timeout: at most eight digits and one of the units H, M, S, m, u, n.
// Errors: INVALID_ARGUMENT.
absl::StatusOr<absl::Duration> ParseGrpcTimeout(absl::string_view text);

// Returns: the message in the body of a unary request, which shares the memory of the body.
// Errors: UNIMPLEMENTED: a compressed message. INVALID_ARGUMENT: not one frame of the size that it declares.
absl::StatusOr<absl::Cord> UnframeGrpcWeb(const absl::Cord& body);

// Returns: the response, which is 200 also for an error: the frame of the message, if there is no error, and the
// trailers.
HttpResponse MakeGrpcWebResponse(const absl::Status& status, std::string message);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_HTTP_MESSAGE_H_
