#include "service/codec/round_codec.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/page_format.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/round_config.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
namespace {

// The most bytes of a round's state, counts and times, and of a tensor's summary without its name.
constexpr uint64_t kMaxCountsBytes = 4096;
constexpr uint64_t kMaxSummaryBytes = 256;

static_assert(static_cast<int>(RoundState::kOpen) == v1::ROUND_STATE_OPEN - 1 &&
              static_cast<int>(RoundState::kFinalizing) == v1::ROUND_STATE_FINALIZING - 1 &&
              static_cast<int>(RoundState::kDone) == v1::ROUND_STATE_DONE - 1 &&
              static_cast<int>(RoundState::kFailed) == v1::ROUND_STATE_FAILED - 1 &&
              static_cast<int>(RoundState::kCancelled) == v1::ROUND_STATE_CANCELLED - 1 &&
              static_cast<int>(RoundState::kSealed) == v1::ROUND_STATE_SEALED - 1);

void EncodeSummary(const TensorSpec& spec, const Result& result, v1::TensorSummary* wire) {
  wire->set_name(spec.name);
  wire->set_num_keys(result.num_keys);
  wire->set_layout(result.layout == Layout::kDense ? v1::TENSOR_LAYOUT_DENSE : v1::TENSOR_LAYOUT_SPARSE);
  wire->set_dtype(static_cast<v1::DType>(EncodeDType(result.dtype)));
  wire->set_row_width(result.row_width);
  wire->set_num_rows(result.num_rows);
  wire->set_has_values(result.has_values);
  wire->set_has_counts(ReturnsCounts(spec));
  wire->set_has_weights(spec.aggregation.return_weights);
  wire->set_num_cut_keys(result.num_cut_keys);
  wire->set_has_moments(spec.aggregation.return_moments);
}

void EncodeClip(const ClipSummary& clip, v1::ClipSummary* wire) {
  wire->set_num_clipped(clip.num_clipped);
  wire->set_num_l2(clip.num_l2);
  wire->set_num_linf(clip.num_linf);
  wire->set_num_max_keys(clip.num_max_keys);
  for (const uint64_t count : clip.factors) wire->add_factors(count);
}

void EncodeTimeline(const RoundTimeline& timeline, v1::RoundTimeline* wire) {
  EncodeDuration(timeline.finish, wire->mutable_finish());
  EncodeDuration(timeline.open, wire->mutable_open());
  for (const RoundStage stage : kAllStages) {
    const StageTime& time = timeline.stages[static_cast<size_t>(stage)];
    v1::StageTime* encoded = wire->add_stages();
    encoded->set_stage(std::string(Name(stage)));
    EncodeDuration(time.busy, encoded->mutable_busy());
    EncodeDuration(time.wait, encoded->mutable_wait());
    encoded->set_bytes(time.bytes);
  }
  wire->set_longest(std::string(Name(LongestStage(timeline.stages))));
}

void EncodePlace(const StreamPlace& place, v1::StreamCommit* wire) {
  wire->set_version(place.version);
  wire->set_position(place.position);
  wire->set_base_version(place.base_version);
  wire->set_staleness(place.staleness());
  wire->set_staleness_weight(place.weight);
}

}  // namespace

std::string RoundName(const RoundConfig& config) { return config.id.empty() ? "" : RoundName(config.id); }

// `Message`: v1::Round or v1::Stream.
template <typename Message>
void EncodeRefusals(const IntakeSnapshot& snapshot, Message* wire) {
  wire->set_num_refused(snapshot.num_refused);
  wire->set_num_uploads(snapshot.num_uploads);
  for (const Refusal& refusal : snapshot.recent_refusals) {
    v1::Refusal* const encoded = wire->add_recent_refusals();
    encoded->set_client_id(refusal.client_id);
    encoded->set_code(absl::StatusCodeToString(refusal.code));
    encoded->set_reason(refusal.reason);
    EncodeTime(refusal.time, encoded->mutable_time());
  }
}

