// The calls that upload: PutChunk, SubmitBatch, PutResultRange and the stream SubmitUpdate.
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "host/base/mutex.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"
#include "service/base/fail_point.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/codec/sliced_message.h"
#include "service/grpc/byte_buffers.h"
#include "service/grpc/call_context.h"
#include "service/grpc/grpc_service.h"
#include "service/grpc/reactors.h"
#include "service/handlers/caller.h"

namespace sparseagg::service {
namespace {

// A call with one large message: reads it and gives it to the method, on the worker pool (grpc_service.cc says why).
class PutReactor final : public CallReactor<PutReactor, grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  PutReactor(AggregationService* service, CallContext* context, grpc::ByteBuffer* response, Method method)
      : CallReactor(service, context), sent_(response), method_(method) {}

  void OnReadDone(bool ok) override {
    if (!EndRead()) return;
    context().pool.Post([self = self_, ok] { ok ? self->CallMethod() : self->End(self->NoMessage()); });
  }

  void FinishWith(const absl::Status& status) { Finish(ToGrpc(status, context_)); }

 private:
  absl::Status NoMessage() const {
    return context_.IsCancelled() ? absl::CancelledError("the call was cancelled")
                                  : absl::InvalidArgumentError("the call has no message");
  }

  void CallMethod() {
    AggregationMethods::LargeCall call{context_,
                                       TakeMessage(),
                                       read_time_,
                                       received_at_,
                                       &response_,
                                       [this] { return context_.IsCancelled(); },
                                       [self = self_](const absl::Status& status) { self->End(status); }};
    service_.methods().RunLarge(method_, std::move(call));
  }

  void End(const absl::Status& status) {
    // The call lasts until the client has read the response, and must not keep the memory until then.
    received_.Clear();
    reservation_.Release();
    if (status.ok()) *sent_ = ToByteBuffer(std::move(response_));
    Complete(status);
    EndStep();
  }

  grpc::ByteBuffer* const sent_;
  std::string response_;
  const Method method_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::PutChunk(Context* context, grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response, Method::kPutChunk),
                           PutReactor::Wait::kBounded);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::SubmitBatch(Context* context,
                                                                           grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response, Method::kSubmitBatch),
                           PutReactor::Wait::kBounded);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::PutResultRange(Context* context,
                                                                              grpc::ByteBuffer* response) {
  return PutReactor::Start(std::make_shared<PutReactor>(this, context, response, Method::kPutResultRange),
                           PutReactor::Wait::kBounded);
}

namespace {

// Messages of one stream that may wait while one is being decoded. One is enough to receive and decode in parallel.
constexpr size_t kMaxWaiting = 1;

// The most bytes of a message that a gRPC thread decodes itself. At hundreds of MB/s that blocks the thread's other
// calls for a few milliseconds.
constexpr uint64_t kMaxShortBytes = uint64_t{1} << 20;
// The most keys without values that a gRPC thread decodes: such keys may be packed, with many in one byte.
constexpr uint64_t kMaxShortKeys = kMaxShortBytes / sizeof(uint32_t);

// A SubmitUpdate call: one submission in one stream.
//
// The messages are decoded one after the other. Short messages are decoded by the gRPC thread that received them: the
// bytes are in its cache, and waking a thread of the pool costs more than decoding (measured: decoding everything on
// the pool gives 10 % fewer bytes per second). Long messages go to the worker pool, and so does the end of a submission
// whose commit may sort or merge much.
//
// A stream has at most three messages in memory, each with a reservation: one is decoded, one waits, and one arrives.
// Then the next read has to wait, and flow control holds the client back.
class SubmitReactor final : public CallReactor<SubmitReactor, grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  SubmitReactor(AggregationService* service, CallContext* context, grpc::ByteBuffer* response)
      : CallReactor(service, context), response_(response) {}

  void OnReadDone(bool ok) override {
    // Two steps: one for this function, and one for the message, which another thread may decode and end before this
    // function has begun the next read.
    if (!EndRead(2)) return;
    bool read_next = false;
    bool decode = false;
    {
      MutexLock lock(&mu_);
      waiting_.push_back({ok, TakeMessage(), read_time_, received_at_, std::move(reservation_)});
      read_next = ok && waiting_.size() <= kMaxWaiting;
      is_read_paused_ = ok && !read_next;
      decode = !std::exchange(has_decoder_, true);
    }
    if (read_next) ReadNext();
    if (decode) DecodeOnGrpcThread();
    EndStep();
  }

