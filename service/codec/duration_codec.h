// google.protobuf.Duration and Timestamp to Abseil's and back.
#ifndef SPARSEAGG_SERVICE_CODEC_DURATION_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_DURATION_CODEC_H_

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sparseagg::service {

// INVALID_ARGUMENT, naming `field`: outside of what google.protobuf.Duration allows, or negative.
absl::StatusOr<absl::Duration> DecodeDuration(const google::protobuf::Duration& wire, absl::string_view field);
void EncodeDuration(absl::Duration duration, google::protobuf::Duration* wire);
void EncodeTime(absl::Time time, google::protobuf::Timestamp* wire);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_CODEC_DURATION_CODEC_H_
