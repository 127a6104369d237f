#include "host/aggregation.h"

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/accumulation.h"
#include "host/base/binned.h"
#include "host/base/float_environment.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/clip/clip.h"
#include "host/privacy/terms.h"
#include "host/private_sums.h"
#include "host/spec/validate.h"

namespace sparseagg {
namespace {

// The user address space of x86-64 with four-level page tables.
constexpr uint64_t kAddressableBytes = uint64_t{1} << 47;

// Returns: the spec of a tensor's accumulator. Its counts tell which rows a dense result has dropped, as zeros or for
// lack of weight, so that they have no moments.
TensorSpec SpecOfAccumulator(TensorSpec spec) {
  AggregationSpec& a = spec.aggregation;
  const bool drops = a.prune_zeros || a.op == Op::kCoordinateMean;
  a.return_counts |= a.return_moments && drops && a.result_layout != ResultLayout::kSparse;
  return spec;
}

// Sums of integer weights are exact up to 2^53, in whatever order. Binned sums of weights always are.
absl::Status CheckWeightSum(const TensorSpec& spec, const PartialTotals& totals) {
  if (spec.aggregation.numerics != Numerics::kCanonical || totals.weight_sum <= int64_t{1} << 53)
    return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(Quoted(spec), ": the weights add up to ", totals.weight_sum,
                                            ", beyond 2^53, up to which partials keep their sum exact"));
}

// Requires: there are rows.
uint64_t LastKey(const TensorSpec& spec, const UnfinishedRows& rows) {
  if (HasNarrowKeys(spec)) return reinterpret_cast<const uint32_t*>(rows.keys.data())[rows.num_rows - 1];
  return reinterpret_cast<const uint64_t*>(rows.keys.data())[rows.num_rows - 1];
}

}  // namespace

size_t PreparedSubmission::memory_bytes() const {
  size_t bytes = 0;
  for (const auto& update : updates) bytes += update->memory_bytes();
  return bytes;
}

absl::StatusOr<std::unique_ptr<Aggregation>> Aggregation::Create(Engine& engine, std::vector<TensorSpec> tensors,
                                                                 uint64_t memory_limit, privacy::NoiseSource noise) {
  const DefaultFloatEnvironment environment;
  if (tensors.empty()) return absl::InvalidArgumentError("an aggregation needs at least one tensor");
  auto aggregation = std::unique_ptr<Aggregation>(new Aggregation());
  absl::flat_hash_set<absl::string_view> names;
  for (const TensorSpec& spec : tensors) {
    RETURN_IF_ERROR(Validate(spec));
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), " is given twice"));
    }
    aggregation->specs_.push_back(spec.privacy.has_value() ? privacy::SumSpec(spec) : SpecOfAccumulator(spec));
  }
  for (const TensorSpec& spec : tensors) {
    aggregation->moments_.push_back(spec.aggregation.return_moments ? aggregation->specs_.size() : 0);
    if (spec.aggregation.return_moments) aggregation->specs_.push_back(MomentsSpec(spec));
  }
  for (const TensorSpec& spec : aggregation->specs_) {
    ASSIGN_OR_RETURN(std::unique_ptr<Accumulator> accumulator, engine.CreateAccumulator(spec));
    aggregation->accumulators_.push_back(std::move(accumulator));
  }
  aggregation->engine_ = &engine;
  aggregation->tensors_ = std::move(tensors);
  aggregation->has_clips_ = std::any_of(aggregation->tensors_.begin(), aggregation->tensors_.end(),
                                        [](const TensorSpec& spec) { return spec.clip.has_bound(); });
  const auto kept = std::find_if(aggregation->tensors_.begin(), aggregation->tensors_.end(),
                                 [](const TensorSpec& spec) { return IsOrderStatistic(spec.aggregation.op); });
  aggregation->order_statistic_ = kept == aggregation->tensors_.end() ? nullptr : &*kept;
  aggregation->memory_limit_ = memory_limit;
  RETURN_IF_ERROR(aggregation->SetPrivacy(std::move(noise)));
  const uint64_t bytes = aggregation->BytesWith(nullptr);
  if (bytes > (memory_limit == 0 ? kAddressableBytes : memory_limit)) {
    const std::string limit =
        memory_limit == 0 ? "what a machine can address" : absl::StrCat("the memory_limit ", memory_limit);
    const bool is_saturated = bytes == std::numeric_limits<uint64_t>::max();
    return absl::ResourceExhaustedError(
        absl::StrCat("the dense results take ", is_saturated ? "2^64 or more" : absl::StrCat(bytes), " bytes, beyond ",
                     limit, "; sparse results hold only the keys that were touched"));
  }
  return aggregation;
}