  void OnDone() override {
    ReleaseUpload(absl::OkStatus());
    CallReactor::OnDone();
  }

  void FinishWith(const absl::Status& status) {
    ReleaseUpload(status);
    Finish(ToGrpc(status, context_));
  }

 private:
  // The outcome of a read.
  struct Received {
    bool ok;  // false: no message; the client has closed its side, or the stream is broken
    absl::Cord bytes;
    absl::Duration read_time;
    absl::Duration received_at;  // Clock::Monotonic
    InFlightReservation reservation;
    // Set by Parse.
    std::optional<ChunkMessage> message = std::nullopt;
    uint64_t size = 0;  // bytes
    absl::Duration queued = absl::ZeroDuration();
    absl::Duration parsing = absl::ZeroDuration();
  };

  enum class Thread { kGrpc, kPool };
  enum class Decoded {
    kOne,
    kNone,       // no message waits; this thread is the decoder no more
    kNeedsPool,  // the next message is too long for a gRPC thread; this thread is still the decoder
  };

  // Decodes short messages, until none waits. Leaves the rest to the pool when a long one comes.
  void DecodeOnGrpcThread() {
    const std::shared_ptr<SubmitReactor> self = self_;  // the call may end in DecodeNext
    Decoded decoded = Decoded::kOne;
    while (decoded == Decoded::kOne) decoded = DecodeNext(Thread::kGrpc);
    if (decoded == Decoded::kNeedsPool) context().pool.Post([self] { self->DecodeOnPool(); });
  }

  // Decodes until no message waits.
  void DecodeOnPool() {
    while (DecodeNext(Thread::kPool) == Decoded::kOne) {
    }
  }

  // Decodes the next message and gives it to the intake, or ends the submission. Ends the step of the message.
  // Requires: the caller is the decoder (has_decoder_), as one thread at a time is.
  Decoded DecodeNext(Thread thread) {
    if (!next_.has_value()) {
      bool read_next = false;
      {
        MutexLock lock(&mu_);
        if (waiting_.empty()) {
          has_decoder_ = false;
          return Decoded::kNone;
        }
        next_ = std::move(waiting_.front());
        waiting_.pop_front();
        read_next = std::exchange(is_read_paused_, false);
      }
      if (read_next && !has_ended_) ReadNext();
    }
    absl::Status status;
    if (!has_ended_) {
      if (thread == Thread::kGrpc && !IsShort(*next_)) return Decoded::kNeedsPool;
      status = ToStatus([&] { return Parse(*next_); });
      if (status.ok() && thread == Thread::kGrpc && HasManyKeys(*next_)) {
        next_->message.reset();  // may be forty times as large as the bytes that are reserved
        return Decoded::kNeedsPool;
      }
    }
    // Destroyed on return: releases the reservation.
    Received next = *std::exchange(next_, std::nullopt);
    if (!has_ended_) {
      if (status.ok()) status = ToStatus([&] { return next.ok ? TakeChunk(next) : TakeEnd(); });
      if (!status.ok() || !next.ok) {
        has_ended_ = true;
        status.ok() ? AcknowledgeWhenDurable() : EndSubmission(status);
      }
    }
    EndStep();
    return Decoded::kOne;
  }

  bool IsShort(const Received& next) const {
    if (context().store != nullptr) return false;  // a disk may be slow
    if (next.ok) return next.bytes.size() <= kMaxShortBytes;
    return taken_bytes_ <= kMaxShortBytes && (intake_ == nullptr || !intake_->MergesOnArrival());
  }
  static bool HasManyKeys(const Received& next) {
    return next.message.has_value() && next.message->MostKeysWithoutValues() > kMaxShortKeys;
  }

  // Parses the message, if there is one.
  absl::Status Parse(Received& received) {
    if (!received.ok) return absl::OkStatus();
    const Clock& clock = context().clock;
    const absl::Duration begin = clock.Monotonic();
    received.size = received.bytes.size();
    received.queued = begin - received.received_at;
    const absl::Status status = received.message.emplace().Parse(received.bytes);
    received.parsing = clock.Monotonic() - begin;
    if (context().store != nullptr) received.message->KeepMessage(received.bytes);
    return status;
  }

