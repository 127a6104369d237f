#include "service/handlers/model_methods.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "service/codec/model_codec.h"
#include "service/codec/parse.h"
#include "service/handlers/caller.h"
#include "service/rounds/result_pages.h"
#include "sparseagg/v1/models.pb.h"

namespace sparseagg::service {
namespace {

absl::StatusOr<ModelConfig> DecodeModel(const absl::Cord& message, const Limits& limits) {
  v1::CreateModelRequest request;
  RETURN_IF_ERROR(ParseSpec(message, limits, &request));
  return DecodeCreateModel(request, limits, SpecSource::kClient);
}

}  // namespace

// A read of one page, checked.
struct ModelMethods::PlannedRead {
  std::shared_ptr<ServedModel> model;
  size_t tensor = 0;
  ReadAt at;
  bool with_initial = false;
  PageFormat format;
  std::optional<Column<uint64_t>> keys;  // nullopt: a read of a range
  KeyInterval range;                     // what is left of it
  uint64_t max_rows = 0;                 // of the page
  std::string token;                     // of the next page, without the version and its first key

  const ModelTensorSpec& spec() const { return model->config().spec.tensors[tensor]; }
  uint64_t max_bytes() const { return MostRowsBytes(spec(), max_rows); }
};

absl::Status ModelMethods::TakePageToken(absl::string_view token, PlannedRead& read) {
  uint64_t version = 0;
  absl::string_view rest = token;
  const size_t dash = rest.rfind('-');
  const bool is_ours = absl::ConsumePrefix(&rest, read.token) && dash != absl::string_view::npos &&
                       absl::SimpleAtoi(token.substr(dash + 1), &read.range.begin) &&
                       absl::SimpleAtoi(rest.substr(0, rest.find('-')), &version);
  if (!is_ours || read.at.version.value_or(version) != version) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_token ", QuotedId(token), " is of another read, or of no page of rows"));
  }
  read.at.version = version;
  return absl::OkStatus();
}

absl::Status ModelMethods::Read(const PlannedRead& read, std::string* response) const {
  const Model& model = read.model->model();
  absl::StatusOr<ModelRows> rows =
      read.keys.has_value() ? model.ReadKeys(read.tensor, *read.keys, read.at, read.with_initial)
                            : model.ReadRange(read.tensor, read.range.begin, read.range.end, read.at, read.max_rows);
  RETURN_IF_ERROR(rows.status());
  context_.metrics.CountModelReads(rows->num_keys);
  v1::RowsPage page;
  EncodeRows(*rows, read.format, &page);
  if (rows->next_key.has_value()) {
    page.set_next_page_token(absl::StrCat(read.token, rows->version, "-", *rows->next_key));
  }
  return Serialize(page, response);
}

std::vector<MethodEntry> ModelMethods::Entries() {
  const auto entry = [this](Method method, void (ModelMethods::*handler)(const Call&)) {
    return MethodEntry{method, [this, handler](const Call& call) { (this->*handler)(call); }};
  };
  return {
      entry(Method::kCreateModel, &ModelMethods::CreateModel), entry(Method::kGetModel, &ModelMethods::GetModel),
      entry(Method::kListModels, &ModelMethods::ListModels),   entry(Method::kReadRows, &ModelMethods::ReadRows),
      entry(Method::kApplyRound, &ModelMethods::ApplyRound),   entry(Method::kDeleteModel, &ModelMethods::DeleteModel),
  };
}

absl::StatusOr<std::shared_ptr<ServedModel>> ModelMethods::FindModel(const Caller& caller,
                                                                     absl::string_view name) const {
  ASSIGN_OR_RETURN(const std::string id, ParseModelName(name));
  return models_.Find(caller.identity().tenant, id);
}

