#include "tools/loadgen/bad_clients.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sparseagg/v1/aggregation.grpc.pb.h"
#include "tests/service/support/raw_client.h"

namespace sparseagg::bench {
namespace {

constexpr auto kLongestStall = std::chrono::seconds(20);
constexpr int kNoAnswer = -1;
// One upload in this many is much larger than those of good clients: the memory that it frees fits none of theirs.
constexpr size_t kOneLargeIn = 8;
constexpr size_t kMaxChunks = 32;

}  // namespace

// One bad client. Not thread-safe.
class BadClients::Client {
 public:
  Client(BadClients* all, int number, uint64_t seed)
      : all_(*all), number_(number), random_(seed), stub_(v1::Aggregation::NewStub(Connect(all->target_))) {}

  // Makes one faulty call.
  // Returns: the code of the server's answer, or kNoAnswer.
  int Do(Fault fault) {
    switch (fault) {
      case Fault::kStall:
        return Flip() ? StallBetweenMessages() : Flip() ? StallWithinMessage() : AggregateSlowly();
      case Fault::kVanish:
        return Flip() ? VanishBetweenMessages() : VanishWithinMessage();
      case Fault::kGarbage:
        return SendGarbage();
    }
    return kNoAnswer;
  }

  double Jittered(double seconds) { return std::uniform_real_distribution<>(0.5 * seconds, 1.5 * seconds)(random_); }

 private:
  static std::shared_ptr<grpc::Channel> Connect(const std::string& target) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  }

  bool Flip() { return std::bernoulli_distribution(0.5)(random_); }
  size_t Draw(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }

