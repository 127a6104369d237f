// Messages with batches of any bytes. Each submission is taken, or refused as the fault of its sender; and the message
// that the store keeps of it has the same content.
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

absl::StatusOr<ContentHash> Take(const Chunk& chunk, MemoryBudget& budget) {
  static const auto config = std::make_shared<const RoundConfig>(*DecodeRoundSpec(ThreeTensors(3000), SmallLimits()));
  Upload upload(config, &budget);
  RETURN_IF_ERROR(upload.Append(chunk));
  const ContentHash hash = upload.Hash();
  RETURN_IF_ERROR(upload.TakeUpdates().status());
  return hash;
}

void CheckKept(const Chunk& chunk, const absl::StatusOr<ContentHash>& taken, MemoryBudget& budget) {
  const std::string bytes(chunk.message.front());
  ChunkMessage kept;
  Require(kept.Parse(Cut(bytes, bytes.size() + 1)).ok(), "a kept message is one");
  const absl::StatusOr<Chunk> decoded = kept.Decode();
  Require(decoded.ok() && decoded->last, "a kept message is whole");
  const absl::StatusOr<ContentHash> again = Take(*decoded, budget);
  Require(again.ok() == taken.ok() && (!again.ok() || *again == *taken), "a kept message has the same content");
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
  const bool keep = input.ConsumeBool();
  const std::string bytes = input.ConsumeRemainingBytesAsString();
  BatchMessage batch;
  const absl::Status parsed = batch.Parse(Cut(bytes, cut), keep);
  Require(parsed.ok() || IsCallersFault(parsed), "the sender's fault", parsed.ToString());
  if (!parsed.ok()) return 0;
  MemoryBudget budget(4 << 20);
  for (size_t i = 0; i < batch.client_ids().size(); ++i) {
    const Chunk& chunk = batch.Next();
    const auto taken = Take(chunk, budget);
    Require(taken.ok() || IsCallersFault(taken.status()), "the sender's fault", taken.status().ToString());
    if (keep) CheckKept(chunk, taken, budget);
    Require(budget.reserved() == 0, "all memory is released");
  }
  return 0;
}
