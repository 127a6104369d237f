#include "service/rounds/round_sum.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "service/admission/process_memory.h"

namespace sparseagg::service {
namespace {

// Upper estimate of the memory of a round, and of each of its tensors, without spec, submissions and result.
constexpr uint64_t kRoundOverheadBytes = 4096;
// Upper estimate of the memory of a committed client, in the round and in the aggregation, without its ids.
constexpr uint64_t kSubmissionOverheadBytes = 1024;

}  // namespace

absl::Status RoundSum::Create(Engine& engine, const std::string* noise_key) {
  fixed_bytes_ = kRoundOverheadBytes * (1 + config_.tensors.size()) + config_.wire_spec.size();
  privacy::NoiseSource noise;
  if (noise_key != nullptr) noise = {*noise_key, config_.tenant, config_.id, config_.release_id};
  ASSIGN_OR_RETURN(aggregation_, ToStatus([&] {
                     return Aggregation::Create(engine, config_.tensors, /*memory_limit=*/0, std::move(noise));
                   }));
  engine_ = &engine;
  if (config_.keep_submissions) aggregation_->DeferMerges();
  if (!config_.homes.servers.empty()) exported_.resize(config_.tensors.size());
  const uint64_t bytes = BytesWith(nullptr);
  const bool is_dense = bytes > aggregation_->memory_bytes();
  // Without a limit, what no memory can hold is refused here all the same, and not when clients have done their work.
  if (is_dense && reservation_.limit() == 0) {
    static const uint64_t most_bytes = ProcessMemory();  // which reads files
    if (bytes > most_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("dense results of ", bytes,
                                                       " bytes, where the process may have ", most_bytes,
                                                       " bytes of memory; ask for sparse results"));
    }
  }
  return reservation_.Grow(SaturatingAdd(fixed_bytes_, bytes), is_dense ? "a round with dense results" : "a round",
                           is_dense ? "ask for sparse results, which hold only the keys of submissions" : "");
}

uint64_t RoundSum::SubmissionBytes(absl::string_view client_id, absl::string_view submission_id, absl::string_view tag,
                                   absl::string_view leaf, size_t num_chunk_hashes) {
  // The client id is twice in the table of submissions and twice in the aggregation; retries bring another submission
  // id and tag, and other chunks. A leaf is copied for the certificate, and has two hashes in the tree.
  const uint64_t leaf_bytes = leaf.empty() ? 0 : 2 * (leaf.size() + sizeof(std::string)) + 64;
  const uint64_t chunk_bytes = 2 * sizeof(ContentHash) * num_chunk_hashes;
  return kSubmissionOverheadBytes + 4 * client_id.size() + 2 * (submission_id.size() + tag.size()) + leaf_bytes +
         chunk_bytes;
}

absl::Status RoundSum::ReserveForAdd(uint64_t submission_bytes, const PreparedSubmission& prepared,
                                     uint64_t upload_bytes) {
  const bool holds = Holds(prepared);
  if (holds && held_ == nullptr) {
    ASSIGN_OR_RETURN(held_, ToStatus([&] { return Aggregation::Create(*engine_, config_.tensors); }));
    held_->DeferMerges();
  }
  const auto reserve = [&] {
    const uint64_t kept_bytes = fixed_bytes_ + submissions_bytes_ + submission_bytes;
    const uint64_t sum_bytes = BytesWith(holds ? nullptr : &prepared);
    const uint64_t held_bytes = held_ == nullptr ? 0 : held_->BytesWith(holds ? &prepared : nullptr);
    const uint64_t wanted = SaturatingAdd(kept_bytes, SaturatingAdd(sum_bytes, held_bytes));
    const uint64_t reserved = reservation_.bytes() + upload_bytes;
    if (wanted <= reserved) return absl::OkStatus();
    return reservation_.Grow(wanted - reserved, "a submission, with the result's growth,");
  };
  absl::Status reserved = reserve();
  if (reserved.ok() || !config_.MergesOnArrival()) return reserved;
  RETURN_IF_ERROR(MergePending());
  return reserve();
}

bool RoundSum::Holds(const PreparedSubmission& prepared) const {
  const uint64_t share = config_.MaxShare();
  return !config_.homes.servers.empty() && share != config_.max_submissions && config_.MergesOnArrival() &&
         aggregation_->num_counted() + prepared.num_submissions > share;
}

absl::Status RoundSum::MergeHeld() {
  if (is_broken_) return absl::InternalError("merging submissions beyond the server's share has failed: restart it");
  if (held_ == nullptr) return absl::OkStatus();
  const uint64_t num_before = aggregation_->num_submissions();
  const absl::Status merged = ToStatus([&] { return aggregation_->MergeFrom(std::move(*held_)); });
  is_broken_ = !merged.ok() && aggregation_->num_submissions() != num_before;
  if (merged.ok()) held_ = nullptr;
  UpdateReservation();
  return merged;
}