  v1::UpdateChunk First() {
    v1::UpdateChunk chunk;
    chunk.set_round(all_.round());
    chunk.set_client_id(absl::StrCat("bad", number_));
    chunk.set_submission_id(absl::StrCat(number_of_attempt_++));
    return chunk;
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + kLongestStall);
  }

  // Returns: a random chunk of the traffic, renumbered to `sequence`.
  v1::UpdateChunk AnyChunk(uint64_t sequence) {
    const Submission& submission = all_.traffic_.submissions[Draw(all_.traffic_.submissions.size())];
    grpc::ByteBuffer bytes = submission.chunks[Draw(submission.chunks.size())];
    v1::UpdateChunk chunk;
    if (!grpc::SerializationTraits<v1::UpdateChunk>::Deserialize(&bytes, &chunk).ok()) chunk.Clear();
    chunk.set_sequence(sequence);
    chunk.set_last(false);
    return chunk;
  }

  // Sends the ids of a submission and some chunks, but never the last.
  void BeginWell(grpc::ClientWriter<v1::UpdateChunk>& writer) {
    const size_t count = Draw(kOneLargeIn) == 0 ? Draw(kMaxChunks) : Draw(2);
    bool goes_on = writer.Write(First());
    for (size_t i = 1; i <= count && goes_on; ++i) goes_on = writer.Write(AnyChunk(i));
  }

  int StallBetweenMessages() {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::CommitSubmissionResponse response;
    const auto writer = stub_->SubmitUpdate(&context, &response);
    BeginWell(*writer);
    return writer->Finish().error_code();  // without having closed its side
  }

  int StallWithinMessage() {
    service::RawClient client(all_.target_);
    client.OpenCall("SubmitUpdate");
    client.SendMessage(1'000'000, std::string(1 + Draw(service::RawClient::kMaxSentBytes - 5), '\n'));
    client.Drain(absl::Seconds(Jittered(3)));
    return kNoAnswer;
  }

  // Makes a correct Aggregate call, slowly.
  int AggregateSlowly() {
    grpc::ClientContext context;
    SetDeadline(context);
    const auto stream = stub_->Aggregate(&context);
    v1::AggregateRequest spec;
    v1::TensorSpec* tensor = spec.mutable_spec()->add_tensors();
    tensor->set_name("tensor");
    tensor->set_dtype(v1::DTYPE_FLOAT32);
    tensor->set_num_rows(uint64_t{1} << 32);
    v1::AggregateRequest chunk;
    *chunk.mutable_chunk() = AnyChunk(0);
    chunk.mutable_chunk()->set_client_id("a");
    chunk.mutable_chunk()->set_last(true);
    if (stream->Write(spec) && stream->Write(chunk)) {
      std::this_thread::sleep_for(std::chrono::duration<double>(Jittered(1)));
      stream->WritesDone();
      for (v1::ResultPage page; stream->Read(&page);) {
      }
    }
    (void)stream->Finish();
    return kNoAnswer;
  }

  int VanishBetweenMessages() {
    grpc::ClientContext context;
    v1::CommitSubmissionResponse response;
    const auto writer = stub_->SubmitUpdate(&context, &response);
    BeginWell(*writer);
    context.TryCancel();
    (void)writer->Finish();
    return kNoAnswer;
  }

  int VanishWithinMessage() {
    service::RawClient client(all_.target_);
    client.OpenCall("SubmitUpdate");
    client.SendMessage(1'000'000, std::string(1 + Draw(service::RawClient::kMaxSentBytes - 5), '\n'));
    client.Reset();
    return kNoAnswer;
  }

  int SendGarbage() {
    const size_t kind = Draw(8);
    if (kind < 2) {
      std::string bytes(1 + Draw(50'000), '\0');
      for (char& byte : bytes) byte = static_cast<char>(random_());
      service::RawClient client(all_.target_);
      if (kind == 0) client.OpenCall("SubmitUpdate");
      kind == 0 ? client.SendMessage(static_cast<uint32_t>(bytes.size()), bytes, /*last=*/true)
                : client.SendBytes(bytes);  // not even HTTP/2
      client.Drain(absl::Seconds(1));
      return kNoAnswer;
    }
    v1::UpdateChunk chunk = First();
    chunk.set_last(true);
    v1::TensorSlice* slice = chunk.add_slices();
    slice->set_tensor(kind == 2 ? "none" : "tensor");
    slice->set_key_encoding(v1::KEY_ENCODING_U32);
    slice->set_value_encoding(v1::VALUE_ENCODING_FLOAT32);
    slice->set_keys(std::string(4000, kind == 3 ? '\xff' : '\1'));  // all beyond num_rows
    slice->set_values(std::string(kind == 4 ? 3999 : 4000, '\0'));
    if (kind == 5) chunk.set_sequence(7);
    if (kind == 6) slice->set_values(std::string(2000, '\xff') + std::string(2000, '\0'));         // NaN
    if (kind == 7) slice->set_keys(std::string((size_t{1} << 20) + Draw(size_t{8} << 20), '\0'));  // large
    grpc::ClientContext context;
    v1::CommitSubmissionResponse response;
    const auto writer = stub_->SubmitUpdate(&context, &response);
    writer->Write(chunk);
    writer->WritesDone();
    return writer->Finish().error_code();
  }

  BadClients& all_;
  const int number_;
  std::mt19937_64 random_;
  const std::unique_ptr<v1::Aggregation::Stub> stub_;
  uint64_t number_of_attempt_ = 0;
};

BadClients::BadClients(std::string target, const Traffic& traffic, int count, double pause_s, uint64_t seed)
    : target_(std::move(target)), traffic_(traffic), pause_s_(pause_s) {
  for (int i = 0; i < count; ++i) threads_.emplace_back([this, i, seed] { Run(i, seed + static_cast<uint64_t>(i)); });
}

BadClients::~BadClients() { Stop(); }

void BadClients::Run(int number, uint64_t seed) {
  Client client(this, number, seed);
  const auto fault = static_cast<Fault>(number % kNumFaults);
  while (Pause(client.Jittered(pause_s_))) {
    if (!round().empty()) Count(fault, client.Do(fault));
  }
}

bool BadClients::Pause(double seconds) {
  std::unique_lock lock(mu_);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  while (!stopped_ && changed_.wait_until(lock, end) != std::cv_status::timeout) {
  }
  return !stopped_;
}

void BadClients::SetRound(const std::string& name) {
  std::lock_guard lock(mu_);
  round_ = name;
}

std::string BadClients::round() const {
  std::lock_guard lock(mu_);
  return round_;
}

void BadClients::Stop() {
  {
    std::lock_guard lock(mu_);
    stopped_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void BadClients::Count(Fault fault, int code) {
  std::lock_guard lock(mu_);
  ++attempts_[static_cast<size_t>(fault)];
  if (code != kNoAnswer) ++answers_[code];
}

std::vector<uint64_t> BadClients::attempts() const {
  std::lock_guard lock(mu_);
  return attempts_;
}

std::map<int, uint64_t> BadClients::answers() const {
  std::lock_guard lock(mu_);
  return answers_;
}

}  // namespace sparseagg::bench
