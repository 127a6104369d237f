#include "service/rounds/round_certificate.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

// So that a page with them, and the certificate with their hashes, fit into one message of an ordinary gRPC client.
constexpr uint64_t kMaxWithdrawnBytes = uint64_t{2} << 20;

absl::Status NotAskedFor() {
  return absl::FailedPreconditionError("the round has no certificate: its spec does not ask for one");
}

}  // namespace

absl::Status ProofIndex::Prove(const std::string& key, SubmissionReceipt& receipt) const {
  const auto found = std::lower_bound(keys_.begin(), keys_.end(), key);
  if (found == keys_.end() || *found != key) return absl::InternalError("a client is not in its round's tree");
  receipt.leaf_index = static_cast<uint64_t>(found - keys_.begin());
  receipt.tree_size = keys_.size();
  receipt.path = tree_->PathOf(*receipt.leaf_index);
  return absl::OkStatus();
}

absl::Status RoundCertificate::Check(const RoundConfig& config, const RoundServices& services) {
  if (!config.has_certificate) return absl::OkStatus();
  if (config.id.empty()) {
    return absl::InvalidArgumentError("certificate: a one-shot call has no round that could get one");
  }
  if (services.certifier == nullptr) {
    return absl::FailedPreconditionError(
        "the spec asks for a certificate, and the server has no key to sign it (--certificate-key)");
  }
  if (config.allows_export && services.store == nullptr) {
    return absl::FailedPreconditionError(
        "certificate.allow_export needs a server with a data directory (--data-dir), which keeps the submissions");
  }
  return absl::OkStatus();
}

void RoundCertificate::ReserveWithdrawn(size_t number) {
  const size_t size = withdrawn_.size();
  if (withdrawn_.capacity() - size < number) withdrawn_.reserve(std::max(size + number, 2 * size));
}

void RoundCertificate::AddWithdrawn(std::string leaf) {
  withdrawn_bytes_ += leaf.size();
  withdrawn_.push_back(std::move(leaf));
}

void RoundCertificate::RestoreWithdrawn(std::vector<std::string> leaves) {
  withdrawn_ = std::move(leaves);
  withdrawn_bytes_ = 0;
  for (const std::string& leaf : withdrawn_) withdrawn_bytes_ += leaf.size();
}

absl::Status RoundCertificate::CheckMayWithdraw(absl::string_view leaf) const {
  if (withdrawn_bytes_ + leaf.size() <= kMaxWithdrawnBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the certificate lists ", withdrawn_.size(), " withdrawn submissions, whose leaves have ",
                   withdrawn_bytes_, " bytes; up to ", kMaxWithdrawnBytes,
                   " are kept, so that no more can be withdrawn; a close with only_client_ids leaves others out"));
}

void RoundCertificate::Set(absl::StatusOr<IssuedCertificate> issued) {
  error_ = issued.status();
  if (issued.ok()) issued_ = *std::move(issued);
}

absl::StatusOr<std::string> RoundCertificate::Envelope() const {
  RETURN_IF_ERROR(error_);
  return issued_.envelope;
}

std::string Round::MakeLeaf(const Entry& entry) const {
  if (!config_->has_certificate) return "";
  const CompleteUpload& upload = entry.upload;
  const std::optional<uint64_t> base_version =
      entry.place.has_value() ? std::optional(entry.place->base_version) : std::nullopt;
  return services_.certifier->MakeLeaf(config_->leaf_salt_key, entry.key, upload.submission_id, upload.content.weight(),
                                       base_version, upload.content.Content());
}

absl::StatusOr<Results> Round::Certify(absl::StatusOr<Results> results) {
  std::vector<std::string> leaves;  // copied: a Cancel drops the submissions meanwhile
  std::vector<std::string> withdrawn;
  std::vector<double> client_weights;
  const auto name = results.ok() ? StateRecord::Name::kDone : StateRecord::Name::kFailed;
  const std::string reason = results.ok() ? "" : results.status().ToString();
  const absl::Time now = services_.clock.WallTime();
  StateRecord record;
  std::string earlier_content;
  {
    MutexLock lock(&mu_);
    withdrawn = certificate_.withdrawn();
    bool has_weights = false;
    for (const auto& [client, submission] : committed_.all()) {
      leaves.push_back(submission.leaf);
      client_weights.push_back(submission.client_weight.value_or(1.0));
      has_weights |= submission.client_weight.has_value();
    }
    if (!has_weights) client_weights.clear();
    record = life_.NextRecord(name, reason, now);
    earlier_content = certificate_.issued().content;
  }
  const std::vector<absl::string_view> views(leaves.begin(), leaves.end());
  const std::vector<absl::string_view> withdrawn_views(withdrawn.begin(), withdrawn.end());
  const RoundState state = results.ok() ? RoundState::kDone : RoundState::kFailed;
  absl::StatusOr<IssuedCertificate> issued =
      services_.certifier->Certify({*config_, state, reason, create_time_, record.close_time, views, withdrawn_views,
                                    client_weights, results.ok() ? results->get() : nullptr, services_.engine.name()});
  if (!earlier_content.empty()) {  // of a run before the restart
    if (issued.ok() && issued->content == earlier_content) return results;
    return absl::DataLossError("the submissions or results differ from those of the certificate that was issued");
  }
  absl::Status status = issued.status();
  if (status.ok()) {
    record.certificate = issued->envelope;
    record.certificate_content = issued->content;
    MutexLock lock(&mu_);
    if (life_.state() != RoundState::kFinalizing) return results;  // cancelled, which the store has
    status = journal_->PutState(record);
  }
  FailPoint("certificate_written");
  if (status.ok()) status = journal_->AwaitDurable();
  if (!status.ok()) {
    Log(LogLevel::kError, "certificate_not_issued", {{"round", config_->LogName()}, {"reason", status.message()}});
  }
  MutexLock lock(&mu_);
  certificate_.Set(status.ok() ? std::move(issued) : status);
  return results;
}

