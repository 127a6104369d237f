// A call of a method over HTTP.
#ifndef SPARSEAGG_SERVICE_GATEWAY_HTTP_CALL_H_
#define SPARSEAGG_SERVICE_GATEWAY_HTTP_CALL_H_

#include <google/protobuf/descriptor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/admission/in_flight_memory.h"
#include "service/auth/authorize.h"
#include "service/gateway/http_message.h"
#include "service/handlers/task_methods.h"
#include "service/handlers/unary_call.h"
#include "service/server_context.h"

namespace sparseagg::service {

// The forms of a request or a response body.
enum class BodyFormat {
  kJson,      // application/json: the JSON mapping of proto3
  kProtobuf,  // application/x-protobuf
  kBulk,      // application/octet-stream (http_message.h)
  kGrpcWeb,   // application/grpc-web+proto: 200 with the status in trailers
};

// What a request asks for, known from its headers.
struct HttpCallPlan {
  Method method = Method::kGetServerInfo;
  BodyFormat request_format = BodyFormat::kJson;
  BodyFormat response_format = BodyFormat::kJson;
  std::string variable_field;  // field that the path sets; empty: none
  std::string variable;
  HttpFields parameters;                              // of the query
  bool has_numbers = false;                           // columns in JSON are lists of numbers
  absl::Duration timeout = absl::InfiniteDuration();  // of gRPC-Web: from the headers to the response
};

// One call, from the headers to the response. It knows no socket.
//
// Owned by the connection until the response is written, and by the tasks of the method. Order of calls:
//
//   RETURN_IF_ERROR(call->Admit());
//   call->KeepBody(std::move(reservation));           // the body has arrived
//   call->Run(body, read_time);                       // calls the method; `respond` runs once, on any thread
//   call->Cancel();                                   // after Run: the peer has gone, or the timeout is over
class HttpCall final : public UnaryCall, public RemoteCaller {
 public:
  using Respond = std::function<void(HttpResponse)>;

  // `live` is released when the call is over. `respond` gets the response; `reclaim` ends the connection of a slow
  // peer, and may run after the call.
  HttpCall(ServerContext* server, Api* api, HttpRequest request, HttpCallPlan plan, std::shared_ptr<const void> live,
           Respond respond, std::function<void()> reclaim);

  const HttpRequest& http() const { return http_; }
  const HttpCallPlan& plan() const { return plan_; }

  // Finds out who calls, and whether the caller may call this method. Errors: as of Caller::Admit.
  absl::Status AdmitToMethod();

  // The error of a call that Cancel ends is DEADLINE_EXCEEDED from now on. Call it before that Cancel.
  void SetLate() { is_late_ = true; }
  // Returns: the response to a call that took longer than the timeout of its plan.
  HttpResponse MakeLateResponse() const;

  // Returns: the most memory of the body and of the request made of it.
  uint64_t BodyMemory() const;
  // Takes the reservation for BodyMemory.
  void KeepBody(InFlightReservation reservation) { body_reservation_ = std::move(reservation); }

  // Converts the body to the request and calls the method. Large bodies are converted on the worker pool; `on_called`
  // then runs there when the method has returned, else before the return.
  void Run(absl::Cord body, absl::Duration read_time, std::function<void()> on_called);

  const Caller& caller() const override { return *this; }
  const absl::Cord& request() const override { return request_; }
  std::string* response() override { return &response_; }
  std::string PeerName() const override { return http_.peer; }
  absl::string_view Traceparent() const override { return http_.Header("traceparent"); }

 private:
  void Send(const absl::Status& status) override;
  std::function<void()> ReclaimFunction() override { return reclaim_; }
  uint64_t ResponseMemory(uint64_t bytes) const override;

  void CallMethod(const absl::Cord& body, absl::Duration read_time, absl::Duration received_at);
  // Sets request_ from the body, the query and the path.
  absl::Status MakeRequest(const absl::Cord& body);
  absl::StatusOr<HttpResponse> MakeAnswer();
  // Returns: the answer to a client whose home is another server (HomeElsewhere), which has the same path at `url`.
  HttpResponse MakeRedirect(const absl::Status& status, const std::string& url) const;

  ServerContext& server_;
  Api& api_;
  const HttpRequest http_;
  const HttpCallPlan plan_;
  const google::protobuf::MethodDescriptor& descriptor_;
  const std::shared_ptr<const void> live_;
  const Respond respond_;
  const std::function<void()> reclaim_;
  absl::Cord request_;
  std::string response_;
  InFlightReservation body_reservation_;
  std::atomic<bool> is_late_ = false;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_HTTP_CALL_H_
