#include "host/aggregation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "host/status_macros.h"

namespace sparseagg {

size_t PreparedSubmission::memory_bytes() const {
  size_t bytes = 0;
  for (const auto& update : updates) bytes += update->memory_bytes();
  return bytes;
}

absl::StatusOr<std::unique_ptr<Aggregation>> Aggregation::Create(Engine& engine, std::vector<TensorSpec> tensors) {
  if (tensors.empty()) return absl::InvalidArgumentError("an aggregation needs at least one tensor");
  auto aggregation = std::unique_ptr<Aggregation>(new Aggregation());
  for (size_t t = 0; t < tensors.size(); ++t) {
    RETURN_IF_ERROR(Validate(tensors[t]));
    for (size_t earlier = 0; earlier < t; ++earlier) {
      if (tensors[earlier].name == tensors[t].name) {
        return absl::InvalidArgumentError(absl::StrCat(Quoted(tensors[t]), " is given twice"));
      }
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Accumulator> accumulator, engine.CreateAccumulator(tensors[t]));
    aggregation->accumulators_.push_back(std::move(accumulator));
  }
  aggregation->tensors_ = std::move(tensors);
  return aggregation;
}

absl::StatusOr<size_t> Aggregation::FindTensor(absl::string_view name) const {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].name == name) return t;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown tensor '", name, "'; this round has ",
      absl::StrJoin(tensors_, ", ",
                    [](std::string* out, const TensorSpec& spec) { absl::StrAppend(out, "'", spec.name, "'"); })));
}

absl::StatusOr<PreparedSubmission> Aggregation::Prepare(std::vector<ValidatedUpdate> updates) const {
  if (updates.size() != tensors_.size()) {
    return absl::InternalError(absl::StrCat(updates.size(), " updates for ", tensors_.size(), " tensors"));
  }
  PreparedSubmission submission;
  for (size_t t = 0; t < updates.size(); ++t) {
    ASSIGN_OR_RETURN(std::unique_ptr<PreparedUpdate> prepared, accumulators_[t]->Prepare(std::move(updates[t])));
    submission.updates.push_back(std::move(prepared));
  }
  return submission;
}

absl::Status Aggregation::CheckRoom(uint64_t num_more) const {
  for (const TensorSpec& spec : tensors_) {
    const uint64_t limit = spec.aggregation.max_submissions;
    // More terms than the scale was chosen for could overflow.
    if (spec.aggregation.numerics == Numerics::kFixedPoint && limit != 0 && num_submissions() + num_more > limit) {
      return absl::ResourceExhaustedError(
          absl::StrCat(Quoted(spec), ": fixed_point was set up for max_submissions ", limit, ", which is reached"));
    }
  }
  return absl::OkStatus();
}

absl::Status Aggregation::Add(std::string client_id, PreparedSubmission submission) {
  RETURN_IF_ERROR(CheckRoom(1));
  if (!known_clients_.insert(client_id).second) {
    return absl::AlreadyExistsError(absl::StrCat("client '", client_id, "' has a submission already"));
  }
  client_ids_.push_back(std::move(client_id));
  for (size_t t = 0; t < accumulators_.size(); ++t) {
    RETURN_IF_ERROR(accumulators_[t]->Add(std::move(submission.updates[t])));
  }
  return absl::OkStatus();
}

absl::Status Aggregation::MergeFrom(Aggregation&& other) {
  RETURN_IF_ERROR(CheckRoom(other.num_submissions()));
  for (const std::string& id : other.client_ids_) {
    if (known_clients_.contains(id)) {
      return absl::AlreadyExistsError(absl::StrCat("client '", id, "' has a submission in both"));
    }
  }
  for (size_t t = 0; t < accumulators_.size(); ++t) {
    RETURN_IF_ERROR(accumulators_[t]->MergeFrom(std::move(*other.accumulators_[t])));
  }
  for (std::string& id : other.client_ids_) {
    known_clients_.insert(id);
    client_ids_.push_back(std::move(id));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Result>> Aggregation::Finish() && {
  std::vector<uint32_t> order(client_ids_.size());
  std::iota(order.begin(), order.end(), 0u);
  // std::string compares bytes as unsigned char: the canonical order.
  std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) { return client_ids_[a] < client_ids_[b]; });
  std::vector<Result> results;
  for (auto& accumulator : accumulators_) {
    ASSIGN_OR_RETURN(Result result, std::move(*accumulator).Finish(order));
    results.push_back(std::move(result));
    accumulator.reset();
  }
  return results;
}

size_t Aggregation::memory_bytes() const {
  size_t bytes = 0;
  for (const auto& accumulator : accumulators_) {
    if (accumulator != nullptr) bytes += accumulator->memory_bytes();
  }
  return bytes;
}

}  // namespace sparseagg