void ModelMethods::CreateModel(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    RETURN_IF_ERROR(CheckMessageSize(self.request().size()));
    ASSIGN_OR_RETURN(const ModelConfig checked, DecodeModel(self.request(), context_.limits));
    const uint64_t most = SaturatingMultiply(uint64_t{4}, SaturatingAdd(uint64_t{4096}, checked.wire_spec.size()));
    // As CreateRound: while the call waits it keeps only the message.
    return PlannedAnswer{most, [this, &self]() -> absl::Status {
                           ASSIGN_OR_RETURN(ModelConfig config, DecodeModel(self.request(), context_.limits));
                           config.tenant = self.caller().identity().tenant;
                           ASSIGN_OR_RETURN(const std::shared_ptr<ServedModel> model,
                                            models_.Create(std::move(config)));
                           LogCall(LogLevel::kInfo, self.caller(), "CreateModel", model->config().id);
                           v1::Model answer;
                           EncodeModel(*model, /*versions=*/true, &answer);
                           return Serialize(answer, self.response());
                         }};
  });
}

void ModelMethods::GetModel(const Call& call) {
  v1::GetModelRequest request;
  std::shared_ptr<ServedModel> model;
  absl::Duration timeout;
  const absl::Status asked = ToStatus([&]() -> absl::Status {
    RETURN_IF_ERROR(ParseNames(call->request(), &request));
    LogCall(LogLevel::kDebug, call->caller(), "GetModel", request.model());
    ASSIGN_OR_RETURN(model, FindModel(call->caller(), request.model()));
    ASSIGN_OR_RETURN(timeout, WaitTimeout(request.has_timeout(), request.timeout()));
    return absl::OkStatus();
  });
  if (!asked.ok()) return call->Finish(asked);
  const auto most_bytes = [model] { return MostModelBytes(*model, /*versions=*/true); };
  const auto answer = [&self = *call, model]() -> absl::Status {
    if (model->is_deleted()) return NoModelError(model->config().id);
    v1::Model wire;
    EncodeModel(*model, /*versions=*/true, &wire);
    return Serialize(wire, self.response());
  };
  if (!request.has_after_version()) {
    return AnswerOnPool(call, [most_bytes, answer](UnaryCall&) -> absl::StatusOr<PlannedAnswer> {
      return PlannedAnswer{most_bytes(), answer};
    });
  }
  const uint64_t after = request.after_version();
  const Awaited next = {[model, after](absl::Duration wait, std::function<void()> done) {
                          return model->Wait(after, wait, std::move(done));
                        },
                        [model](uint64_t wait) { return model->StopWaiting(wait); },
                        [model] { model->ReleaseWaiters(); },
                        [model, after] { return model->model().version() > after || model->is_deleted(); }};
  AnswerAfter(call, rounds_, next, timeout, most_bytes, answer);
}

void ModelMethods::ListModels(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    v1::ListModelsRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const int size, ListSize(request.page_size()));
    const auto page = std::make_shared<ModelRegistry::Page>(
        models_.List(self.caller().identity().tenant, request.page_token(), static_cast<size_t>(size), PageBytes(0),
                     [](const ServedModel& model) { return MostModelBytes(model, /*versions=*/false); }));
    return PlannedAnswer{page->bytes, [&self, page]() -> absl::Status {
                           v1::ListModelsResponse answer;
                           for (const auto& model : page->entries) {
                             EncodeModel(*model, /*versions=*/false, answer.add_models());
                           }
                           answer.set_next_page_token(page->next_token);
                           return Serialize(answer, self.response());
                         }};
  });
}