absl::StatusOr<std::string> Round::GetCertificate() const {
  if (!config_->has_certificate) return NotAskedFor();
  MutexLock lock(&mu_);
  const RoundState state = life_.state();
  if (state == RoundState::kDone || state == RoundState::kFailed) {
    ASSIGN_OR_RETURN(std::string envelope, certificate_.Envelope());
    if (!envelope.empty()) return envelope;
  }
  return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(state), " and has no certificate",
                                                    life_.reason().empty() ? "" : ": ", life_.reason()));
}

std::shared_ptr<const ProofIndex> Round::FindProofs() const {
  std::vector<std::string> keys;
  std::vector<std::string> leaves;
  {
    MutexLock lock(&mu_);
    const bool is_certified = life_.has_ended() && !certificate_.issued().envelope.empty();
    if (!is_certified || certificate_.proofs() != nullptr) return certificate_.proofs();
    for (const auto& [key, submission] : committed_.all()) {
      keys.push_back(key);
      leaves.push_back(submission.leaf);
    }
  }
  const std::vector<absl::string_view> views(leaves.begin(), leaves.end());
  auto proofs = std::make_shared<const ProofIndex>(std::move(keys), services_.certifier->MakeTree(views));
  MutexLock lock(&mu_);
  certificate_.SetProofs(proofs);
  return proofs;
}

absl::StatusOr<SubmissionReceipt> Round::GetReceipt(absl::string_view client_id,
                                                    absl::string_view submission_id) const {
  if (!config_->has_certificate) return NotAskedFor();
  SubmissionReceipt receipt;
  std::string key;
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const auto found, committed_.FindOfClient(client_id, submission_id, config_->stream != nullptr));
    key = found->first;
    receipt.leaf = found->second.leaf;
  }
  ASSIGN_OR_RETURN(receipt.promise, services_.certifier->Promise(*config_, create_time_, receipt.leaf));
  const std::shared_ptr<const ProofIndex> proofs = FindProofs();
  if (proofs != nullptr) RETURN_IF_ERROR(proofs->Prove(key, receipt));
  return receipt;
}

absl::StatusOr<BundlePage> ReadBundle(const Round& round, uint64_t max_bytes, absl::string_view page_token) {
  if (!round.config().allows_export) {
    return absl::FailedPreconditionError("the round's spec does not allow an export (certificate.allow_export)");
  }
  uint64_t sequence = 0;
  std::string next_client;
  if (!page_token.empty()) {
    ASSIGN_OR_RETURN(const absl::string_view place, PlaceOf(page_token, round.create_time()));
    const std::vector<absl::string_view> parts = absl::StrSplit(place, absl::MaxSplits('.', 1));
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &sequence)) return ForeignPageToken(page_token);
    next_client = std::string(parts[1]);
  }
  const RoundState state = round.state();  // DONE is the last state, and keeps the submissions
  if (state != RoundState::kDone) {
    return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(state), ", and not DONE"));
  }
  BundlePage page;
  uint64_t bytes = 0;
  while (true) {
    std::optional<SubmissionTable::Map::value_type> next;
    round.ReadCommitted([&](const SubmissionTable::Map& all) {
      const auto found = all.lower_bound(next_client);
      if (found != all.end()) next.emplace(*found);
    });
    if (!next.has_value()) return page;
    const auto& [client_id, submission] = *next;
    if (client_id != next_client) sequence = 0;
    for (; sequence < submission.num_chunks; ++sequence) {
      if (bytes >= max_bytes && !page.chunks.empty()) {
        page.next_page_token = MakePageToken(round.create_time(), absl::StrCat(sequence, ".", client_id));
        return page;
      }
      ASSIGN_OR_RETURN(std::string chunk, round.journal().ReadChunk(submission.upload, sequence));
      bytes += chunk.size();
      const bool last = sequence + 1 == submission.num_chunks;
      page.chunks.push_back({client_id, submission.receipt.submission_id, std::move(chunk), last,
                             submission.client_weight, last ? submission.leaf : ""});
    }
    next_client = client_id + '\0';  // the least id after it
    sequence = 0;
  }
}

}  // namespace sparseagg::service
