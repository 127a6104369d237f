#include "tools/loadgen/soak.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "bench/common/machine.h"
#include "sparseagg/v1/aggregation.grpc.pb.h"
#include "tests/service/support/raw_client.h"
#include "tools/loadgen/measure.h"

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

namespace {

constexpr int kMaxSamples = 600;
constexpr double kFirstRetrySeconds = 0.1;
constexpr double kLongestRetrySeconds = 2;

// Returns: a field of /proc/PID/status in bytes; 0 if it is missing.
uint64_t StatusBytes(int pid, const std::string& field) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == field && status >> kib) return kib * 1024;
  }
  return 0;
}

bool MayRetry(int code) {
  return code == grpc::StatusCode::RESOURCE_EXHAUSTED || code == grpc::StatusCode::UNAVAILABLE ||
         code == grpc::StatusCode::DEADLINE_EXCEEDED;
}

// Samples the memory of the server at intervals, until it is stopped.
class Sampler {
 public:
  Sampler(int pid, double every_s) : pid_(pid), every_s_(every_s), begin_(Now()) {
    if (pid_ != 0) thread_ = std::thread([this] { Run(); });
  }
  ~Sampler() { Stop(); }

  std::vector<MemorySample> Stop() {
    {
      std::lock_guard lock(mu_);
      stopped_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    return samples_;
  }

 private:
  void Run() {
    std::unique_lock lock(mu_);
    while (!stopped_) {
      samples_.push_back({Now() - begin_, StatusBytes(pid_, "VmRSS:")});
      changed_.wait_for(lock, std::chrono::duration<double>(every_s_));
    }
  }

  const int pid_;
  const double every_s_;
  const double begin_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::vector<MemorySample> samples_;
  std::thread thread_;
};

// The good clients: one thread per connection; each takes the next job from a shared queue.
class GoodClients {
 public:
  GoodClients(const SoakFlags& flags, int count)
      : flags_(flags), connections_(flags.target, count, flags.silence_s), due_(Now()) {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { Work(static_cast<size_t>(i)); });
  }
  ~GoodClients() {
    {
      std::lock_guard lock(mu_);
      stopped_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  Connections& connections() { return connections_; }

  // Blocks: until all jobs are acknowledged.
  void Submit(const std::vector<Job>& jobs) {
    std::unique_lock lock(mu_);
    jobs_.assign(jobs.begin(), jobs.end());
    pending_ = jobs.size();
    changed_.notify_all();
    while (pending_ > 0 && failure_.empty()) changed_.wait(lock);
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }

  // Adds the measurements to `run`. Requires: no submission is running.
  void Report(SoakRun& run) const {
    std::lock_guard lock(mu_);
    run.submissions = latency_s_.size();
    run.latency_s = latency_s_;
    run.refused = refused_;
  }

 private:
  void Work(size_t number) {
    while (const std::optional<Job> job = Next()) {
      const double begin = Now();
      double wait = kFirstRetrySeconds;
      grpc::Status status = Once(number, *job);
      while (!status.ok() && MayRetry(status.error_code()) && Now() - begin < flags_.patience_s) {
        CountRefused(status);
        if (!Sleep(wait)) return;
        wait = std::min(2 * wait, kLongestRetrySeconds);
        status = Once(number, *job);
      }
      std::lock_guard lock(mu_);
      if (status.ok()) {
        latency_s_.push_back(Now() - begin);
        --pending_;
      } else {
        failure_ = absl::StrCat("a good submission failed with code ", status.error_code(), " after ", Now() - begin,
                                " s: ", status.error_message());
      }
      changed_.notify_all();
    }
  }

  // Blocks: until the next job is due. Returns: the job, or nothing after the destructor was called.
  std::optional<Job> Next() {
    std::unique_lock lock(mu_);
    while (!stopped_ && (jobs_.empty() || !failure_.empty())) changed_.wait(lock);
    if (stopped_) return std::nullopt;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    due_ = std::max(due_ + 1 / flags_.per_second, Now() - 1 / flags_.per_second);
    const double due = due_;
    lock.unlock();
    return Sleep(due - Now()) ? std::optional(std::move(job)) : std::nullopt;
  }

  bool Sleep(double seconds) {
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
    std::unique_lock lock(mu_);
    while (!stopped_ && changed_.wait_until(lock, end) != std::cv_status::timeout) {
    }
    return !stopped_;
  }

  grpc::Status Once(size_t number, const Job& job) {
    std::promise<grpc::Status> ended;
    bench::Submit(connections_.stub(number), job, [&ended](const grpc::Status& status) { ended.set_value(status); });
    return ended.get_future().get();
  }

  void CountRefused(const grpc::Status& status) {
    std::lock_guard lock(mu_);
    Refusals& refusals = refused_[status.error_code()];
    if (++refusals.count == 1) refusals.first_message = status.error_message();
  }

  const SoakFlags& flags_;
  Connections connections_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  // All guarded by mu_.
  bool stopped_ = false;
  std::deque<Job> jobs_;
  size_t pending_ = 0;
  double due_;  // time of the latest started job
  std::string failure_;
  std::vector<double> latency_s_;
  std::map<int, Refusals> refused_;
  std::vector<std::thread> threads_;
};

// Runs all rounds of the plan at the same time.
void RunGeneration(Plan& plan, Rounds& rounds, GoodClients& good, BadClients& bad) {
  std::vector<std::string> names;
  for (size_t i = 0; i < plan.num_rounds(); ++i) names.push_back(rounds.Create());
  bad.SetRound(names[0]);
  const std::vector<Job> jobs = plan.Jobs(names);
  good.Submit(jobs);
  uint64_t submissions = 0;
  uint64_t tuples = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    rounds.Close(names[i]);
    const v1::Round ended = rounds.AwaitDone(names[i]);
    submissions += ended.num_submissions();
    tuples += ended.num_tuples();
    plan.Verify(i, names[i], rounds.Read(names[i]));
    rounds.Delete(names[i]);
  }
  if (submissions != jobs.size() || tuples != plan.traffic().tuples) {
    throw std::runtime_error(absl::StrCat("the rounds counted ", submissions, " submissions of ", tuples,
                                          " tuples, but ", jobs.size(), " of ", plan.traffic().tuples,
                                          " were acknowledged"));
  }
}

}  // namespace