absl::StatusOr<std::shared_ptr<const ModelMethods::PlannedRead>> ModelMethods::PlanRead(const UnaryCall& call) const {
  v1::ReadRowsRequest request;
  RETURN_IF_ERROR(ParseUpTo(call.request(), kMaxReadRequestBytes, &request));
  auto read = std::make_shared<PlannedRead>();
  ASSIGN_OR_RETURN(read->model, FindModel(call.caller(), request.model()));
  const ModelConfig& config = read->model->config();
  ASSIGN_OR_RETURN(read->tensor, config.spec.ChooseTensor(request.tensor()));
  if (request.has_version()) read->at.version = request.version();
  if (request.has_since()) read->at.since = request.since();
  ASSIGN_OR_RETURN(read->format, DecodePageFormat(request.format()));
  const uint64_t row_bytes = read->spec().row_bytes();
  ReadShape shape{request.has_keys(), request.keys().key_encoding() == v1::KEY_ENCODING_IMPLICIT,
                  request.range().begin(), request.range().end()};
  if (!request.has_keys()) {
    if (request.with_initial()) return absl::InvalidArgumentError("with_initial is for reads of keys");
    read->range = {shape.begin, shape.end};
    RETURN_IF_ERROR(CheckRange(read->range));
    RETURN_IF_ERROR(CheckReads(config.spec.reads, read->spec(), shape));
    read->max_rows = std::max<uint64_t>(1, PageBytes(request.max_page_bytes()) / (row_bytes + sizeof(uint64_t)));
    read->token = absl::StrCat(read->tensor, "-", shape.begin, "-", shape.end, "-",
                               request.has_since() ? absl::StrCat(request.since()) : "all", "-");
    if (!request.page_token().empty()) RETURN_IF_ERROR(TakePageToken(request.page_token(), *read));
    return read;
  }
  if (request.has_range() || !request.page_token().empty() || request.max_page_bytes() != 0) {
    return absl::InvalidArgumentError("range, page_token and max_page_bytes are for reads without keys");
  }
  ASSIGN_OR_RETURN(read->keys, DecodeReadKeys(request.keys()));
  read->max_rows = read->keys->size();
  read->with_initial = request.with_initial();
  shape.begin = request.keys().first_key();
  shape.end = SaturatingAdd(shape.begin, read->max_rows);
  RETURN_IF_ERROR(CheckReads(config.spec.reads, read->spec(), shape));
  const uint64_t bytes = SaturatingMultiply(row_bytes, read->max_rows);
  const uint64_t limit = context_.limits.max_page_bytes;
  if (limit == 0 || bytes <= limit || read->max_rows <= 1) return read;
  return absl::ResourceExhaustedError(absl::StrCat("rows of ", bytes, " bytes; at most max_page_bytes ", limit));
}

void ModelMethods::ReadRows(const Call& call) {
  AnswerOnPool(call, [this](UnaryCall& self) -> absl::StatusOr<PlannedAnswer> {
    ASSIGN_OR_RETURN(const std::shared_ptr<const PlannedRead> read, PlanRead(self));
    LogCall(LogLevel::kDebug, self.caller(), "ReadRows", read->model->config().id);
    // The rows, beside the page that is made of them.
    return PlannedAnswer{SaturatingMultiply(uint64_t{2}, read->max_bytes()),
                         [this, &self, read] { return Read(*read, self.response()); }};
  });
}

void ModelMethods::ApplyRound(const Call& call) {
  OnPool(call, [this](UnaryCall& self) -> absl::Status {
    v1::ApplyRoundRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::shared_ptr<ServedModel> model, FindModel(self.caller(), request.model()));
    std::shared_ptr<const Round> round;
    if (!request.round().empty()) {
      ASSIGN_OR_RETURN(const std::string id, ParseRoundName(request.round()));
      auto found = rounds_.Find(self.caller().identity().tenant, id);
      if (found.ok()) round = *std::move(found);
    }
    const auto rate = request.has_learning_rate() ? std::optional(request.learning_rate()) : std::nullopt;
    ASSIGN_OR_RETURN(const ModelVersion made, model->ApplyRound(request.base_version(), request.round(), round, rate));
    LogCall(LogLevel::kInfo, self.caller(), "ApplyRound", request.model());
    v1::ModelVersion answer;
    EncodeModelVersion(made, &answer);
    return Serialize(answer, self.response());
  });
}

void ModelMethods::DeleteModel(const Call& call) {
  OnPool(call, [this](UnaryCall& self) -> absl::Status {
    v1::DeleteModelRequest request;
    RETURN_IF_ERROR(ParseNames(self.request(), &request));
    ASSIGN_OR_RETURN(const std::string id, ParseModelName(request.model()));
    ASSIGN_OR_RETURN(const std::shared_ptr<ServedModel> model, models_.Delete(self.caller().identity().tenant, id));
    RETURN_IF_ERROR(model->journal().AwaitDurable());
    LogCall(LogLevel::kInfo, self.caller(), "DeleteModel", request.model());
    return Serialize(google::protobuf::Empty(), self.response());
  });
}

}  // namespace sparseagg::service
