// Round: the certificate, receipts and the export.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/base/log.h"
#include "service/rounds/page_token.h"
#include "service/rounds/round.h"

namespace sparseagg::service {
namespace {

absl::Status NotAskedFor() {
  return absl::FailedPreconditionError("the round has no certificate: its spec does not ask for one");
}

}  // namespace

absl::Status Round::CheckCertifies(const RoundConfig& config, const RoundServices& services) {
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

std::string Round::MakeLeaf(const UploadHandle& handle, const Upload& upload) const {
  if (!config_->has_certificate) return "";
  const std::optional<uint64_t> base_version =
      handle.stream_.has_value() ? std::optional(handle.stream_->base_version) : std::nullopt;
  return services_.certifier->MakeLeaf(config_->leaf_salt_key, handle.client_id, handle.submission_id, upload.weight(),
                                       base_version, upload.Content());
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
    withdrawn = withdrawn_leaves_;
    bool has_weights = false;
    for (const auto& [client, submission] : committed_.all()) {
      leaves.push_back(submission.leaf);
      client_weights.push_back(submission.client_weight.value_or(1.0));
      has_weights |= submission.client_weight.has_value();
    }
    if (!has_weights) client_weights.clear();
    record = life_.NextRecord(name, reason, now);
    earlier_content = certificate_.content;
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
  certificate_error_ = status;
  if (status.ok()) certificate_ = *std::move(issued);
  return results;
}

absl::StatusOr<std::string> Round::GetCertificate() const {
  if (!config_->has_certificate) return NotAskedFor();
  MutexLock lock(&mu_);
  const RoundState state = life_.state();
  if (state == RoundState::kDone || state == RoundState::kFailed) {
    RETURN_IF_ERROR(certificate_error_);
    if (!certificate_.envelope.empty()) return certificate_.envelope;
  }
  return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(state), " and has no certificate",
                                                    life_.reason().empty() ? "" : ": ", life_.reason()));
}

std::shared_ptr<const Round::ProofIndex> Round::FindProofIndex() const {
  auto index = std::make_shared<ProofIndex>();
  std::vector<std::string> leaves;
  {
    MutexLock lock(&mu_);
    const bool is_certified = life_.has_ended() && !certificate_.envelope.empty();
    if (!is_certified || proofs_ != nullptr) return proofs_;
    for (const auto& [client, submission] : committed_.all()) {
      index->client_ids.push_back(client);
      leaves.push_back(submission.leaf);
    }
  }
  index->tree = services_.certifier->MakeTree(std::vector<absl::string_view>(leaves.begin(), leaves.end()));
  MutexLock lock(&mu_);
  proofs_ = std::move(index);
  return proofs_;
}

absl::StatusOr<Round::SubmissionReceipt> Round::GetReceipt(absl::string_view client_id,
                                                           absl::string_view submission_id) const {
  if (!config_->has_certificate) return NotAskedFor();
  SubmissionReceipt receipt;
  std::string key;
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const SubmissionTable::Map::const_iterator found, FindOfClientLocked(client_id, submission_id));
    key = found->first;
    receipt.leaf = found->second.leaf;
  }
  ASSIGN_OR_RETURN(receipt.promise, services_.certifier->Promise(*config_, create_time_, receipt.leaf));
  const std::shared_ptr<const ProofIndex> proofs = FindProofIndex();
  if (proofs == nullptr) return receipt;
  const std::vector<std::string>& ids = proofs->client_ids;
  const auto found = std::lower_bound(ids.begin(), ids.end(), key);
  if (found == ids.end() || *found != key) return absl::InternalError("a client is not in its round's tree");
  receipt.leaf_index = static_cast<uint64_t>(found - ids.begin());
  receipt.tree_size = ids.size();
  receipt.path = proofs->tree->PathOf(*receipt.leaf_index);
  return receipt;
}

absl::StatusOr<Round::BundlePage> Round::ReadBundle(uint64_t max_bytes, absl::string_view page_token) const {
  if (!config_->allows_export) {
    return absl::FailedPreconditionError("the round's spec does not allow an export (certificate.allow_export)");
  }
  uint64_t sequence = 0;
  std::string next_client;
  if (!page_token.empty()) {
    ASSIGN_OR_RETURN(const absl::string_view place, PlaceOf(page_token, create_time_));
    const std::vector<absl::string_view> parts = absl::StrSplit(place, absl::MaxSplits('.', 1));
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &sequence)) return ForeignPageToken(page_token);
    next_client = std::string(parts[1]);
  }
  BundlePage page;
  uint64_t bytes = 0;
  while (true) {
    std::string client_id;
    CommittedSubmission submission;
    {
      MutexLock lock(&mu_);
      if (life_.state() != RoundState::kDone) {
        return absl::FailedPreconditionError(absl::StrCat("the round is ", Name(life_.state()), ", and not DONE"));
      }
      const auto found = committed_.all().lower_bound(next_client);
      if (found == committed_.all().end()) return page;
      std::tie(client_id, submission) = *found;
      if (client_id != next_client) sequence = 0;
    }
    for (; sequence < submission.num_chunks; ++sequence) {
      if (bytes >= max_bytes && !page.chunks.empty()) {
        page.next_page_token = MakePageToken(create_time_, absl::StrCat(sequence, ".", client_id));
        return page;
      }
      ASSIGN_OR_RETURN(std::string chunk, journal_->ReadChunk(submission.upload, sequence));
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
