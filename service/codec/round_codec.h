// Encoders of rounds, submissions, result pages, streams and limits, with the most bytes of what they write, and the
// decoder of stream specs.
#ifndef SPARSEAGG_SERVICE_CODEC_ROUND_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_ROUND_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/result.h"
#include "service/base/limits.h"
#include "service/codec/page_format.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/round.h"
#include "service/rounds/round_certificate.h"
#include "service/rounds/sealed_reader.h"
#include "service/streams/stream.h"

namespace sparseagg::v1 {
class CommitSubmissionResponse;
class ExportRoundResponse;
class InspectRoundResponse;
class ResultPage;
class Round;
class ServerLimits;
class Stream;
class StreamSpec;
class StreamVersion;
class Submission;
class SubmissionReceipt;
class UploadStatus;
}  // namespace sparseagg::v1

namespace sparseagg::service {

// Returns: "rounds/ID"; "" for the round of a one-shot call, which has no id.
std::string RoundName(const RoundConfig& config);

// `engine`: its name for people.
void EncodeRound(const RoundConfig& config, const RoundSnapshot& snapshot, absl::string_view engine, v1::Round* wire);
// Returns: about the most bytes of the message that EncodeRound writes for any state of the round with so many recent
// refusals.
uint64_t MostRoundBytes(const RoundConfig& config, size_t num_refusals);
void EncodeSubmission(const ListedSubmission& submission, bool with_leaf, v1::Submission* wire);
void EncodeReceipt(absl::string_view round_name, const std::string& client_id, SubmissionReceipt receipt,
                   v1::SubmissionReceipt* wire);
void EncodeBundle(BundlePage page, v1::ExportRoundResponse* wire);
void EncodeInspection(const InspectionPage& page, v1::InspectRoundResponse* wire);
// About the most memory of the message of one submission without its leaf, its serialised form included.
inline constexpr uint64_t kMaxSubmissionBytes = 1024;
// The same of a submission with its leaf: ids, and a digest of each tensor.
uint64_t MostLeafBytes(const RoundConfig& config);
// The same of a receipt: leaf, promise and path.
uint64_t MostReceiptBytes(const RoundConfig& config);
// The answer to a commit.
void EncodeCommit(absl::string_view round_name, const Receipt& receipt, v1::CommitSubmissionResponse* wire);
void EncodeProgress(absl::string_view round_name, const UploadProgress& progress, v1::UploadStatus* wire);
void EncodeLimits(const Limits& limits, v1::ServerLimits* wire);

// Writes rows of a result. `first`: this is the tensor's first page, which carries the tensor's summary.
void EncodePage(const TensorSpec& spec, const Result& result, RowInterval rows, const PageFormat& format, bool first,
                v1::ResultPage* wire);

// Returns: a config without tenant and id, which StreamConfig::Check has not seen yet.
// Errors: as of DecodeRoundSpec. INVALID_ARGUMENT.
absl::StatusOr<StreamConfig> DecodeStreamSpec(const v1::StreamSpec& spec, const Limits& limits,
                                              SpecSource source = SpecSource::kClient);

void EncodeStream(const Stream& stream, v1::Stream* wire);
// Returns: about the most bytes of the message that EncodeStream writes.
uint64_t MostStreamBytes(const Stream& stream);
void EncodeVersion(const StreamVersion& version, v1::StreamVersion* wire);
// The most bytes of a version's message.
inline constexpr uint64_t kMaxVersionBytes = 1536;

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_ROUND_CODEC_H_
