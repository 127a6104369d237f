// AggregationService: one submission in one stream.
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/to_status.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/chunk_message.h"
#include "service/codec/round_codec.h"
#include "service/rpc/grpc_service.h"
#include "service/rpc/grpc_util.h"
#include "service/rpc/reading_reactor.h"

namespace sparseagg::service {
namespace {

// Messages of one stream that may wait for the one that is being decoded. One suffices to receive and decode at the
// same time.
constexpr size_t kMostWaiting = 1;

// What one of gRPC's threads may do itself: at hundreds of MB a second, it is back with its other calls in a moment.
constexpr uint64_t kMostBytesAtOnce = uint64_t{1} << 20;
// Keys that come without values may be packed so that a byte stands for many.
constexpr uint64_t kMostKeysAtOnce = kMostBytesAtOnce / sizeof(uint32_t);

// Messages are parsed and decoded one after the other. The thread that has taken one from the wire does that itself,
// since it has the bytes in its cache, and waking another costs more than decoding (measured against a pool that does
// all of it: a tenth more bytes a second). Larger messages go to the pool, and so does the end of a submission whose
// commit may sort or merge much. A client that sends faster than that is held back by flow control: of each stream the
// message being decoded, one that waits and one that arrives are in memory, each with a credit.
class SubmitReactor final : public ReadingReactor<SubmitReactor, grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  SubmitReactor(AggregationService* service, grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : ReadingReactor(service, context), response_(response) {}

  void OnReadDone(bool ok) override {
    const absl::Duration waited = idle_.Stop();
    // One step for the message, which may be over on another thread before this one has begun the next read.
    if (!gate_.Begin(2)) return;
    bool read_on = false;
    bool decode = false;
    {
      std::lock_guard lock(mu_);
      waiting_.push_back({ok, {}, waited, context().clock.Monotonic(), std::move(reservation_)});
      waiting_.back().bytes.Swap(&received_);
      waiting_.back().credit.ShrinkTo(waiting_.back().bytes.Length());
      read_on = ok && waiting_.size() <= kMostWaiting;
      held_back_ = ok && !read_on;
      decode = !std::exchange(decoding_, true);
    }
    if (read_on) ReadNext();
    if (decode) DecodeOnReceipt();
    EndStep();
  }

  void OnDone() override {
    LetGo(absl::OkStatus());
    ReadingReactor::OnDone();
  }

  void FinishWith(const absl::Status& status) {
    LetGo(status);
    Finish(ToGrpc(status));
  }

 private:
  // What a read has brought.
  struct Received {
    bool ok;  // false: the client has closed its side, or the stream is broken
    grpc::ByteBuffer bytes;
    absl::Duration waited;  // for the client
    absl::Duration came;    // Clock::Monotonic
    InFlightReservation credit;
    // Once parsed.
    std::optional<ChunkMessage> message = std::nullopt;
    uint64_t size = 0;  // in bytes
    absl::Duration queued = absl::ZeroDuration();
    absl::Duration parsing = absl::ZeroDuration();
  };

  // On gRPC's thread, until nothing waits or something is for the pool.
  void DecodeOnReceipt() {
    const std::shared_ptr<SubmitReactor> self = self_;  // the stream may end here
    Decoded decoded = Decoded::kOne;
    while (decoded == Decoded::kOne) decoded = DecodeNext(Wanted::kShort);
    if (decoded == Decoded::kLeft) context().pool.Post([self] { self->DecodeWaiting(); });
  }

  // On the pool, until nothing waits.
  void DecodeWaiting() {
    while (DecodeNext(Wanted::kAll) == Decoded::kOne) {
    }
  }

  enum class Wanted { kShort, kAll };
  enum class Decoded {
    kOne,
    kNone,  // nothing waits, and the turn to decode is over
    kLeft,  // what comes next is not wanted; the turn goes on
  };

  // One thread at a time has the turn to decode. Every message is a step of its own, begun when it came.
  Decoded DecodeNext(Wanted wanted) {
    if (!next_.has_value()) {
      bool read_on = false;
      {
        std::lock_guard lock(mu_);
        if (waiting_.empty()) {
          decoding_ = false;
          return Decoded::kNone;
        }
        next_ = std::move(waiting_.front());
        waiting_.pop_front();
        read_on = std::exchange(held_back_, false);
      }
      if (read_on && !refused_) ReadNext();
    }
    absl::Status status;
    if (!refused_) {
      if (wanted == Wanted::kShort && !IsShort(*next_)) return Decoded::kLeft;
      status = ToStatus([&] { return Parse(*next_); });
      if (status.ok() && wanted == Wanted::kShort && HasManyKeys(*next_)) {
        next_->message.reset();  // its credit is for the bytes, and what was made of them may be forty times as much
        return Decoded::kLeft;
      }
    }
    // Its credit is given back when it is done with.
    Received next = *std::exchange(next_, std::nullopt);
    if (!refused_) {
      if (status.ok()) status = ToStatus([&] { return next.ok ? TakeChunk(next) : TakeEnd(); });
      if (!status.ok() || !next.ok) {
        refused_ = true;
        End(status);
      }
    }
    EndStep();
    return Decoded::kOne;
  }

  bool IsShort(const Received& next) const {
    if (next.ok) return next.bytes.Length() <= kMostBytesAtOnce;
    return taken_bytes_ <= kMostBytesAtOnce && (round_ == nullptr || !round_->MergesOnArrival());
  }
  static bool HasManyKeys(const Received& next) {
    return next.message.has_value() && next.message->MostKeysWithoutValues() > kMostKeysAtOnce;
  }

  // No effect on the client's end.
  absl::Status Parse(Received& received) {
    if (!received.ok) return absl::OkStatus();
    const Clock& clock = context().clock;
    const absl::Duration begin = clock.Monotonic();
    received.size = received.bytes.Length();
    received.queued = begin - received.came;
    absl::Status status = received.message.emplace().Parse(received.bytes);
    received.parsing = clock.Monotonic() - begin;
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
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", chunk.sequence(), " is of another submission than the stream's first chunk"));
    }
    RETURN_IF_ERROR(service_.CheckMessageSize(received.size));
    ASSIGN_OR_RETURN(const Chunk decoded, received.message->Decode());
    round_->RecordMessage(received.size, received.waited, received.queued, received.parsing);
    return round_->Append(*upload_, decoded);
  }