absl::Status Aggregation::SetPrivacy(privacy::NoiseSource noise) {
  const auto has_privacy = [](const TensorSpec& spec) { return spec.privacy.has_value(); };
  is_private_ = std::any_of(tensors_.begin(), tensors_.end(), has_privacy);
  if (!is_private_) return absl::OkStatus();
  if (!std::all_of(tensors_.begin(), tensors_.end(), has_privacy)) {
    return absl::InternalError("privacy is of all tensors or of none");
  }
  if (noise.key.empty()) {
    return absl::FailedPreconditionError("privacy needs a noise key (noise_key; on a server --noise-key-file)");
  }
  if (noise.key.size() < privacy::NoiseSource::kMinKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the noise key has ", noise.key.size(), " bytes; it needs at least ",
                                                   privacy::NoiseSource::kMinKeyBytes));
  }
  lattice_ = privacy::LatticeOf(tensors_.front());
  noise_ = std::move(noise);
  return absl::OkStatus();
}

absl::StatusOr<PreparedSubmission> Aggregation::Prepare(std::vector<ValidatedUpdate> updates) const {
  const DefaultFloatEnvironment environment;
  if (updates.size() != tensors_.size()) {
    return absl::InternalError(absl::StrCat(updates.size(), " updates for ", tensors_.size(), " tensors"));
  }
  PreparedSubmission submission;
  if (has_clips_) {
    ASSIGN_OR_RETURN(submission.clip, ApplyClips(tensors_, updates));
  }
  if (is_private_) {
    ASSIGN_OR_RETURN(submission.digest, privacy::MakeTerms(tensors_, lattice_, updates));
  }
  submission.updates.resize(accumulators_.size());
  for (size_t t = 0; t < updates.size(); ++t) {
    if (moments_[t] == 0) {
      ASSIGN_OR_RETURN(submission.updates[t], accumulators_[t]->Prepare(std::move(updates[t])));
      continue;
    }
    // The squares come second, since the first refuses integers that overflow.
    ASSIGN_OR_RETURN(submission.updates[t], accumulators_[t]->Prepare(updates[t]));
    ASSIGN_OR_RETURN(ValidatedUpdate squares, SquareRows(tensors_[t], updates[t]));
    ASSIGN_OR_RETURN(submission.updates[moments_[t]], accumulators_[moments_[t]]->Prepare(std::move(squares)));
  }
  return submission;
}

absl::StatusOr<PreparedSubmission> Aggregation::PreparePartial(std::vector<PartialBlock> blocks) const {
  if (is_private_) return absl::FailedPreconditionError("privacy refuses partials: their submissions have no noise");
  PreparedSubmission submission;
  for (const TensorSpec& spec : tensors_) RETURN_IF_ERROR(CheckHasPartials(spec));
  for (PartialBlock& block : blocks) {
    submission.num_submissions = block.totals.num_submissions;
    submission.updates.push_back(
        std::make_unique<PartialUpdate>(std::make_shared<const UnfinishedRows>(std::move(block.rows)),
                                        std::vector<double>{kPartialWeight}, block.totals));
  }
  return submission;
}

absl::Status Aggregation::CheckWeightSums(const PreparedSubmission& partial) const {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (!NeedsWeightSum(specs_[t])) continue;
    const auto& totals = static_cast<const PartialUpdate&>(*partial.updates[t]).totals();
    RETURN_IF_ERROR(CheckWeightSum(specs_[t], Sum(accumulators_[t]->Totals(), totals)));
  }
  return absl::OkStatus();
}