void EncodeRound(const RoundConfig& config, const RoundSnapshot& snapshot, absl::string_view engine, v1::Round* wire) {
  wire->set_name(RoundName(config));
  wire->mutable_spec()->ParseFromString(config.wire_spec);
  wire->set_state(static_cast<v1::RoundState>(static_cast<int>(snapshot.state) + 1));
  wire->set_state_reason(snapshot.reason);
  wire->set_num_submissions(snapshot.num_submissions);
  wire->set_num_tuples(snapshot.num_tuples);
  wire->set_num_bytes(snapshot.num_bytes);
  EncodeRefusals(snapshot, wire);
  EncodeTime(snapshot.create_time, wire->mutable_create_time());
  if (IsClosed(snapshot.state)) EncodeTime(snapshot.close_time, wire->mutable_close_time());
  if (HasEnded(snapshot.state)) {
    EncodeTime(snapshot.end_time, wire->mutable_end_time());
    if (snapshot.expire_time != absl::InfiniteFuture()) EncodeTime(snapshot.expire_time, wire->mutable_expire_time());
  }
  EncodeTimeline(snapshot.timeline, wire->mutable_timeline());
  wire->set_engine(std::string(engine));
  if (config.HasClip()) EncodeClip(snapshot.clip, wire->mutable_clip());
  wire->set_release_id(config.release_id);
  if (snapshot.results == nullptr) return;
  for (size_t t = 0; t < config.tensors.size(); ++t) {
    const Result& result = (*snapshot.results)[t];
    v1::TensorSummary* summary = wire->add_results();
    EncodeSummary(config.tensors[t], result, summary);
    summary->set_plan(result.plan);
  }
}

uint64_t MostRoundBytes(const RoundConfig& config, size_t num_refusals) {
  uint64_t bytes = kMaxCountsBytes + num_refusals * RecentRefusals::kMaxRefusalBytes + config.wire_spec.size();
  for (const TensorSpec& tensor : config.tensors) bytes += kMaxSummaryBytes + tensor.name.size();
  return bytes;
}

void EncodeSubmission(const ListedSubmission& submission, bool with_leaf, v1::Submission* wire) {
  wire->set_client_id(submission.client_id);
  wire->set_submission_id(submission.submission_id);
  wire->set_num_tuples(submission.num_tuples);
  wire->set_num_bytes(submission.num_bytes);
  wire->set_content_hash(HashBytes(submission.hash));
  if (submission.weight.has_value()) wire->set_weight(*submission.weight);
  if (submission.client_weight.has_value()) wire->set_client_weight(*submission.client_weight);
  if (submission.stream.has_value()) EncodePlace(*submission.stream, wire->mutable_stream_commit());
  if (with_leaf) wire->set_leaf(submission.leaf);
}

uint64_t MostLeafBytes(const RoundConfig& config) {
  uint64_t bytes = 2 * kMaxSubmissionBytes;
  for (const TensorSpec& spec : config.tensors) bytes += 2 * (64 + spec.name.size());
  return bytes;
}

uint64_t MostReceiptBytes(const RoundConfig& config) { return 16384 + MostLeafBytes(config); }

void EncodeReceipt(absl::string_view round_name, const std::string& client_id, SubmissionReceipt receipt,
                   v1::SubmissionReceipt* wire) {
  wire->set_round(std::string(round_name));
  wire->set_client_id(client_id);
  wire->set_leaf(std::move(receipt.leaf));
  wire->set_promise(std::move(receipt.promise));
  if (!receipt.leaf_index.has_value()) return;
  wire->set_leaf_index(*receipt.leaf_index);
  wire->set_tree_size(receipt.tree_size);
  for (const Sha256Digest& digest : receipt.path) wire->add_path(digest.data(), digest.size());
}

void EncodeBundle(BundlePage page, v1::ExportRoundResponse* wire) {
  for (BundleChunk& chunk : page.chunks) {
    v1::ExportedChunk* const each = wire->add_chunks();
    each->set_client_id(std::move(chunk.client_id));
    each->set_submission_id(std::move(chunk.submission_id));
    each->set_chunk(std::move(chunk.bytes));
    each->set_last(chunk.last);
    if (chunk.client_weight.has_value()) each->set_client_weight(*chunk.client_weight);
    each->set_leaf(std::move(chunk.leaf));
  }
  wire->set_next_page_token(std::move(page.next_page_token));
}

