#include "service/gateway/request_head.h"

#include <algorithm>
#include <boost/beast/http/error.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {

namespace http = boost::beast::http;

namespace {

// Headers that decide what a request means. Of a second one, a proxy or a browser may have taken another.
constexpr absl::string_view kSingleHeaders[] = {"access-control-request-method",
                                                "content-encoding",
                                                "content-type",
                                                "expect",
                                                "grpc-timeout",
                                                "host",
                                                "origin",
                                                kTenantHeader};

// Errors: INVALID_ARGUMENT.
absl::Status CheckHeaders(const HttpRequest& request, bool needs_host) {
  for (const absl::string_view name : kSingleHeaders) {
    const auto count = std::count_if(request.headers.begin(), request.headers.end(),
                                     [name](const auto& field) { return field.first == name; });
    if (count > 1) return absl::InvalidArgumentError(absl::StrCat("the header '", name, "' comes ", count, " times"));
    if (count == 0 && name == "host" && needs_host) {
      return absl::InvalidArgumentError("the header 'host' is missing");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<HttpResponse> TakeHead(const HeaderParser& parser, HttpRequest* request) {
  const auto& header = parser.get();
  request->method = std::string(header.method_string());
  const absl::string_view target(header.target().data(), header.target().size());
  const size_t mark = std::min(target.find('?'), target.size());
  request->path = std::string(target.substr(0, mark));
  request->query = std::string(target.substr(std::min(mark + 1, target.size())));
  for (const auto& field : header) {
    const auto name = field.name_string();
    request->headers.emplace_back(absl::AsciiStrToLower(absl::string_view(name.data(), name.size())),
                                  std::string(field.value()));
  }
  request->body_bytes = parser.content_length().value_or(0);
  if (const absl::Status status = CheckHeaders(*request, header.version() >= 11); !status.ok()) {
    return MakeProblem(status);
  }
  if (target.size() > kMaxTargetBytes) {
    return MakeProblem(
        absl::ResourceExhaustedError(absl::StrCat("the target has more than ", kMaxTargetBytes, " bytes")), 414);
  }
  // The memory for a body is reserved before it is read.
  if (!request->Header("transfer-encoding").empty()) {
    return MakeProblem(absl::InvalidArgumentError("send Content-Length in place of Transfer-Encoding"), 411);
  }
  const absl::string_view expect = request->Header("expect");
  if (!expect.empty() && !absl::EqualsIgnoreCase(expect, "100-continue")) {
    return MakeProblem(absl::InvalidArgumentError("Expect takes only 100-continue"), 417);
  }
  return std::nullopt;
}

std::optional<HttpResponse> ExplainUnreadHead(const HttpError& error, bool has_expired) {
  if (has_expired) {
    return MakeProblem(absl::DeadlineExceededError(
                           absl::StrCat("the header was not complete within ", absl::FormatDuration(kHeaderTimeout))),
                       408);
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return MakeProblem(
        absl::ResourceExhaustedError(absl::StrCat("the header has more than ", kMaxHeaderBytes, " bytes")), 431);
  }
  const bool is_malformed = error != http::error::end_of_stream && error != http::error::partial_message &&
                            error.category() == http::make_error_code(http::error::bad_method).category();
  if (!is_malformed) return std::nullopt;
  return MakeProblem(absl::InvalidArgumentError(absl::StrCat("malformed HTTP: ", error.message())));
}

}  // namespace sparseagg::service