absl::Status Aggregation::CheckExportsPartial(size_t tensor) const {
  if (is_private_) return absl::FailedPreconditionError("privacy refuses partials: their submissions have no noise");
  return CheckHasPartials(specs_[tensor]);
}

absl::StatusOr<PartialBlock> Aggregation::ExportPartial(size_t tensor, uint64_t first, uint64_t last,
                                                        uint64_t max_rows) {
  const DefaultFloatEnvironment environment;
  PartialBlock block;
  block.tensor = tensor;
  block.totals = accumulators_[tensor]->Totals();
  RETURN_IF_ERROR(CheckWeightSum(specs_[tensor], block.totals));
  block.first = first;
  block.last = last;
  ASSIGN_OR_RETURN(block.rows, accumulators_[tensor]->ExportRows(first, last, max_rows));
  if (block.rows.num_rows < max_rows) return block;
  block.last = LastKey(specs_[tensor], block.rows);
  return block;
}

uint64_t Aggregation::PrepareBytes(absl::Span<const ValidatedUpdate> updates) const {
  uint64_t bytes = has_clips_ ? ApplyClipsBytes(tensors_, updates) : 0;
  if (is_private_) bytes = SaturatingAdd(bytes, privacy::MakeTermsBytes(tensors_, updates));
  for (size_t t = 0; t < updates.size(); ++t) {
    bytes = SaturatingAdd(bytes, accumulators_[t]->PrepareBytes(updates[t]));
    if (moments_[t] == 0) continue;
    // The squares go as they are to the engine, which folds and sorts nothing of them.
    bytes = SaturatingAdd(bytes, SquareRowsBytes(tensors_[t], updates[t]));
    bytes = SaturatingAdd(bytes, SaturatingMultiply(updates[t].num_keys(), sizeof(double) * tensors_[t].row_width));
  }
  return bytes;
}

absl::Status Aggregation::CheckMaxSubmissions(uint64_t num_more) const {
  for (const TensorSpec& spec : tensors_) {
    if (const uint64_t most = MaxBinnedSubmissions(spec); num_counted_ + num_more > most) {
      const bool is_of_values = spec.aggregation.numerics == Numerics::kBinned;
      return absl::ResourceExhaustedError(
          absl::StrCat(Quoted(spec), ": binned sums of ", BinnedTerms(spec), " take up to ", most, " submissions; ",
                       is_of_values ? "canonical ones have" : "uniform weighting has", " no such limit"));
    }
    // More terms than the lattice was chosen for could overflow.
    if (const uint64_t limit = spec.aggregation.max_submissions; is_private_ && num_counted_ + num_more > limit) {
      return absl::ResourceExhaustedError(absl::StrCat(Quoted(spec), ": privacy was set up for max_submissions ", limit,
                                                       ", and that many have been added"));
    }
  }
  return absl::OkStatus();
}

uint64_t Aggregation::BytesWith(const PreparedSubmission* next) const {
  const DefaultFloatEnvironment environment;
  uint64_t bytes = memory_bytes() + (next == nullptr ? 0 : next->memory_bytes());
  for (size_t t = 0; t < accumulators_.size(); ++t) {
    const Accumulator& accumulator = *accumulators_[t];
    const PreparedUpdate* const update = next == nullptr ? nullptr : next->updates[t].get();
    // Sums whose order matters are folded before Finish only to stay within a memory limit.
    const bool folds = !OrderMatters(specs_[t]) || (memory_limit_ != 0 && order_statistic_ == nullptr);
    const uint64_t fold_bytes = folds ? accumulator.FoldBytes(update) : 0;
    const uint64_t finish_bytes = accumulator.FinishBytes(update);
    bytes = SaturatingAdd(bytes, std::max(fold_bytes, finish_bytes));
    if (!is_private_) continue;
    // The exact sums have a key and a value at least, and a key of their own for each.
    bytes =
        SaturatingAdd(bytes, PrivateResultBytes(tensors_[t], finish_bytes / (KeyBytes(tensors_[t]) + sizeof(int64_t))));
  }
  return bytes;
}

