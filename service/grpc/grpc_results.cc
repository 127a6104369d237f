// The calls that send pages: StreamResult, ExportSubmissions and ExportPartial.
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/admission/memory_shares.h"
#include "service/codec/parse.h"
#include "service/codec/round_codec.h"
#include "service/codec/spec_codec.h"
#include "service/grpc/byte_buffers.h"
#include "service/grpc/call_context.h"
#include "service/grpc/grpc_service.h"
#include "service/grpc/reactors.h"
#include "service/handlers/caller.h"
#include "service/handlers/page_stream.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/row_export.h"
#include "service/rounds/sealed_reader.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
namespace {

// Tag and length of a field of bytes, in more bytes than most lengths need.
constexpr size_t kHeadBytes = 1 + 5;

// Appends the head of a field of `size` bytes. `position`: of the head in its message, where the field is to begin at a
// multiple of 8: a field in front of it fills up, of the value that a slice has without it.
void AppendHead(int field, uint64_t size, std::optional<size_t> position, std::string& out) {
  if (position.has_value()) {
    const size_t padding = 2 + (16 - (*position + 2 + kHeadBytes) % 8) % 8;
    out += static_cast<char>(v1::TensorSlice::kKeysSortedFieldNumber << 3);
    out.append(padding - 2, '\x80');
    out += '\0';
  }
  out += static_cast<char>(field << 3 | 2);
  for (size_t i = 2; i < kHeadBytes; ++i, size >>= 7) out += static_cast<char>((size & 0x7f) | 0x80);
  out += static_cast<char>(size);
}

// Replaces `bytes` by a serialised v1::ExportedSubmissions, which takes over the columns of the page. Its keys and
// values begin at multiples of 8 bytes, so that a reader need not copy them.
void EncodeExport(const TensorSpec& spec, ExportPage page, bool by_place, grpc::ByteBuffer* bytes) {
  v1::ExportedSubmissions wire;
  wire.set_client_ids(std::move(page.client_ids));
  wire.set_weights(std::move(page.weights));
  wire.set_num_keys(std::move(page.num_keys));
  if (by_place) {
    wire.set_first_place(page.first_place);
    wire.set_end_place(page.end_place);
    wire.set_has_rows(std::move(page.has_rows));
    wire.set_is_continued(page.is_continued);
    wire.set_num_submissions(page.num_submissions);
  }
  wire.set_next_page_token(std::move(page.next_page_token));
  v1::TensorSlice slice;
  slice.set_tensor(spec.name);
  const auto plain = HasNarrowKeys(spec) ? v1::KEY_ENCODING_U32 : v1::KEY_ENCODING_U64;
  slice.set_key_encoding(page.has_runs ? v1::KEY_ENCODING_IMPLICIT : plain);
  if (page.has_runs) slice.set_first_key(page.first_key);
  slice.set_value_encoding(spec.aggregation.op == Op::kUnion ? v1::VALUE_ENCODING_NONE
                                                             : static_cast<v1::ValueEncoding>(EncodeDType(spec.dtype)));
  slice.set_num_keys(page.num_rows);

  std::string head = wire.SerializeAsString();
  const size_t slice_begin = head.size() + kHeadBytes;
  std::string before_keys = slice.SerializeAsString();
  AppendHead(v1::TensorSlice::kKeysFieldNumber, page.keys.size(), slice_begin + before_keys.size(), before_keys);
  std::string before_values;
  AppendHead(v1::TensorSlice::kValuesFieldNumber, page.values.size(),
             slice_begin + before_keys.size() + page.keys.size(), before_values);
  const size_t slice_bytes = before_keys.size() + page.keys.size() + before_values.size() + page.values.size();
  AppendHead(v1::ExportedSubmissions::kSliceFieldNumber, slice_bytes, std::nullopt, head);
  head += before_keys;
  const grpc::Slice slices[] = {ToSlice(std::move(head)), ToSlice(std::move(page.keys)),
                                ToSlice(std::move(before_values)), ToSlice(std::move(page.values))};
  *bytes = grpc::ByteBuffer(slices, std::size(slices));
}

// A StreamResult call: all pages, one after the other.
class ResultReactor final : public CallReactor<ResultReactor, grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  ResultReactor(AggregationService* service, CallContext* context)
      : CallReactor(service, context), writer_(&service->context(), canceller_) {}

