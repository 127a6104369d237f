// What HTTP clients send: JSON, query strings, bulk bodies and frames of gRPC-Web of any bytes.
#include <fuzzer/FuzzedDataProvider.h>

#include <string>

#include "service/gateway/http_message.h"
#include "service/gateway/json.h"
#include "service/gateway/router.h"
#include "sparseagg/v1/tasks.pb.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg::service;
  sparseagg::v1::Task::descriptor();  // links the file of these messages, which are found by their names
  FuzzedDataProvider input(data, size);
  const auto* type =
      DescriptorOf(static_cast<Method>(input.ConsumeIntegralInRange<size_t>(0, kNumMethods - 1)))->input_type();
  const int kind = input.ConsumeIntegralInRange(0, 5);
  const std::string text = input.ConsumeRemainingBytesAsString();
  absl::Status status;
  switch (kind) {
    case 0: {
      const auto message = JsonToMessage(type, text, /*takes_numbers=*/true);
      status = message.status();
      if (!message.ok()) break;
      // What is taken can be shown, and means the same again.
      const auto json = MessageToJson(type, *message);
      Require(json.ok(), "a message can be shown", json.status().ToString());
      const auto again = JsonToMessage(type, *json);
      Require(again.ok(), "what is shown can be taken", again.status().ToString());
      break;
    }
    case 1: {
      const auto parameters = ParseQuery(text);
      status = parameters.ok() ? QueryToMessage(type, *parameters).status() : parameters.status();
      break;
    }
    case 2: {
      const size_t end = std::min(text.find('\n'), text.size());
      const auto parameters = ParseQuery(absl::string_view(text).substr(0, end));
      const std::string body = text.substr(end);
      status = parameters.ok() ? BulkToChunk(*parameters, absl::Cord(body)).status() : parameters.status();
      break;
    }
    case 3:
      status = UnframeGrpcWeb(absl::Cord(text)).status();
      if (absl::IsUnimplemented(status)) status = absl::OkStatus();  // compressed
      break;
    case 4: {
      HttpRequest request;
      request.method = "GET";
      request.path = "/v1/" + text;
      status = FindRoute(request).status();
      break;
    }
    default:
      JsonQuote(text);
      FindGrpcMethod(text);
  }
  Require(status.ok() || IsCallersFault(status), "the sender's fault", status.ToString());
  return 0;
}