uint64_t Aggregation::ExportBytesWith(const PreparedSubmission* next) const {
  uint64_t bytes = memory_bytes() + (next == nullptr ? 0 : next->memory_bytes());
  for (size_t t = 0; t < accumulators_.size(); ++t) {
    const Accumulator& accumulator = *accumulators_[t];
    const PreparedUpdate* const update = next == nullptr ? nullptr : next->updates[t].get();
    const bool is_read = OrderMatters(specs_[t]) || defers_merges_;
    bytes = SaturatingAdd(bytes, is_read ? accumulator.ReadBytes(update) : accumulator.FoldBytes(update));
  }
  return bytes;
}

absl::Status Aggregation::CheckFollows(absl::string_view client_id, absl::string_view last_folded) const {
  if (client_id >= last_folded) return absl::OkStatus();
  const std::string folded = memory_limit_ == 0
                                 ? std::string("is folded into the sum already")
                                 : absl::StrCat("the memory_limit ", memory_limit_, " has folded into the sum already");
  return absl::FailedPreconditionError(
      absl::StrCat("client '", client_id, "' comes before '", last_folded, "', which ", folded,
                   ": add clients in ascending order of their ids, or sum with binned numerics"));
}

absl::Status Aggregation::FitIntoLimit(absl::string_view client_id, const PreparedSubmission& submission) {
  const auto fits = [&] { return BytesWith(&submission) <= memory_limit_; };
  if (fits()) return absl::OkStatus();
  const auto does_not_fit = [&] {
    const std::string reason =
        order_statistic_ == nullptr ? "" : absl::StrCat("; ", KeepsSubmissionsError(*order_statistic_).message());
    return absl::ResourceExhaustedError(
        absl::StrCat("with the update of client '", client_id, "', of ", submission.memory_bytes(),
                     " bytes, the merged rows (", memory_bytes(), " bytes) and the result take up to ",
                     BytesWith(&submission), " bytes, beyond the memory_limit ", memory_limit_, reason));
  };
  // The submission and its rows alone are beyond the limit. Folding the others would not help.
  if (submission.memory_bytes() > memory_limit_ / 2) return does_not_fit();
  RETURN_IF_ERROR(MergePending());
  if (fits()) return absl::OkStatus();
  if (order_statistic_ != nullptr) return does_not_fit();
  // Add has compared the id with those that are folded already.
  const auto pending = client_ids_.begin() + static_cast<std::ptrdiff_t>(folded_.size());
  if (OrderMattersSomewhere() && pending != client_ids_.end()) {
    RETURN_IF_ERROR(CheckFollows(client_id, *std::max_element(pending, client_ids_.end())));
  }
  RETURN_IF_ERROR(FoldPending());
  return fits() ? absl::OkStatus() : does_not_fit();
}

absl::Status Aggregation::Add(std::string client_id, PreparedSubmission submission) {
  const DefaultFloatEnvironment environment;
  RETURN_IF_ERROR(CheckMaxSubmissions(submission.num_submissions));
  if (known_clients_.contains(client_id)) {
    return absl::AlreadyExistsError(absl::StrCat("client '", client_id, "' has a submission already"));
  }
  if (!folded_.empty()) RETURN_IF_ERROR(CheckFollows(client_id, client_ids_[folded_.back()]));
  if (memory_limit_ != 0) RETURN_IF_ERROR(FitIntoLimit(client_id, submission));
  if (is_private_) {
    digests_.resize(client_ids_.size() + 1);
    digests_.back() = submission.digest;
  }
  if (submission.updates[0]->is_partial()) RETURN_IF_ERROR(CheckWeightSums(submission));
  client_ids_.push_back(client_id);  // first, so that num_submissions() reports an error from here on
  known_clients_.insert(std::move(client_id));
  num_counted_ += submission.num_submissions;
  for (size_t t = 0; t < accumulators_.size(); ++t) {
    RETURN_IF_ERROR(accumulators_[t]->Add(std::move(submission.updates[t])));
  }
  return MergeIfDue();
}