  void OnWriteDone(bool ok) override {
    writer_.OnWritten();
    if (!ok) return Finish(grpc::Status::CANCELLED);
    context().pool.Post([self = self_] { self->WriteNext(); });
  }

  absl::Status Open(const absl::Cord& message) {
    v1::StreamResultRequest request;
    // The request may name as many tensors as a spec has.
    RETURN_IF_ERROR(ParseSpec(message, context().limits, &request));
    LogCall(LogLevel::kDebug, context_, "StreamResult", request.round());
    ASSIGN_OR_RETURN(const std::shared_ptr<Round> round, service_.methods().FindRound(context_, request.round()));
    const RoundConfig& config = round->config();
    if (static_cast<size_t>(request.tensors_size()) > config.tensors.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the request names ", request.tensors_size(),
                                                     " tensors, but the round has ", config.tensors.size()));
    }
    std::vector<size_t> tensors;
    for (const std::string& name : request.tensors()) {
      ASSIGN_OR_RETURN(const size_t tensor, config.FindTensor(name));
      tensors.push_back(tensor);
    }
    for (size_t t = 0; request.tensors().empty() && t < config.tensors.size(); ++t) tensors.push_back(t);
    ASSIGN_OR_RETURN(const PageFormat format, DecodePageFormat(request.format()));
    ASSIGN_OR_RETURN(Results results, round->GetResults());
    ASSIGN_OR_RETURN(PageStream pages,
                     PageStream::Create(round, std::move(results), std::move(tensors),
                                        {request.range().begin(), request.range().end()},
                                        service_.methods().PageBytes(request.max_page_bytes()), format));
    writer_.Open(std::move(pages), nullptr);
    return absl::OkStatus();
  }

  void WriteNext() {
    writer_.Prepare([self = self_](const absl::StatusOr<const grpc::ByteBuffer*>& page) {
      page.ok() && *page != nullptr ? self->StartWrite(*page) : self->Finish(ToGrpc(page.status(), self->context_));
    });
  }

 private:
  PageWriter writer_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* AggregationService::StreamResult(Context* context,
                                                                             const grpc::ByteBuffer* message) {
  return ResultReactor::StartWriting(std::make_shared<ResultReactor>(this, context), message);
}

namespace {

// The largest page of an export where the server has no --max-page-bytes.
constexpr uint64_t kUnlimitedPageBytes = uint64_t{16} << 20;

// What ExportSubmissions sends.
struct Submissions {
  using Request = v1::ExportSubmissionsRequest;
  static constexpr absl::string_view kMethod = "ExportSubmissions";
  static constexpr uint64_t kMaxRequestBytes = kMaxNamesBytes + 10 * 4096;  // numbers of 4096 buckets of keys

  void Open(const Request& request) {
    query.any_order = request.any_order() || request.has_buckets();
    query.by_place = request.by_place();
    if (request.has_buckets()) {
      const auto& within = request.buckets().within();
      buckets = {request.buckets().bits(), request.buckets().within_bits(), {within.begin(), within.end()}};
    }
    const auto& taken = request.key_encodings();
    query.takes_runs = std::find(taken.begin(), taken.end(), v1::KEY_ENCODING_IMPLICIT) != taken.end();
  }
  bool IsShort(const Round& round) const { return query.any_order && !round.config().MergesOnArrival(); }
  uint64_t PageBytes(const Round& round) const {
    return buckets.has_value() ? 2 * KeyCounter::kMaxBuckets * sizeof(uint64_t)
                               : SealedReader::ExportPageBytes(round.config(), query);
  }
  absl::Status MakePage(Round& round, std::string& page_token, grpc::ByteBuffer* page) const {
    ExportPage exported;
    if (buckets.has_value()) {
      ASSIGN_OR_RETURN(const std::vector<uint64_t> counts, SealedReader(round).CountKeys(query, *buckets));
      exported.num_keys.assign(reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof(uint64_t));
    } else {
      ASSIGN_OR_RETURN(exported, SealedReader(round).Export(query, page_token));
    }
    page_token = exported.next_page_token;
    EncodeExport(round.config().tensors[query.tensor], std::move(exported), query.by_place, page);
    return absl::OkStatus();
  }

  ExportQuery query;
  std::optional<KeyBuckets> buckets;
};

// What ExportPartial sends.
struct Partial {
  using Request = v1::ExportPartialRequest;
  static constexpr absl::string_view kMethod = "ExportPartial";
  static constexpr uint64_t kMaxRequestBytes = kMaxNamesBytes;

