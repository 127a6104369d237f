#include "tools/loadgen/sink.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "service/base/limits.h"
#include "service/grpc/grpc_options.h"
#include "sparseagg/v1/aggregation.grpc.pb.h"

namespace sparseagg::bench {
namespace {

class SinkReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  explicit SinkReactor(grpc::ByteBuffer* response) : response_(*response) { StartRead(&chunk_); }

  void OnReadDone(bool ok) override {
    if (ok) {
      chunk_.Clear();
      return StartRead(&chunk_);
    }
    response_ = grpc::ByteBuffer(nullptr, 0);  // an empty message
    Finish(grpc::Status::OK);
  }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer& response_;
  grpc::ByteBuffer chunk_;
};

class SinkService final : public v1::Aggregation::WithRawCallbackMethod_SubmitUpdate<v1::Aggregation::Service> {
 public:
  grpc::ServerReadReactor<grpc::ByteBuffer>* SubmitUpdate(grpc::CallbackServerContext*,
                                                          grpc::ByteBuffer* response) override {
    return new SinkReactor(response);
  }
};

}  // namespace

int ServeSink() {
  SinkService service;
  grpc::ServerBuilder builder;
  service::ConfigureTransport(service::Limits{.max_message_bytes = 0}, builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return 1;
  std::printf("listening grpc=127.0.0.1:%d\n", port);
  std::fflush(stdout);
  for (char c; read(STDIN_FILENO, &c, 1) == 1;) {
  }
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace sparseagg::bench