absl::Status Aggregation::MergeIfDue() {
  if (defers_merges_) return absl::OkStatus();
  uint64_t bytes = 0;
  uint64_t due_bytes = 0;
  for (const auto& accumulator : accumulators_) {
    const Accumulator::Pending pending = accumulator->pending();
    bytes = SaturatingAdd(bytes, pending.bytes);
    due_bytes = SaturatingAdd(due_bytes, pending.due_bytes);
  }
  if (bytes < std::max(engine_->min_pending_bytes(), due_bytes)) return absl::OkStatus();
  try {
    const absl::Status merged = MergePending();
    return absl::IsResourceExhausted(merged) ? absl::OkStatus() : merged;  // what was added counts; a next Add merges
  } catch (const std::bad_alloc&) {
    return absl::OkStatus();
  }
}

absl::Status Aggregation::MergeFrom(Aggregation&& other) {
  const DefaultFloatEnvironment environment;
  RETURN_IF_ERROR(CheckMaxSubmissions(other.num_counted_));
  for (const Aggregation* const folded :
       {static_cast<const Aggregation*>(this), static_cast<const Aggregation*>(&other)}) {
    if (folded->folded_.empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the clients up to '", folded->client_ids_[folded->folded_.back()],
                     "' are folded into a sum already, in one of the two, and clients of the other may precede them"));
  }
  for (const std::string& id : other.client_ids_) {
    if (known_clients_.contains(id)) {
      return absl::AlreadyExistsError(absl::StrCat("client '", id, "' has a submission in both aggregations"));
    }
  }
  if (const uint64_t bytes = SaturatingAdd(BytesWith(nullptr), other.BytesWith(nullptr));
      memory_limit_ != 0 && bytes > memory_limit_) {
    return absl::ResourceExhaustedError(absl::StrCat("the two aggregations together take up to ", bytes,
                                                     " bytes, beyond the memory_limit ", memory_limit_));
  }
  digests_.resize(is_private_ ? client_ids_.size() : 0);
  digests_.insert(digests_.end(), other.digests_.begin(), other.digests_.end());
  client_ids_.insert(client_ids_.end(), other.client_ids_.begin(), other.client_ids_.end());  // first, as in Add
  known_clients_.insert(other.client_ids_.begin(), other.client_ids_.end());
  num_counted_ += other.num_counted_;
  other.client_ids_.clear();
  for (size_t t = 0; t < accumulators_.size(); ++t) {
    RETURN_IF_ERROR(accumulators_[t]->MergeFrom(std::move(*other.accumulators_[t])));
  }
  return MergeIfDue();
}

absl::Status Aggregation::CheckKeepsAll() const {
  for (size_t t = 0; t < accumulators_.size(); ++t) RETURN_IF_ERROR(CheckKeepsAll(t));
  return absl::OkStatus();
}

absl::Status Aggregation::CheckKeepsAll(size_t tensor) const {
  if (accumulators_[tensor]->KeepsAll()) return absl::OkStatus();
  const std::string reason = OrderMatters(specs_[tensor])
                                 ? absl::StrCat("to stay within the memory_limit ", memory_limit_)
                                 : "as they arrived, since their order does not matter for its result";
  return absl::FailedPreconditionError(absl::StrCat(Quoted(specs_[tensor]), ": its submissions have been merged ",
                                                    reason, ", so that none can be taken out"));
}

absl::Status Aggregation::CheckTakesFactors() const {
  for (const TensorSpec& spec : tensors_) {
    if (TakesFactors(spec)) continue;
    const Op op = spec.aggregation.op;
    const bool ignores = op == Op::kUnion || op == Op::kMin || op == Op::kMax;
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(spec), ": weights can be multiplied by 0 and 1 only, since ",
        ignores               ? absl::StrCat("the op ", Name(op), " ignores weights")
        : IsFloat(spec.dtype) ? std::string(spec.privacy.has_value() ? "terms with privacy are made on arrival"
                                                                     : "binned sums are merged on arrival")
                              : std::string("sums of integers are exact and take integer weights, on arrival")));
  }
  return absl::OkStatus();
}

