#include "service/gateway/http_message.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "host/base/utf8.h"
#include "service/base/refusals.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name) const {
  const auto found =
      std::find_if(headers.begin(), headers.end(), [&](const auto& field) { return field.first == name; });
  return found == headers.end() ? absl::string_view() : absl::string_view(found->second);
}

std::string HttpRequest::MediaType(absl::string_view name) const {
  const absl::string_view value = Header(name);
  return absl::AsciiStrToLower(absl::StripAsciiWhitespace(value.substr(0, value.find(';'))));
}

HttpResponse MakeResponse(int status, absl::string_view content_type, std::string body) {
  HttpResponse response;
  response.status = status;
  response.headers.emplace_back("Content-Type", std::string(content_type));
  response.body.push_back(std::move(body));
  return response;
}

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

absl::string_view KnownMethod(absl::string_view method) {
  for (const absl::string_view known : {"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"}) {
    if (method == known) return known;
  }
  return "other";
}

std::string SerializeHead(const HttpResponse& response) {
  const auto reason = boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(response.status));
  std::string head =
      absl::StrCat("HTTP/1.1 ", response.status, " ", absl::string_view(reason.data(), reason.size()), "\r\n");
  for (const auto& [name, value] : response.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  return head + "\r\n";
}

HttpResponse MakeProblem(const absl::Status& error, int status) {
  if (status == 0) status = HttpStatusOf(error.code());
  const std::string code = absl::StatusCodeToString(error.code());
  std::string body = absl::StrCat("{\"type\":\"about:blank\",\"title\":\"", code, "\",\"status\":", status,
                                  ",\"code\":\"", code, "\",\"detail\":", JsonQuote(ShortMessage(error)));
  const ErrorInfo info = InfoOf(error);
  if (!info.reason.empty()) {
    const auto member = [](std::string* out, const auto& pair) {
      absl::StrAppend(out, JsonQuote(pair.first), ":", JsonQuote(pair.second));
    };
    absl::StrAppend(&body, ",\"reason\":", JsonQuote(info.reason), ",\"metadata\":{",
                    absl::StrJoin(info.metadata, ",", member), "}");
  }
  const std::string delay_ms = RetryDelayMs(error);
  if (!delay_ms.empty()) absl::StrAppend(&body, ",\"retryDelayMs\":", delay_ms);
  HttpResponse response = MakeResponse(status, "application/problem+json", body + "}\n");
  if (!delay_ms.empty()) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

bool PercentDecode(absl::string_view text, bool is_query, std::string* decoded) {
  decoded->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && is_query) {
      *decoded += ' ';
    } else if (text[i] != '%') {
      *decoded += text[i];
    } else {
      if (i + 2 >= text.size() || !absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) ||
          !absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2]))) {
        return false;
      }
      *decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    }
  }
  return true;
}

std::string JsonQuote(absl::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t size = FirstUtf8Character(text).num_bytes;
    const absl::string_view character = size == 0 ? kReplacement : text.substr(0, size);
    text.remove_prefix(std::max<size_t>(size, 1));
    const char byte = character[0];
    if (byte == '"' || byte == '\\') {
      quoted += '\\';
      quoted += byte;
    } else if (static_cast<unsigned char>(byte) < 0x20 || byte == 0x7F) {
      char escape[7];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(byte));
      quoted += escape;
    } else {
      quoted.append(character.data(), character.size());
    }
  }
  return quoted + "\"";
}

}  // namespace sparseagg::service
