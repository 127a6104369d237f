// Bytes of a connection: the limiter finds the same in them, however they are cut into reads.
#include <fuzzer/FuzzedDataProvider.h>

#include <vector>

#include "service/net/frame_limiter.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg::service;
  FuzzedDataProvider input(data, size);
  const auto cut = input.ConsumeIntegralInRange<size_t>(1, 100);
  const bool repeats = input.ConsumeBool();
  std::vector<uint8_t> bytes = input.ConsumeRemainingBytes<uint8_t>();
  // Many times the same bytes reach what single ones do not: budgets.
  for (int copies = repeats ? 12 : 0; copies > 0 && bytes.size() < 100'000; --copies) {
    const std::vector<uint8_t> once = bytes;
    bytes.insert(bytes.end(), once.begin(), once.end());
  }
  FrameLimiter whole(absl::ZeroDuration());
  FrameLimiter pieces(absl::ZeroDuration());
  const char* const found = whole.ReadReceived(bytes.data(), bytes.size(), absl::ZeroDuration());
  const char* found_in_pieces = nullptr;
  for (size_t at = 0; at < bytes.size() && found_in_pieces == nullptr; at += cut) {
    found_in_pieces = pieces.ReadReceived(bytes.data() + at, std::min(cut, bytes.size() - at), absl::ZeroDuration());
  }
  Require(found == found_in_pieces, "the same excess", found == nullptr ? "none" : found);
  Require(whole.open_streams() == pieces.open_streams(), "the same open streams");
  Require(whole.opened_streams() == pieces.opened_streams(), "the same streams");
  Require(whole.open_streams() <= whole.opened_streams(), "no more are open than were opened");
  whole.ReadSent(bytes.data(), bytes.size());
  for (size_t at = 0; at < bytes.size(); at += cut) {
    pieces.ReadSent(bytes.data() + at, std::min(cut, bytes.size() - at));
  }
  Require(whole.open_streams() == pieces.open_streams(), "the same streams end");
  return 0;
}