void EncodeInspection(const InspectionPage& page, v1::InspectRoundResponse* wire) {
  wire->set_num_clients(page.num_clients);
  wire->set_first_row(page.first_row);
  for (const std::string& client_id : page.client_ids) wire->add_client_ids(client_id);
  wire->set_gram(BytesOf(page.gram.data(), 0, page.gram.size()));
  wire->set_squared_distances(BytesOf(page.squared_distances.data(), 0, page.squared_distances.size()));
  wire->set_overlap(BytesOf(page.overlap.data(), 0, page.overlap.size()));
  wire->set_next_page_token(page.next_page_token);
}

void EncodeCommit(absl::string_view round_name, const Receipt& receipt, v1::CommitSubmissionResponse* wire) {
  wire->set_round(std::string(round_name));
  wire->set_client_id(receipt.client_id);
  wire->set_submission_id(receipt.submission_id);
  wire->set_duplicate(receipt.duplicate);
  wire->set_num_tuples(receipt.num_tuples);
  wire->set_num_bytes(receipt.num_bytes);
  if (receipt.stream.has_value()) EncodePlace(*receipt.stream, wire->mutable_stream_commit());
}

void EncodeProgress(absl::string_view round_name, const UploadProgress& progress, v1::UploadStatus* wire) {
  wire->set_round(std::string(round_name));
  wire->set_next_sequence(progress.next_sequence);
  wire->set_received_tuples(progress.received_tuples);
  wire->set_complete(progress.complete);
  wire->set_committed(progress.committed);
}

void EncodeLimits(const Limits& limits, v1::ServerLimits* wire) {
  wire->set_memory_limit_bytes(limits.memory_limit_bytes);
  wire->set_max_message_bytes(limits.max_message_bytes);
  wire->set_max_page_bytes(limits.max_page_bytes);
  wire->set_max_open_rounds(limits.max_open_rounds);
  wire->set_max_tensors(limits.max_tensors);
  wire->set_max_row_width(limits.max_row_width);
  wire->set_max_submissions(limits.max_submissions);
  wire->set_max_tuples_per_submission(limits.max_tuples_per_submission);
  wire->set_max_bytes_per_submission(limits.max_bytes_per_submission);
  EncodeDuration(limits.max_result_ttl, wire->mutable_max_result_ttl());
  EncodeDuration(limits.max_wait, wire->mutable_max_wait());
  EncodeDuration(limits.upload_timeout, wire->mutable_upload_timeout());
  wire->set_max_uploads(limits.max_uploads);
  wire->set_max_connections(limits.max_connections);
  wire->set_max_open_tasks(limits.max_open_tasks);
  wire->set_max_task_bytes(limits.max_task_bytes);
  wire->set_max_waiting_leases(limits.max_waiting_leases);
  EncodeDuration(limits.max_lease, wire->mutable_max_lease());
  wire->set_max_open_rounds_per_tenant(limits.max_open_rounds_per_tenant);
  wire->set_max_memory_per_tenant(limits.max_memory_per_tenant);
  wire->set_max_uploads_per_tenant(limits.max_uploads_per_tenant);
  wire->set_max_transfers_per_tenant(limits.max_transfers_per_tenant);
  wire->set_max_submissions_per_second_per_tenant(limits.max_submissions_per_second_per_tenant);
}

void EncodePage(const TensorSpec& spec, const Result& result, RowInterval rows, const PageFormat& format, bool first,
                v1::ResultPage* wire) {
  v1::TensorSlice* slice = wire->mutable_slice();
  slice->set_tensor(spec.name);
  slice->set_num_keys(rows.end - rows.begin);
  if (result.layout == Layout::kDense) {
    slice->set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
    slice->set_first_key(rows.begin);
  } else {
    EncodePageKeys(result, rows, format, slice);
  }
  slice->set_keys_sorted(true);
  slice->set_keys_unique(true);
  slice->set_value_encoding(v1::VALUE_ENCODING_NONE);
  if (result.has_values) EncodePageValues(result, rows, format, slice);
  if (!result.counts.empty()) wire->set_counts(BytesOf(result.counts.data(), rows.begin, rows.end));
  if (!result.weights.empty()) wire->set_weights(BytesOf(result.weights.data(), rows.begin, rows.end));
  if (!result.moments.empty()) {
    wire->set_moments(BytesOf(result.moments.data(), rows.begin * result.row_width, rows.end * result.row_width));
  }
  if (first) EncodeSummary(spec, result, wire->mutable_summary());
}