  absl::Status TakeChunk(Received& received) {
    const v1::UpdateChunk& chunk = received.message->head();
    taken_bytes_ += received.size;
    if (upload_ == nullptr) {
      RETURN_IF_ERROR(Open(chunk));
    } else if ((!chunk.round().empty() && chunk.round() != round_name_) ||
               (!chunk.client_id().empty() && chunk.client_id() != upload_->client_id) ||
               (!chunk.submission_id().empty() && chunk.submission_id() != upload_->submission_id)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "chunk ", chunk.sequence(), " belongs to another submission than the first chunk of the stream"));
    }
    RETURN_IF_ERROR(service_.methods().CheckMessageSize(received.size));
    ASSIGN_OR_RETURN(const Chunk decoded, received.message->Decode());
    intake_->meter().RecordMessage(received.size, received.read_time, received.queued, received.parsing);
    return intake_->Append(*upload_, decoded);
  }

  absl::Status Open(const v1::UpdateChunk& chunk) {
    std::string client_id = chunk.client_id();
    RETURN_IF_ERROR(context_.ResolveClientId(&client_id));
    RETURN_IF_ERROR(CheckId(client_id, "client_id"));
    RETURN_IF_ERROR(CheckId(chunk.submission_id(), "submission_id"));
    ASSIGN_OR_RETURN(intake_, service_.methods().FindIntakeOf(client_id, context_, chunk.round()));
    round_name_ = chunk.round();
    LogCall(LogLevel::kDebug, context_, "SubmitUpdate", round_name_, client_id);
    ASSIGN_OR_RETURN(upload_, intake_->OpenStreamUpload(client_id, chunk.submission_id(), AbortCallback()));
    return absl::OkStatus();
  }

  // The client has closed its side, or the stream is broken.
  absl::Status TakeEnd() {
    if (context_.IsCancelled()) return absl::CancelledError("the stream was cancelled");
    if (upload_ == nullptr) return absl::InvalidArgumentError("the stream has no chunk");
    ASSIGN_OR_RETURN(const Receipt receipt, intake_->Commit(*upload_));
    v1::CommitSubmissionResponse submission;
    EncodeCommit(round_name_, receipt, &submission);
    return SerializeTo(submission, response_);
  }

  // Ends the call of a committed submission once the submission is durable at the configured level.
  void AcknowledgeWhenDurable() {
    if (!intake_->journal().IsActive()) return EndSubmission(absl::OkStatus());
    // An abort has come, but the commit was quicker: its outcome counts, and this step must not end before.
    if (!arbiter_.BeginSteps()) return EndSubmission(intake_->journal().AwaitDurable());
    intake_->journal().WhenDurable([self = self_](const absl::Status& durable) {
      FailPoint("before_acknowledgement");
      self->EndSubmission(durable);
      self->EndStep();
    });
  }

  // `status` OK: the submission is committed.
  void EndSubmission(const absl::Status& status) {
    const bool client_is_gone = absl::IsCancelled(status) && context_.IsCancelled();
    ReleaseUpload(client_is_gone ? absl::OkStatus() : status);
    Complete(status);
  }

  // Releases the upload, if the intake still has it. An error counts it as refused.
  void ReleaseUpload(const absl::Status& status) {
    if (upload_ == nullptr) return;
    status.ok() ? intake_->Discard(*upload_) : intake_->Refuse(*upload_, status);
  }

  grpc::ByteBuffer* const response_;
  Mutex mu_;
  std::deque<Received> waiting_ ABSL_GUARDED_BY(mu_);
  bool has_decoder_ ABSL_GUARDED_BY(mu_) = false;     // a thread is the decoder
  bool is_read_paused_ ABSL_GUARDED_BY(mu_) = false;  // the decoder begins the next read when it takes a message
  // Used by the decoder.
  std::optional<Received> next_;  // taken from waiting_, not decoded yet
  bool has_ended_ = false;        // committed or refused: later messages are dropped
  uint64_t taken_bytes_ = 0;      // of all messages
  std::string round_name_;
  std::shared_ptr<Intake> intake_;
  std::shared_ptr<UploadHandle> upload_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::SubmitUpdate(Context* context,
                                                                            grpc::ByteBuffer* response) {
  return SubmitReactor::Start(std::make_shared<SubmitReactor>(this, context, response),
                              SubmitReactor::Wait::kUnbounded);
}

}  // namespace sparseagg::service