  absl::Status Open(const v1::UpdateChunk& chunk) {
    RETURN_IF_ERROR(CheckId(chunk.client_id(), "client_id"));
    RETURN_IF_ERROR(CheckId(chunk.submission_id(), "submission_id"));
    ASSIGN_OR_RETURN(round_, service_.FindRound(chunk.round()));
    round_name_ = chunk.round();
    LogCall(LogLevel::kDebug, context_, "SubmitUpdate", round_name_, chunk.client_id());
    ASSIGN_OR_RETURN(upload_, round_->OpenStreamUpload(chunk.client_id(), chunk.submission_id(), Interrupter()));
    return absl::OkStatus();
  }

  // The client has closed its side, or the stream is broken.
  absl::Status TakeEnd() {
    if (context_.IsCancelled()) return absl::CancelledError("the stream was cancelled");
    if (upload_ == nullptr) return absl::InvalidArgumentError("the stream has no chunk");
    ASSIGN_OR_RETURN(const Receipt receipt, round_->Commit(*upload_));
    v1::Submission submission;
    EncodeSubmission(round_name_, receipt, &submission);
    return Serialize(submission, response_);
  }

  // `status` OK: the submission counts.
  void End(const absl::Status& status) {
    const bool broken = absl::IsCancelled(status) && context_.IsCancelled();
    LetGo(broken ? absl::OkStatus() : status);
    Conclude(status);
  }

  // `status` OK: the upload is committed, or its client is gone.
  void LetGo(const absl::Status& status) {
    if (upload_ == nullptr) return;
    status.ok() ? round_->Discard(*upload_) : round_->Refuse(*upload_, status);
  }

  grpc::ByteBuffer* const response_;
  std::mutex mu_;
  // Guarded by mu_.
  std::deque<Received> waiting_;
  bool decoding_ = false;   // a thread has the turn to decode what waits
  bool held_back_ = false;  // the next read begins when it has taken something
  // Used by one thread at a time.
  std::optional<Received> next_;  // taken from waiting_, to be decoded
  bool refused_ = false;          // nothing more is decoded
  uint64_t taken_bytes_ = 0;      // of messages
  std::string round_name_;
  std::shared_ptr<Round> round_;
  std::shared_ptr<UploadHandle> upload_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* AggregationService::SubmitUpdate(Context* context,
                                                                            grpc::ByteBuffer* response) {
  return SubmitReactor::Start(std::make_shared<SubmitReactor>(this, context, response),
                              SubmitReactor::Wait::kUnbounded);
}

}  // namespace sparseagg::service
