// Messages of the proto as Python's bytes.
#ifndef SPARSEAGG_PYTHON_ENGINE_MESSAGES_H_
#define SPARSEAGG_PYTHON_ENGINE_MESSAGES_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "python/engine/errors.h"
#include "python/engine/nb.h"
#include "python/engine/round_host.h"
#include "service/base/refusals.h"
#include "service/codec/spec_codec.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::python {

// The most bytes of a spec. A round of a million tensors has less.
inline constexpr size_t kMaxSpecBytes = size_t{64} << 20;

inline std::string_view ViewOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

inline nb::bytes ToBytes(std::string_view bytes) { return nb::bytes(bytes.data(), bytes.size()); }

inline nb::dict ToDict(const std::map<std::string, std::string>& texts) {
  nb::dict dict;
  for (const auto& [name, value] : texts) dict[name.c_str()] = value;
  return dict;
}

// Returns: the arguments of EngineError.
inline nb::tuple DescribeError(const absl::Status& status) {
  const service::ErrorInfo info = service::InfoOf(status);
  return nb::make_tuple(status.raw_code(), std::string(status.message()), info.reason, ToDict(info.metadata));
}

// Returns: the message. Throws: StatusException: INVALID_ARGUMENT: the bytes are no such message, or too many.
template <typename Message>
Message ParseMessage(const nb::bytes& bytes) {
  Message message;
  const std::string_view view = ViewOf(bytes);
  if (view.size() > kMaxSpecBytes) {
    ThrowIfError(absl::InvalidArgumentError(absl::StrCat(Message::descriptor()->name(), " of ", view.size(),
                                                         " bytes; up to ", kMaxSpecBytes, " are allowed")));
  }
  if (!message.ParseFromArray(view.data(), static_cast<int>(view.size()))) {
    ThrowIfError(absl::InvalidArgumentError(absl::StrCat("not a valid ", Message::descriptor()->name(),
                                                         ": malformed, or with a string that is not UTF-8")));
  }
  return message;
}

inline nb::bytes ToBytes(const google::protobuf::Message& message) { return ToBytes(message.SerializeAsString()); }

// Returns: the round of a serialised v1::RoundSpec. Throws: StatusException: as of ParseMessage and DecodeRoundSpec.
inline service::RoundConfig ParseRoundSpec(const nb::bytes& spec,
                                           service::SpecSource source = service::SpecSource::kClient) {
  return ValueOrThrow(service::DecodeRoundSpec(ParseMessage<v1::RoundSpec>(spec), NoLimits(), source));
}

}  // namespace sparseagg::python

#endif  // SPARSEAGG_PYTHON_ENGINE_MESSAGES_H_
