// Upload messages of any bytes. Each is taken, or refused as the fault of its sender, wherever gRPC has cut the bytes;
// and in what is taken, the parser that takes large messages apart finds the same as Protocol Buffers.
#include <fuzzer/FuzzedDataProvider.h>
#include <google/protobuf/stubs/logging.h>

#include <memory>
#include <optional>
#include <string>

#include "host/base/content_hash.h"
#include "host/base/status_macros.h"
#include "service/codec/sliced_message.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/upload.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/rounds.h"
#include "tests/service/support/wire.h"

namespace sparseagg::service {
namespace {

constexpr size_t kTakenApart = 16 << 10;  // bytes of a message that Protocol Buffers does not parse whole

// Returns: the hash of the content; none if chunks are missing.
absl::StatusOr<std::optional<ContentHash>> Take(const absl::StatusOr<Chunk>& chunk, MemoryBudget& budget) {
  static const auto config = std::make_shared<const RoundConfig>(*DecodeRoundSpec(ThreeTensors(3000), SmallLimits()));
  RETURN_IF_ERROR(chunk.status());
  Upload upload(config, &budget);
  RETURN_IF_ERROR(upload.Append(*chunk));
  if (!upload.complete()) return std::nullopt;
  const ContentHash hash = upload.Hash();
  RETURN_IF_ERROR(upload.TakeUpdates().status());
  return hash;
}

// As the server parses messages.
absl::StatusOr<std::optional<ContentHash>> TakeReceived(const std::string& bytes, size_t cut, MemoryBudget& budget) {
  ChunkMessage message;
  RETURN_IF_ERROR(message.Parse(Cut(bytes, cut)));
  return Take(message.Decode(), budget);
}

}  // namespace
}  // namespace sparseagg::service

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg::service;
  FuzzedDataProvider input(data, size);
  const size_t cut = input.ConsumeIntegralInRange<size_t>(1, 9000);
  const size_t filling = input.ConsumeBool() ? kTakenApart : 0;
  std::string bytes = input.ConsumeRemainingBytesAsString();
  if (filling != 0) {
    // An upload tag, which no decoder reads.
    bytes = std::string("\x42\x80\x80\x01", 4) + std::string(filling, 'x') + bytes;
  }
  MemoryBudget budget(4 << 20);
  const auto received = TakeReceived(bytes, cut, budget);
  Require(received.ok() || IsCallersFault(received.status()), "the sender's fault", received.status().ToString());
  Require(budget.reserved() == 0, "all memory is released");
  if (!received.ok()) return 0;  // Protocol Buffers also takes some numbers that are longer than need be

  sparseagg::v1::UpdateChunk whole;
  Require(whole.ParseFromString(bytes), "Protocol Buffers takes the message, too");
  const auto parsed = Take(DecodeChunk(whole), budget);
  Require(parsed.ok() && *parsed == *received, "both parsers find the same", parsed.status().ToString());
  return 0;
}
