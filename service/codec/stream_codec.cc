#include "service/codec/stream_codec.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/codec/round_codec.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/round_name.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {
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
  round.set_max_submissions(spec.buffer());  // of which fixed_point makes its scale
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
  v1::Round intake;
  EncodeRound(stream.intake().config(), stream.intake().Snapshot(), "", &intake);
  wire->set_num_refused(intake.num_refused());
  wire->set_num_uploads(intake.num_uploads());
  wire->mutable_create_time()->Swap(intake.mutable_create_time());
  wire->mutable_recent_refusals()->Swap(intake.mutable_recent_refusals());
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
