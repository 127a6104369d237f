// Codec between google.protobuf.Duration and Timestamp and Abseil's types.
#ifndef SPARSEAGG_SERVICE_CODEC_DURATION_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_DURATION_CODEC_H_

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sparseagg::service {

// Errors: INVALID_ARGUMENT, which names `field`: negative, or outside the range of google.protobuf.Duration.
absl::StatusOr<absl::Duration> DecodeDuration(const google::protobuf::Duration& wire, absl::string_view field);
// Requires: a finite duration.
void EncodeDuration(absl::Duration duration, google::protobuf::Duration* wire);
void EncodeTime(absl::Time time, google::protobuf::Timestamp* wire);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_DURATION_CODEC_H_
