#include "service/codec/duration_codec.h"

#include "absl/strings/str_cat.h"

namespace sparseagg::service {

absl::StatusOr<absl::Duration> DecodeDuration(const google::protobuf::Duration& wire, absl::string_view field) {
  constexpr int64_t kMaxSeconds = 315'576'000'000;  // 10,000 years, the limit of google.protobuf.Duration
  if (wire.seconds() < 0 || wire.nanos() < 0 || wire.seconds() > kMaxSeconds || wire.nanos() > 999'999'999) {
    return absl::InvalidArgumentError(absl::StrCat(field, " of ", wire.seconds(), " s and ", wire.nanos(),
                                                   " ns is not a duration from 0 to 10,000 years"));
  }
  return absl::Seconds(wire.seconds()) + absl::Nanoseconds(wire.nanos());
}

void EncodeDuration(absl::Duration duration, google::protobuf::Duration* wire) {
  wire->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  wire->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

void EncodeTime(absl::Time time, google::protobuf::Timestamp* wire) {
  const int64_t seconds = absl::ToUnixSeconds(time);
  wire->set_seconds(seconds);
  wire->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

}  // namespace sparseagg::service
