#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "service/base/refusals.h"
#include "service/gateway/http_message.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {
namespace {

constexpr size_t kFrameHead = 5;  // flags, and the size in big-endian
constexpr uint8_t kCompressed = 0x01;
constexpr char kTrailers = static_cast<char>(0x80);

std::string FrameHead(char flags, size_t size) {
  std::string head(1, flags);
  for (int shift = 24; shift >= 0; shift -= 8) head += static_cast<char>(size >> shift & 0xFF);
  return head;
}

// Returns: the message of a status as the header grpc-message wants it, which is percent-encoded.
std::string PercentEncode(absl::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char byte : text) {
    if (byte >= ' ' && byte <= '~' && byte != '%') {
      encoded += byte;
    } else {
      encoded += '%';
      encoded += kDigits[static_cast<uint8_t>(byte) >> 4];
      encoded += kDigits[static_cast<uint8_t>(byte) & 0xF];
    }
  }
  return encoded;
}

}  // namespace

bool IsGrpcWeb(absl::string_view media_type) {
  return media_type == kGrpcWebType || media_type == "application/grpc-web";
}

absl::StatusOr<absl::Duration> ParseGrpcTimeout(absl::string_view text) {
  constexpr std::pair<char, absl::Duration> kUnits[] = {{'H', absl::Hours(1)},        {'M', absl::Minutes(1)},
                                                        {'S', absl::Seconds(1)},      {'m', absl::Milliseconds(1)},
                                                        {'u', absl::Microseconds(1)}, {'n', absl::Nanoseconds(1)}};
  const absl::string_view digits = text.substr(0, text.find_first_not_of("0123456789"));
  int64_t number = 0;
  if (digits.size() <= 8 && digits.size() + 1 == text.size() && absl::SimpleAtoi(digits, &number)) {
    for (const auto& [letter, unit] : kUnits) {
      if (text.back() == letter) return number * unit;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("the header grpc-timeout is ", JsonQuote(text.substr(0, 32)),
                                                 ", not a time such as 10S or 500m: at most 8 digits, and H, M, S, m, "
                                                 "u or n"));
}

absl::StatusOr<absl::Cord> UnframeGrpcWeb(const absl::Cord& body) {
  if (body.size() < kFrameHead) return absl::InvalidArgumentError("the body is shorter than a frame of gRPC-Web");
  uint8_t head[kFrameHead];
  std::copy_n(body.char_begin(), kFrameHead, head);
  if (head[0] == kCompressed) return absl::UnimplementedError("compressed messages are not accepted");
  const uint64_t size = uint64_t{head[1]} << 24 | uint64_t{head[2]} << 16 | uint64_t{head[3]} << 8 | head[4];
  if (head[0] != 0 || size != body.size() - kFrameHead) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body of ", body.size(), " bytes is not one frame of gRPC-Web; its head says ", size));
  }
  return body.Subcord(kFrameHead, size);
}

HttpResponse MakeGrpcWebResponse(const absl::Status& status, std::string message) {
  std::string trailers = absl::StrCat("grpc-status: ", status.raw_code(), "\r\n");
  if (!status.ok()) absl::StrAppend(&trailers, "grpc-message: ", PercentEncode(ShortMessage(status)), "\r\n");
  const std::string pushback = RetryPushbackMs(status);
  if (!pushback.empty()) absl::StrAppend(&trailers, kPushbackMetadata, ": ", pushback, "\r\n");
  if (const std::string details = StatusDetails(status); !details.empty()) {
    absl::StrAppend(&trailers, "grpc-status-details-bin: ", absl::Base64Escape(details), "\r\n");
  }
  HttpResponse response;
  response.headers.emplace_back("Content-Type", std::string(kGrpcWebType));
  if (status.ok()) {
    response.body.push_back(FrameHead(0, message.size()));
    response.body.push_back(std::move(message));
  }
  response.body.push_back(FrameHead(kTrailers, trailers.size()) + trailers);
  return response;
}

}  // namespace sparseagg::service