SoakRun Soak(Plan& plan, const SoakFlags& flags) {
  const int bad_count = flags.connections / 4 * kNumFaults;
  GoodClients good(flags, flags.connections - bad_count);
  Rounds rounds(good.connections(), plan.workload().spec);
  BadClients bad(flags.target, plan.traffic(), bad_count, flags.pause_s, flags.seed);
  Sampler sampler(flags.server_pid, std::max(0.1, flags.seconds / kMaxSamples));
  SoakRun run;
  const double begin = Now();
  do {
    RunGeneration(plan, rounds, good, bad);
    run.rounds += plan.num_rounds();
  } while (Now() - begin < flags.seconds);
  run.seconds = Now() - begin;
  run.resident = sampler.Stop();
  run.peak_bytes = StatusBytes(flags.server_pid, "VmHWM:");
  bad.Stop();
  run.faults = bad.attempts();
  run.answers = bad.answers();
  good.Report(run);
  if (run.answers.contains(grpc::StatusCode::OK)) throw std::runtime_error("the server took a bad submission");
  return run;
}

std::string SoakJson(const SoakRun& run, const SoakFlags& flags) {
  const auto point = [](std::string* out, const MemorySample& sample) {
    absl::StrAppendFormat(out, "[%.2f, %d]", sample.seconds, sample.bytes);
  };
  const auto answer = [](std::string* out, const std::pair<const int, uint64_t>& entry) {
    absl::StrAppendFormat(out, R"("%d": %d)", entry.first, entry.second);
  };
  return absl::StrFormat(
      R"("mode": "soak", "verified": true, "soak_seed": %d, "seconds": %.1f, "clients_at_once": %d, )"
      R"("rounds": %d, "submissions": %d, "latency": %s, "retried": %s, "stalled": %d, "vanished": %d, "garbage": %d, )"
      R"("answers_to_bad": {%s}, "peak_bytes": %s, "resident": [%s])",
      flags.seed, run.seconds, flags.connections, run.rounds, run.submissions, LatencyJson(run.latency_s),
      RefusedJson(run.refused), run.faults[0], run.faults[1], run.faults[2], absl::StrJoin(run.answers, ", ", answer),
      run.peak_bytes == 0 ? "null" : absl::StrCat(run.peak_bytes), absl::StrJoin(run.resident, ", ", point));
}

}  // namespace sparseagg::bench
