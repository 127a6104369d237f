#include "tools/loadgen/submit_call.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::bench {
namespace {

constexpr char kMethod[] = "/sparseagg.v1.Aggregation/SubmitUpdate";

// One call. Deletes itself in OnDone.
class SubmitCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  SubmitCall(const Job& job, std::function<void(grpc::Status)> done)
      : submission_(*job.submission),
        counted_(job.counted),
        first_(WithIds(*job.submission, job.round)),
        done_(std::move(done)) {}

  void Start(grpc::GenericStub& stub) {
    stub.PrepareBidiStreamingCall(&context_, kMethod, grpc::StubOptions(), this);
    StartRead(&response_);
    WriteNext();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    if (ok && next_ < submission_.chunks.size()) WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    done_(status.ok() && counted_ ? CheckResponse() : status);
    delete this;
  }

 private:
  void WriteNext() {
    const grpc::ByteBuffer* const chunk = next_ == 0 ? &first_ : &submission_.chunks[next_];
    if (++next_ == submission_.chunks.size()) {
      StartWriteLast(chunk, grpc::WriteOptions());
    } else {
      StartWrite(chunk);
    }
  }

  grpc::Status CheckResponse() {
    grpc::Slice slice;
    v1::CommitSubmissionResponse response;
    if (!response_.DumpToSingleSlice(&slice).ok() ||
        !response.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
      return grpc::Status(grpc::StatusCode::INTERNAL, "the answer to a submission is no Submission");
    }
    if (response.num_tuples() == submission_.tuples) return grpc::Status::OK;
    return grpc::Status(grpc::StatusCode::INTERNAL,
                        absl::StrCat("client ", submission_.client_id, ": ", response.num_tuples(),
                                     " tuples were counted, not ", submission_.tuples));
  }

  const Submission& submission_;
  const bool counted_;
  const grpc::ByteBuffer first_;
  const std::function<void(grpc::Status)> done_;
  grpc::ClientContext context_;
  grpc::ByteBuffer response_;
  size_t next_ = 0;
};

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) throw std::runtime_error("cannot read " + path);
  return text;
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const Access& access) {
  if (access.tls_ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = Read(access.tls_ca);
  const std::shared_ptr<grpc::ChannelCredentials> tls = grpc::SslCredentials(options);
  if (access.token_file.empty()) return tls;
  const std::string token(absl::StripAsciiWhitespace(Read(access.token_file)));
  return grpc::CompositeChannelCredentials(tls, grpc::AccessTokenCredentials(token));
}

}  // namespace

Connections::Connections(const std::string& target, int count, int silence_s, const Access& access) {
  const std::shared_ptr<grpc::ChannelCredentials> credentials = CredentialsOf(access);
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(10);
  for (int i = 0; i < count; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1000 * silence_s);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 1000 * silence_s);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as it takes
    channels_.push_back(grpc::CreateCustomChannel(target, credentials, arguments));
    if (!channels_.back()->WaitForConnected(deadline)) throw std::runtime_error("cannot connect to " + target);
    stubs_.emplace_back(channels_.back());
  }
}

void Submit(grpc::GenericStub& stub, const Job& job, std::function<void(grpc::Status)> done) {
  (new SubmitCall(job, std::move(done)))->Start(stub);
}

}  // namespace sparseagg::bench