  void Open(const Request&) {}
  bool IsShort(const Round&) const { return false; }
  uint64_t PageBytes(const Round& round) const { return SealedReader::PartialPageBytes(round.config(), query); }
  absl::Status MakePage(Round& round, std::string& page_token, grpc::ByteBuffer* page) const {
    ASSIGN_OR_RETURN(PartialPage exported, SealedReader(round).ExportPartial(query, page_token));
    page_token = exported.next_page_token;
    v1::ExportedPartial message;
    message.set_blocks(std::move(exported.blocks));
    message.set_next_page_token(std::move(exported.next_page_token));
    return SerializeTo(message, page);
  }

  PartialQuery query;
};

// A call of one of the two: all pages, one after the other, each made when in-flight memory for it is reserved. A page
// reads the round anew, so that a slow reader keeps no submission of a round that is closed in the meantime.
template <typename Export>
class ExportReactor final : public CallReactor<ExportReactor<Export>, grpc::ServerWriteReactor<grpc::ByteBuffer>> {
  using Base = CallReactor<ExportReactor<Export>, grpc::ServerWriteReactor<grpc::ByteBuffer>>;
  using Base::canceller_;
  using Base::context_;
  using Base::reservation_;
  using Base::self_;
  using Base::service_;

 public:
  ExportReactor(AggregationService* service, CallContext* context) : Base(service, context) {}

  void OnWriteDone(bool ok) override {
    reservation_.Release();
    if (!ok) return this->Finish(grpc::Status::CANCELLED);
    if (page_token_.empty() || --pages_left_ == 0) return this->Finish(grpc::Status::OK);
    WriteNext();
  }

  absl::Status Open(const absl::Cord& message) {
    typename Export::Request request;
    RETURN_IF_ERROR(ParseUpTo(message, Export::kMaxRequestBytes, &request));
    LogCall(LogLevel::kInfo, context_, Export::kMethod, request.round());
    ASSIGN_OR_RETURN(round_, service_.methods().FindRound(context_, request.round()));
    ASSIGN_OR_RETURN(export_.query.tensor, round_->config().ChooseTensor(request.tensor()));
    export_.query.keys = {request.range().begin(), request.range().end()};
    export_.query.max_bytes = service_.methods().PageBytes(request.max_page_bytes());
    if (this->context().limits.max_page_bytes == 0) {
      export_.query.max_bytes = std::min(export_.query.max_bytes, kUnlimitedPageBytes);
    }
    export_.Open(request);
    page_token_ = request.page_token();
    pages_left_ = request.max_pages();  // 0 wraps around: no limit
    return absl::OkStatus();
  }

  void WriteNext() {
    this->context().in_flight.Acquire(
        PageInFlightBytes(export_.PageBytes(*round_)),
        [self = self_](InFlightReservation reservation) {
          self->reservation_ = std::move(reservation);
          // On a thread of its own: the first page sorts or merges the submissions, which may take seconds, and others
          // wait. In any order nothing is sorted.
          WorkerPool& pool = self->export_.IsShort(*self->round_) ? self->context().pool : self->context().inspections;
          pool.Post([self] {
            self->page_.Clear();
            const absl::Status made =
                ToStatus([&] { return self->export_.MakePage(*self->round_, self->page_token_, &self->page_); });
            made.ok() ? self->StartWrite(&self->page_) : self->Finish(ToGrpc(made, self->context_));
          });
        },
        [canceller = canceller_] { canceller->Cancel(); }, InFlightMemory::Wait::kUnbounded, canceller_->peer());
  }

 private:
  std::shared_ptr<Round> round_;
  Export export_;
  uint32_t pages_left_ = 0;
  std::string page_token_;  // of the next page; empty before the first and after the last one
  grpc::ByteBuffer page_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* AggregationService::ExportSubmissions(Context* context,
                                                                                  const grpc::ByteBuffer* message) {
  return ExportReactor<Submissions>::StartWriting(std::make_shared<ExportReactor<Submissions>>(this, context), message);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* AggregationService::ExportPartial(Context* context,
                                                                              const grpc::ByteBuffer* message) {
  return ExportReactor<Partial>::StartWriting(std::make_shared<ExportReactor<Partial>>(this, context), message);
}

}  // namespace sparseagg::service
