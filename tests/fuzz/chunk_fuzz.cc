// Upload messages of any bytes. Each is taken, or refused as the fault of its sender, and the parser that takes large
// messages apart agrees with Protocol Buffers, wherever gRPC has cut the bytes.
#include <fuzzer/FuzzedDataProvider.h>

#include <memory>
#include <string>

#include "service/codec/chunk_message.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/upload.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/rounds.h"
#include "tests/service/support/three_tensors.h"

namespace sparseagg::service {
namespace {

constexpr size_t kTakenApart = 16 << 10;  // bytes of a message that Protocol Buffers does not parse whole

absl::Status Take(const absl::StatusOr<Chunk>& chunk, MemoryBudget& budget) {
  static const auto config = std::make_shared<const RoundConfig>(*DecodeRoundSpec(ThreeTensors(3000), SmallLimits()));
  if (!chunk.ok()) return chunk.status();
  Upload upload(config, &budget);
  absl::Status status = upload.Append(*chunk, Repeats::kRefuse);
  if (status.ok() && upload.complete()) {
    upload.Hash();
    status = upload.TakeUpdates().status();
  }
  return status;
}

}  // namespace
}  // namespace sparseagg::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg::service;
  FuzzedDataProvider input(data, size);
  const size_t cut = input.ConsumeIntegralInRange<size_t>(1, 9000);
  const size_t filling = input.ConsumeBool() ? kTakenApart : 0;
  std::string bytes = input.ConsumeRemainingBytesAsString();
  if (filling != 0) {
    // An unknown field (number 15, of bytes), which both parsers pass over.
    bytes = std::string("\x7a\x80\x80\x01", 4) + std::string(filling, 'x') + bytes;
  }
  MemoryBudget budget(4 << 20);
  ChunkMessage message;
  absl::Status status = message.Parse(Cut(bytes, cut));
  if (status.ok()) status = Take(message.Decode(), budget);
  Require(status.ok() || IsCallersFault(status), "the sender's fault", status.ToString());
  Require(budget.reserved() == 0, "all memory is released");

  sparseagg::v1::UpdateChunk whole;
  const absl::Status other = whole.ParseFromString(bytes) ? Take(DecodeChunk(whole), budget)
                                                          : absl::InvalidArgumentError("not an UpdateChunk");
  if (absl::IsResourceExhausted(status) || absl::IsResourceExhausted(other)) return 0;
  Require(status.ok() == other.ok(), "both parsers agree", status.ToString() + " / " + other.ToString());
  return 0;
}
