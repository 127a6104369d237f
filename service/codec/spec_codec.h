// Decoder from v1.RoundSpec to RoundConfig, and the codec of dtypes.
#ifndef SPARSEAGG_SERVICE_CODEC_SPEC_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_SPEC_CODEC_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/generated_enum_reflection.h>
#include <google/protobuf/message_lite.h>
#include <google/protobuf/timestamp.pb.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "host/spec/dtype.h"
#include "service/base/limits.h"
#include "service/rounds/round_config.h"

namespace sparseagg::service {

// Errors: INVALID_ARGUMENT, which names `field`: negative, or outside the range of google.protobuf.Duration.
absl::StatusOr<absl::Duration> DecodeDuration(const google::protobuf::Duration& wire, absl::string_view field);
// Requires: a finite duration.
void EncodeDuration(absl::Duration duration, google::protobuf::Duration* wire);
void EncodeTime(absl::Time time, google::protobuf::Timestamp* wire);

}  // namespace sparseagg::service

namespace sparseagg::v1 {
class RoundSpec;
}

namespace sparseagg::service {

// Decodes and validates the spec of a round.
// Returns: a config without an id. A field that a tensor's aggregation does not set comes from the round's aggregation.
// Errors: INVALID_ARGUMENT: an invalid spec. RESOURCE_EXHAUSTED: the spec asks for more than `limits` allow.
// `source`: a store may have specs that an earlier release took, and that are refused today.
enum class SpecSource { kClient, kStore };
absl::StatusOr<RoundConfig> DecodeRoundSpec(const v1::RoundSpec& spec, const Limits& limits,
                                            SpecSource source = SpecSource::kClient);

// Errors: INVALID_ARGUMENT: an unknown enum value; the message lists the known ones. 0 ("not set") is known.
template <typename Wire>
absl::Status CheckKnown(Wire value, absl::string_view field) {
  const auto* descriptor = google::protobuf::GetEnumDescriptor<Wire>();
  if (descriptor->FindValueByNumber(static_cast<int>(value)) != nullptr) return absl::OkStatus();
  std::string known;
  for (int i = 0; i < descriptor->value_count(); ++i) {
    absl::StrAppend(&known, i == 0 ? "" : ", ", descriptor->value(i)->name());
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " ", static_cast<int>(value), " is unknown here; known are ", known));
}

// Returns: the same bytes for equal messages, whatever their fields' order was.
std::string SerializeDeterministic(const google::protobuf::MessageLite& message);

// Convert between the numbers of v1.DType and DType. DecodeDType returns nullopt for 0 (unspecified) and for unknown
// numbers.
std::optional<DType> DecodeDType(int dtype);
int EncodeDType(DType dtype);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_SPEC_CODEC_H_
