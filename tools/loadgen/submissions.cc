#include "tools/loadgen/submissions.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "bench/common/machine.h"
#include "host/base/half.h"
#include "host/wire/delta_keys.h"
#include "host/wire/packed_values.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::bench {
namespace {

grpc::ByteBuffer Serialize(const v1::UpdateChunk& chunk) {
  const grpc::Slice slice(chunk.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

template <typename Key>
void CheckAscending(const std::vector<Key>& keys, const std::string& client_id) {
  if (std::adjacent_find(keys.begin(), keys.end(), std::greater_equal<>()) == keys.end()) return;
  throw std::invalid_argument("the keys of " + client_id + " do not strictly ascend, which packed ones must");
}

template <typename Key>
void SetKeys(const TensorSpec& spec, absl::Span<const Key> keys, const WireForm& form, v1::TensorSlice* slice) {
  if (spec.layout == Layout::kDense) {
    slice->set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
    slice->set_first_key(keys.front());
    slice->set_num_keys(keys.size());
  } else if (form.packed_keys) {
    slice->set_key_encoding(v1::KEY_ENCODING_DELTA_BITPACKED);
    slice->set_first_key(keys.front());
    slice->set_num_keys(keys.size());
    slice->set_keys(wire::EncodeDeltaKeys(keys));
  } else {
    slice->set_key_encoding(sizeof(Key) == sizeof(uint32_t) ? v1::KEY_ENCODING_U32 : v1::KEY_ENCODING_U64);
    slice->set_keys(keys.data(), keys.size() * sizeof(Key));
  }
}

void SetValues(absl::Span<const float> values, const WireForm& form, v1::TensorSlice* slice) {
  if (!form.float16_values) {
    slice->set_value_encoding(v1::VALUE_ENCODING_FLOAT32);
    slice->set_values(values.data(), values.size() * sizeof(float));
    return;
  }
  for (const float value : values) {
    if (WidenFloat16(RoundToFloat16(value)) != value) throw std::invalid_argument("a value is no float16");
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  slice->set_value_encoding(v1::VALUE_ENCODING_FLOAT16);
  slice->set_values(*wire::PackValues(wire::ValuePacking::kFloat16, DType::kFloat32, bytes, values.size()));
}

// Returns: tuples per chunk, from the mean size of a tuple.
template <typename Key>
size_t ChunkTuples(const TensorSpec& spec, const std::vector<Key>& keys, uint64_t chunk_bytes, const WireForm& form) {
  const uint64_t key_bytes = spec.layout == Layout::kDense ? 0
                             : form.packed_keys            ? wire::DeltaKeyBytes(absl::MakeConstSpan(keys))
                                                           : keys.size() * sizeof(Key);
  const uint64_t bytes =
      key_bytes + keys.size() * spec.row_width * (form.float16_values ? sizeof(uint16_t) : sizeof(float));
  return std::max<size_t>(1, chunk_bytes * keys.size() / std::max<uint64_t>(1, bytes));
}

template <typename Key>
Submission MakeSubmission(const TensorSpec& spec, const std::vector<Key>& keys, const std::vector<float>& values,
                          size_t number, uint64_t chunk_bytes, const WireForm& form) {
  Submission submission;
  submission.client_id = ClientId(number);
  if (form.packed_keys) CheckAscending(keys, submission.client_id);
  const size_t count = keys.size();
  const size_t step = ChunkTuples(spec, keys, chunk_bytes, form);
  submission.tuples = count;
  for (size_t begin = 0; begin < count; begin += step) {
    const size_t end = std::min(count, begin + step);
    v1::UpdateChunk chunk;
    chunk.set_sequence(begin / step);
    chunk.set_last(end == count);
    v1::TensorSlice* slice = chunk.add_slices();
    slice->set_tensor(spec.name);
    SetKeys(spec, absl::MakeConstSpan(keys).subspan(begin, end - begin), form, slice);
    SetValues(absl::MakeConstSpan(values).subspan(begin * spec.row_width, (end - begin) * spec.row_width), form, slice);
    submission.chunks.push_back(Serialize(chunk));
    submission.bytes += submission.chunks.back().Length();
  }
  return submission;
}

}  // namespace

std::string ClientId(size_t number) { return absl::StrFormat("c%08d", number); }

void RoundValuesToFloat16(Workload& workload) {
  for (ClientArrays& client : workload.clients) {
    for (float& value : client.values) {
      value = WidenFloat16(RoundToFloat16(value));
      if (!std::isfinite(value)) throw std::invalid_argument("a value is beyond the range of float16");
    }
  }
}

Traffic MakeTraffic(const Workload& workload, uint64_t chunk_bytes, const WireForm& form) {
  const TensorSpec& spec = workload.spec;
  Traffic traffic;
  for (size_t k = 0; k < workload.clients.size(); ++k) {
    const ClientArrays& client = workload.clients[k];
    traffic.submissions.push_back(HasNarrowKeys(spec)
                                      ? MakeSubmission(spec, client.narrow_keys, client.values, k, chunk_bytes, form)
                                      : MakeSubmission(spec, client.wide_keys, client.values, k, chunk_bytes, form));
    traffic.tuples += traffic.submissions.back().tuples;
    traffic.bytes += traffic.submissions.back().bytes;
  }
  return traffic;
}

grpc::ByteBuffer WithIds(const Submission& submission, const std::string& round) {
  v1::UpdateChunk ids;
  ids.set_round(round);
  ids.set_client_id(submission.client_id);
  ids.set_submission_id("s");
  // The concatenation of two serialized messages is the serialization of both, merged.
  std::vector<grpc::Slice> slices;
  if (!submission.chunks.front().Dump(&slices).ok()) throw std::runtime_error("a chunk that gRPC cannot read");
  slices.insert(slices.begin(), grpc::Slice(ids.SerializeAsString()));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

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

namespace {

void SleepUntil(double time) {
  const double left = time - Now();
  if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
}

// One run. Outlives its calls: Wait returns after the last one.
class Load {
 public:
  Load(Connections& connections, const std::vector<Job>& jobs) : connections_(connections), jobs_(jobs), begin_(Now()) {
    outcome_.latency_s.reserve(jobs.size());
  }

  double begin() const { return begin_; }

  // Sends the jobs that are left, one after the other.
  void StartLane(size_t lane) {
    size_t job;
    {
      std::lock_guard lock(mu_);
      if (next_ == jobs_.size()) return;
      job = next_++;
    }
    Start(job, lane, Now(), /*then_next=*/true);
  }

  void Start(size_t job, size_t lane, double due, bool then_next) {
    Submit(connections_.stub(lane), jobs_[job], [this, job, lane, due, then_next](const grpc::Status& status) {
      const double now = Now();
      // Before Record: after the last job is recorded, Wait returns and this object may be destroyed.
      if (then_next) StartLane(lane);
      Record(job, now - due, now, status);
    });
  }

  Outcome Wait() {
    std::unique_lock lock(mu_);
    while (num_done_ < jobs_.size()) changed_.wait(lock);
    if (num_refused_ == 0) return outcome_;
    throw std::runtime_error(absl::StrCat(num_refused_, " submissions were refused, the first with code ",
                                          first_refusal_.error_code(), ": ", first_refusal_.error_message()));
  }

 private:
  void Record(size_t job, double latency_s, double now, const grpc::Status& status) {
    std::lock_guard lock(mu_);
    if (status.ok()) {
      outcome_.bytes += jobs_[job].submission->bytes;
      outcome_.tuples += jobs_[job].submission->tuples;
      outcome_.latency_s.push_back(latency_s);
    } else if (++num_refused_ == 1) {
      first_refusal_ = status;
    }
    outcome_.seconds = std::max(outcome_.seconds, now - begin_);
    if (++num_done_ == jobs_.size()) changed_.notify_all();
  }

  Connections& connections_;
  const std::vector<Job>& jobs_;
  const double begin_;
  std::mutex mu_;
  std::condition_variable changed_;
  size_t next_ = 0;
  size_t num_done_ = 0;
  size_t num_refused_ = 0;
  grpc::Status first_refusal_;
  Outcome outcome_;
};

}  // namespace

double DueTime(const Pacing& pacing, size_t i) {
  const auto number = static_cast<double>(i);
  if (pacing.per_second <= 0) return std::min(number / pacing.streams, 1.0) * pacing.ramp_s;
  // The rate grows evenly to per_second: after t seconds of the ramp, per_second · t² / (2 · ramp_s) were due.
  const double in_ramp = pacing.per_second * pacing.ramp_s / 2;
  if (number < in_ramp) return std::sqrt(2 * pacing.ramp_s * number / pacing.per_second);
  return pacing.ramp_s + (number - in_ramp) / pacing.per_second;
}

Outcome Run(Connections& connections, const std::vector<Job>& jobs, const Pacing& pacing) {
  Load load(connections, jobs);
  const bool open_loop = pacing.per_second > 0;
  const size_t starts = open_loop ? jobs.size() : std::min<size_t>(jobs.size(), static_cast<size_t>(pacing.streams));
  for (size_t i = 0; i < starts; ++i) {
    const double due = load.begin() + DueTime(pacing, i);
    SleepUntil(due);
    open_loop ? load.Start(i, i, due, /*then_next=*/false) : load.StartLane(i);
  }
  return load.Wait();
}

}  // namespace sparseagg::bench
