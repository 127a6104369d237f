// Codec of streams.
#ifndef SPARSEAGG_SERVICE_CODEC_STREAM_CODEC_H_
#define SPARSEAGG_SERVICE_CODEC_STREAM_CODEC_H_

#include "absl/status/statusor.h"
#include "service/base/limits.h"
#include "service/codec/spec_codec.h"
#include "service/streams/stream.h"

namespace sparseagg::v1 {
class Stream;
class StreamSpec;
class StreamVersion;
}  // namespace sparseagg::v1

namespace sparseagg::service {

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

#endif  // SPARSEAGG_SERVICE_CODEC_STREAM_CODEC_H_
