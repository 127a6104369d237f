// v1.RoundSpec to what a round is made from.
#ifndef SPARSEAGG_SERVICE_CODEC_SPEC_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_SPEC_CODEC_H_

#include <optional>

#include "absl/status/statusor.h"
#include "host/spec/dtype.h"
#include "service/base/limits.h"
#include "service/rounds/round_config.h"

namespace sparseagg::v1 {
class RoundSpec;
}

namespace sparseagg::service {

// The config without an id. Tensors have the round's aggregation with their own fields laid over it, and have passed
// Validate. INVALID_ARGUMENT: a spec without meaning. RESOURCE_EXHAUSTED: it asks for more than `limits` allow.
absl::StatusOr<RoundConfig> DecodeRoundSpec(const v1::RoundSpec& spec, const Limits& limits);

// Between v1.DType and DType; the numbers are checked. 0 (unspecified) and unknown ones: nullopt.
std::optional<DType> DecodeDType(int dtype);
int EncodeDType(DType dtype);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_SPEC_CODEC_H_
