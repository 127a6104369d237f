#include "service/gateway/http_call.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "service/base/refusals.h"
#include "service/codec/parse.h"
#include "service/gateway/http_message.h"
#include "service/gateway/json.h"
#include "service/gateway/router.h"

namespace sparseagg::service {
namespace {

// A page is parsed and taken apart.
constexpr uint64_t kBulkFactor = 3;
// JSON, the same with full names of enum values, and the message made of it. Where names grow, the message is a small
// part: {"op":"sum"} becomes {"op":"OP_SUM"} and four bytes.
constexpr uint64_t kParsedJsonFactor = 3;
// The list "1,1,…" becomes four times as many bytes of float64, and these become base64 on the way.
constexpr uint64_t kParsedNumbersFactor = 12;

}  // namespace

HttpCall::HttpCall(ServerContext* server, Api* api, HttpRequest request, HttpCallPlan plan,
                   std::shared_ptr<const void> live, Respond respond, std::function<void()> reclaim)
    : UnaryCall(server),
      server_(*server),
      api_(*api),
      http_(std::move(request)),
      plan_(std::move(plan)),
      descriptor_(*DescriptorOf(plan_.method)),
      live_(std::move(live)),
      respond_(std::move(respond)),
      reclaim_(std::move(reclaim)) {}

absl::Status HttpCall::AdmitToMethod() {
  CallCredentials credentials;
  std::vector<absl::string_view> tenants;
  for (const auto& [name, value] : http_.headers) {
    if (name == "authorization") credentials.authorization.push_back(value);
    if (name == kTenantHeader) tenants.push_back(value);
  }
  if (credentials.authorization.empty()) {
    credentials.certificate_names.assign(http_.certificate_names.begin(), http_.certificate_names.end());
  }
  return Admit(&server_, plan_.method, credentials, tenants);
}

uint64_t HttpCall::BodyMemory() const {
  if (plan_.request_format != BodyFormat::kJson) return http_.body_bytes;
  return SaturatingMultiply(plan_.has_numbers ? kParsedNumbersFactor : kParsedJsonFactor, http_.body_bytes);
}

uint64_t HttpCall::ResponseMemory(uint64_t bytes) const {
  switch (plan_.response_format) {
    case BodyFormat::kJson:
      return SaturatingMultiply(kJsonFactor, bytes);
    case BodyFormat::kBulk:
      return SaturatingMultiply(kBulkFactor, bytes);
    default:
      return PageInFlightBytes(bytes);
  }
}

void HttpCall::Run(absl::Cord body, absl::Duration read_time, std::function<void()> on_called) {
  const absl::Duration received_at = server_.clock.Monotonic();
  if (!AggregationMethods::IsLarge(plan_.method) && body.size() <= kMaxNamesBytes) {
    CallMethod(body, read_time, received_at);
    return on_called();
  }
  auto self = std::static_pointer_cast<HttpCall>(shared_from_this());
  server_.pool.Post([self = std::move(self), body = std::move(body), read_time, received_at,
                     on_called = std::move(on_called)]() mutable {
    // Taken from the task, so that the round's copy of a chunk is the only one.
    const absl::Cord taken = std::exchange(body, {});
    self->CallMethod(taken, read_time, received_at);
    on_called();
  });
}

void HttpCall::CallMethod(const absl::Cord& body, absl::Duration read_time, absl::Duration received_at) {
  const absl::Status made = ToStatus([&] { return MakeRequest(body); });
  if (!made.ok()) return Finish(made);
  if (!AggregationMethods::IsLarge(plan_.method)) {
    return api_.handlers[static_cast<size_t>(plan_.method)](shared_from_this());
  }
  auto self = std::static_pointer_cast<HttpCall>(shared_from_this());
  AggregationMethods::LargeCall call{*this,
                                     {},
                                     read_time,
                                     received_at,
                                     &response_,
                                     [this] { return is_cancelled(); },
                                     [self](const absl::Status& status) {
                                       // The call lasts until the client has read the response, and must not keep the
                                       // memory until then.
                                       self->body_reservation_.Release();
                                       self->Finish(status);
                                     }};
  call.message.swap(request_);
  api_.aggregation.RunLarge(plan_.method, std::move(call));
}

absl::Status HttpCall::MakeRequest(const absl::Cord& body) {
  const google::protobuf::Descriptor* const type = descriptor_.input_type();
  if (plan_.request_format == BodyFormat::kGrpcWeb) {
    ASSIGN_OR_RETURN(request_, UnframeGrpcWeb(body));
    return absl::OkStatus();
  }
  absl::Cord message;
  if (plan_.request_format == BodyFormat::kBulk) {
    ASSIGN_OR_RETURN(message, BulkToChunk(plan_.parameters, body));
  } else {
    if (plan_.request_format == BodyFormat::kProtobuf) {
      message = body;
    } else if (!body.empty()) {
      ASSIGN_OR_RETURN(std::string of_json, JsonToMessage(type, *body.TryFlat(), plan_.has_numbers));
      message = absl::Cord(std::move(of_json));
    }
    ASSIGN_OR_RETURN(std::string of_query, QueryToMessage(type, plan_.parameters));
    message.Append(std::move(of_query));
  }
  // Serialized messages may be joined: of a field that comes twice, the last one counts.
  if (!plan_.variable_field.empty()) {
    ASSIGN_OR_RETURN(std::string of_path, QueryToMessage(type, {{plan_.variable_field, plan_.variable}}));
    message.Append(std::move(of_path));
  }
  request_ = std::move(message);
  return absl::OkStatus();
}

absl::StatusOr<HttpResponse> HttpCall::MakeAnswer() {
  switch (plan_.response_format) {
    case BodyFormat::kProtobuf:
      return MakeResponse(200, "application/x-protobuf", std::move(response_));
    case BodyFormat::kBulk: {
      HttpResponse page;
      page.headers.emplace_back("Content-Type", "application/octet-stream");
      ASSIGN_OR_RETURN(page.body, PageToBulk(descriptor_.output_type(), response_));
      return page;
    }
    default: {
      const google::protobuf::Descriptor* const type = descriptor_.output_type();
      const bool has_lists = plan_.has_numbers && IsPage(plan_.method);
      ASSIGN_OR_RETURN(std::string json, has_lists ? PageToNumbers(type, response_) : MessageToJson(type, response_));
      return MakeResponse(200, "application/json", json + "\n");
    }
  }
}

HttpResponse HttpCall::MakeLateResponse() const {
  return MakeGrpcWebResponse(absl::DeadlineExceededError(absl::StrCat("the call took longer than its grpc-timeout ",
                                                                      absl::FormatDuration(plan_.timeout))),
                             "");
}

HttpResponse HttpCall::MakeRedirect(const absl::Status& status, const std::string& url) const {
  // 307 keeps the method and the body of the request.
  HttpResponse response = MakeProblem(status, 307);
  const absl::string_view mark = http_.query.empty() ? "" : "?";
  response.headers.emplace_back("Location", absl::StrCat(url, http_.path, mark, http_.query));
  return response;
}

void HttpCall::Send(const absl::Status& status) {
  if (is_late_ && absl::IsCancelled(status)) return respond_(MakeLateResponse());
  if (plan_.response_format == BodyFormat::kGrpcWeb) return respond_(MakeGrpcWebResponse(status, std::move(response_)));
  if (const std::string home = HomeUrl(status); !home.empty()) return respond_(MakeRedirect(status, home));
  if (!status.ok()) return respond_(MakeProblem(status));
  absl::StatusOr<HttpResponse> answer = ToStatus([this] { return MakeAnswer(); });
  respond_(answer.ok() ? *std::move(answer) : MakeProblem(answer.status()));
}

}  // namespace sparseagg::service