uint64_t RoundSum::SumBytes() const {
  const bool is_exported =
      !exported_.empty() && std::all_of(exported_.begin(), exported_.end(), [](bool each) { return each; });
  const uint64_t held_bytes = held_ == nullptr ? 0 : held_->BytesWith(nullptr);
  return SaturatingAdd(held_bytes, is_exported ? aggregation_->memory_bytes() : BytesWith(nullptr));
}

void RoundSum::UpdateReservation() { reservation_.SetTo(fixed_bytes_ + submissions_bytes_ + SumBytes()); }

absl::Status RoundSum::Add(const std::string& client_id, PreparedSubmission prepared, uint64_t submission_bytes,
                           Reservation& upload, bool& is_partial) {
  Aggregation& sum = Holds(prepared) ? *held_ : *aggregation_;
  const uint64_t num_before = sum.num_submissions();
  absl::Status added = ToStatus([&] { return sum.Add(client_id, std::move(prepared)); });
  if (!added.ok()) {
    is_partial = sum.num_submissions() != num_before;
    if (!is_partial) UpdateReservation();
    return added;
  }
  submissions_bytes_ += submission_bytes;
  reservation_.Absorb(upload);
  UpdateReservation();
  MergeIfMemoryIsShort();
  return absl::OkStatus();
}

void RoundSum::MergeIfMemoryIsShort() {
  const bool halves = aggregation_->memory_bytes() / 2 >= merged_bytes_;
  // An error is not the submission's, and leaves the aggregation as it was.
  if (budget_.IsShort() && halves && config_.MergesOnArrival()) MergePending().IgnoreError();
}

absl::Status RoundSum::MergePending() {
  absl::Status merged = ToStatus([&] { return aggregation_->MergePending(); });
  if (merged.ok()) merged_bytes_ = aggregation_->memory_bytes();
  UpdateReservation();
  return merged;
}

Aggregation* RoundSum::Find(absl::string_view client_id, std::vector<uint32_t>& index) {
  for (Aggregation* const holder : {held_.get(), aggregation_.get()}) {
    if (holder == nullptr) continue;
    const std::vector<std::string>& ids = holder->client_ids();
    const auto found = std::find(ids.begin(), ids.end(), client_id);
    if (found == ids.end()) continue;
    index.push_back(static_cast<uint32_t>(found - ids.begin()));
    return holder;
  }
  return aggregation_.get();
}

void RoundSum::RemoveFrom(Aggregation& holder, absl::Span<const uint32_t> indices) {
  holder.Remove(indices);
  UpdateReservation();
}

absl::StatusOr<std::vector<std::vector<UpdateRows>>> RoundSum::ReadPending(absl::Span<const size_t> tensors,
                                                                           RowOrder order) {
  // A cluster's round has reserved it.
  const uint64_t bytes = exported_.empty() ? aggregation_->ReadBytes(tensors) : 0;
  RETURN_IF_ERROR(reservation_.Grow(bytes, "sorting the submissions of a round", ""));
  auto read = ToStatus([&]() -> absl::StatusOr<std::vector<std::vector<UpdateRows>>> {
    std::vector<std::vector<UpdateRows>> all;
    for (const size_t tensor : tensors) {
      ASSIGN_OR_RETURN(all.emplace_back(), aggregation_->ReadPending(tensor, order));
    }
    return all;
  });
  for (const size_t tensor : tensors) {
    if (read.ok() && order == RowOrder::kAscending && !exported_.empty()) exported_[tensor] = true;
  }
  UpdateReservation();
  return read;
}

absl::StatusOr<PartialBlock> RoundSum::ExportPartial(size_t tensor, uint64_t first, uint64_t last, uint64_t max_rows) {
  auto block = ToStatus([&] { return aggregation_->ExportPartial(tensor, first, last, max_rows); });
  if (block.ok() && !exported_.empty()) exported_[tensor] = true;
  UpdateReservation();
  return block;
}

absl::StatusOr<Results> RoundSum::Finish() {
  absl::StatusOr<Results> results = ToStatus([&]() -> absl::StatusOr<Results> {
    ASSIGN_OR_RETURN(std::vector<Result> finished, std::move(*aggregation_).Finish());
    return std::make_shared<const std::vector<Result>>(std::move(finished));
  });
  Free();
  return results;
}

void RoundSum::ReserveResults(const Results& results, bool keeps_submissions) {
  if (!keeps_submissions) submissions_bytes_ = 0;
  uint64_t bytes = fixed_bytes_ + submissions_bytes_;
  if (results != nullptr) {
    for (const Result& result : *results) bytes += result.memory_bytes();
  }
  reservation_.SetTo(bytes);
}

}  // namespace sparseagg::service