void Aggregation::MultiplyWeights(absl::Span<const double> factors) {
  const DefaultFloatEnvironment environment;
  for (TensorSpec& spec : tensors_) spec.aggregation.weighting = Weighting::kByWeight;
  for (size_t t = 0; t < accumulators_.size(); ++t) {
    specs_[t].aggregation.weighting = Weighting::kByWeight;
    accumulators_[t]->MultiplyWeights(factors);
  }
}

absl::StatusOr<std::vector<UpdateRows>> Aggregation::ReadPending(size_t tensor, RowOrder order) {
  const DefaultFloatEnvironment environment;
  ASSIGN_OR_RETURN(const std::vector<UpdateRows> added, accumulators_[tensor]->ReadPending(order));
  std::vector<UpdateRows> ordered;
  ordered.reserve(added.size());
  for (const uint32_t index : CanonicalOrder()) ordered.push_back(added[index]);
  return ordered;
}

uint64_t Aggregation::ReadBytes(absl::Span<const size_t> tensors) const {
  uint64_t bytes = 0;
  for (const size_t t : tensors) bytes = SaturatingAdd(bytes, accumulators_[t]->ReadBytes(nullptr));
  return bytes;
}

std::vector<std::string> Aggregation::SortedClientIds() const {
  std::vector<std::string> ids = client_ids_;
  std::sort(ids.begin(), ids.end());
  return ids;
}

void Aggregation::Remove(absl::Span<const uint32_t> indices) {
  order_.clear();
  for (const uint32_t index : indices) known_clients_.erase(client_ids_[index]);
  EraseAt(indices, client_ids_);
  num_counted_ -= indices.size();  // partials are merged, and never taken out
  if (is_private_) EraseAt(indices, digests_);
  for (const auto& accumulator : accumulators_) accumulator->Remove(indices);
}

const std::vector<uint32_t>& Aggregation::CanonicalOrder() const {
  if (order_.size() == client_ids_.size()) return order_;
  std::vector<uint32_t> order = folded_;
  order.resize(client_ids_.size());
  const auto others = order.begin() + static_cast<std::ptrdiff_t>(folded_.size());
  std::iota(others, order.end(), static_cast<uint32_t>(folded_.size()));
  // std::string compares bytes as unsigned char: the canonical order.
  std::sort(others, order.end(), [this](uint32_t a, uint32_t b) { return client_ids_[a] < client_ids_[b]; });
  return order_ = std::move(order);
}

bool Aggregation::OrderMattersSomewhere() const { return std::any_of(specs_.begin(), specs_.end(), OrderMatters); }

absl::Status Aggregation::MergePending() {
  const DefaultFloatEnvironment environment;
  for (size_t t = 0; t < accumulators_.size(); ++t) {
    if (!OrderMatters(specs_[t])) RETURN_IF_ERROR(accumulators_[t]->FoldPending({}));
  }
  return absl::OkStatus();
}

absl::Status Aggregation::FoldPending() {
  const DefaultFloatEnvironment environment;
  if (order_statistic_ != nullptr) return KeepsSubmissionsError(*order_statistic_);
  RETURN_IF_ERROR(MergePending());
  if (!OrderMattersSomewhere()) return absl::OkStatus();
  const std::vector<uint32_t> order = CanonicalOrder();
  std::vector<uint32_t> folded = order;  // copied first, so that a failed allocation changes nothing
  for (size_t t = 0; t < accumulators_.size(); ++t) {
    if (!OrderMatters(specs_[t])) continue;
    RETURN_IF_ERROR(accumulators_[t]->FoldPending(order));
    // With the first fold the order counts, even if the fold of another tensor fails.
    if (folded_.size() != order.size()) folded_.swap(folded);
  }
  return absl::OkStatus();
}

size_t Aggregation::memory_bytes() const {
  size_t bytes = 0;
  for (const auto& accumulator : accumulators_) {
    if (accumulator != nullptr) bytes += accumulator->memory_bytes();
  }
  return bytes;
}

}  // namespace sparseagg
