// Rounds, submissions and result pages to the wire.
#ifndef SPARSEAGG_SERVICE_CODEC_ROUND_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_ROUND_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/result.h"
#include "service/base/limits.h"
#include "service/codec/page_format.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/round.h"

namespace sparseagg::v1 {
class ResultPage;
class Round;
class ServerLimits;
class Submission;
class UploadStatus;
}  // namespace sparseagg::v1

namespace sparseagg::service {

// "rounds/ID", or empty for a private round.
std::string RoundName(const RoundConfig& config);
// The id in "rounds/ID". INVALID_ARGUMENT: not such a name.
absl::StatusOr<std::string> ParseRoundName(absl::string_view name);
// INVALID_ARGUMENT unless [A-Za-z0-9._-]{1,128}.
absl::Status CheckRoundId(absl::string_view id);

void EncodeRound(const RoundConfig& config, const RoundSnapshot& snapshot, absl::string_view engine, v1::Round* wire);
// The most that EncodeRound makes of it, about.
uint64_t MostRoundBytes(const RoundConfig& config);
void EncodeSubmission(absl::string_view round_name, const Receipt& receipt, v1::Submission* wire);
void EncodeProgress(absl::string_view round_name, const UploadProgress& progress, v1::UploadStatus* wire);
void EncodeLimits(const Limits& limits, v1::ServerLimits* wire);

// Some rows of a result. `first`: with the tensor's summary.
void EncodePage(const TensorSpec& spec, const Result& result, RowInterval rows, const PageFormat& format, bool first,
                v1::ResultPage* wire);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_ROUND_CODEC_H_