namespace {

// Entries of a table of staleness weights.
constexpr int kMaxStaleness = 65536;

}  // namespace

absl::StatusOr<StreamConfig> DecodeStreamSpec(const v1::StreamSpec& spec, const Limits& limits, SpecSource source) {
  StreamConfig config;
  if (spec.staleness_weights_size() > kMaxStaleness) {
    return absl::InvalidArgumentError(absl::StrCat("staleness_weights has ", spec.staleness_weights_size(),
                                                   " entries; up to ", kMaxStaleness, " are allowed"));
  }
  if (spec.round().max_submissions() != 0) {
    return absl::InvalidArgumentError("round.max_submissions: is not of streams, whose field is buffer");
  }
  if (spec.buffer() == 0) return absl::InvalidArgumentError("buffer: is 0; a version needs at least one commit");
  v1::RoundSpec round = spec.round();
  round.set_max_submissions(spec.buffer());  // for which sums with privacy have room
  ASSIGN_OR_RETURN(config.round, DecodeRoundSpec(round, limits, source));
  config.buffer = spec.buffer();
  config.staleness_weights.assign(spec.staleness_weights().begin(), spec.staleness_weights().end());
  config.one_per_client = spec.one_per_client();
  if (spec.has_max_interval()) {
    ASSIGN_OR_RETURN(config.max_interval, DecodeDuration(spec.max_interval(), "max_interval"));
  }
  config.wire_spec = SerializeDeterministic(spec);
  return config;
}

void EncodeStream(const Stream& stream, v1::Stream* wire) {
  const StreamConfig& config = stream.config();
  const StreamSnapshot snapshot = stream.Snapshot();
  wire->set_name(StreamName(config.round.id));
  wire->mutable_spec()->ParseFromString(config.wire_spec);
  wire->set_version(snapshot.version);
  wire->set_num_buffered(snapshot.num_buffered);
  wire->set_num_commits(snapshot.num_commits);
  wire->set_oldest_version(snapshot.oldest_version);
  wire->mutable_staleness_counts()->Assign(snapshot.staleness_counts.begin(), snapshot.staleness_counts.end());
  wire->set_last_cut_cause(static_cast<v1::CutCause>(snapshot.last_cut_cause));
  if (snapshot.last_cut_time != absl::InfinitePast()) {
    EncodeTime(snapshot.last_cut_time, wire->mutable_last_cut_time());
  }
  EncodeRefusals(snapshot, wire);
  EncodeTime(stream.create_time(), wire->mutable_create_time());
}

uint64_t MostStreamBytes(const Stream& stream) {
  constexpr uint64_t kNumberBytes = 10;
  return MostRoundBytes(stream.intake().config(), stream.intake().num_recent_refusals()) +
         stream.config().wire_spec.size() + kNumberBytes * stream.config().staleness_weights.size();
}

void EncodeVersion(const StreamVersion& version, v1::StreamVersion* wire) {
  const RoundSnapshot snapshot = version.round->Snapshot();
  wire->set_version(version.version);
  wire->set_round(RoundName(version.round->config()));
  wire->set_state(static_cast<v1::RoundState>(static_cast<int>(snapshot.state) + 1));
  wire->set_state_reason(snapshot.reason);
  wire->set_num_submissions(snapshot.num_submissions);
  wire->set_cause(static_cast<v1::CutCause>(version.cause));
  if (version.cut_time != absl::InfinitePast()) EncodeTime(version.cut_time, wire->mutable_cut_time());
}

}  // namespace sparseagg::service
