#include "tools/loadgen/sink.h"

#include <fcntl.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "service/base/limits.h"
#include "service/grpc/grpc_options.h"
#include "sparseagg/v1/aggregation.grpc.pb.h"

extern char** environ;

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

SinkProcess::SinkProcess() {
  std::array<int, 2> in;
  std::array<int, 2> out;
  if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipes");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string program = "/proc/self/exe";
  std::string flag = "--serve-sink";
  char* argv[] = {program.data(), flag.data(), nullptr};
  const int failed = posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  standard_input_ = in[1];
  std::string line;
  for (char c; failed == 0 && read(out[0], &c, 1) == 1 && c != '\n';) line += c;
  close(out[0]);
  absl::string_view address = line;
  if (!absl::ConsumePrefix(&address, "listening grpc=")) throw std::runtime_error("the sink did not start");
  address_ = std::string(address);
}

SinkProcess::~SinkProcess() {
  close(standard_input_);
  waitpid(pid_, nullptr, 0);
}

}  // namespace sparseagg::bench
