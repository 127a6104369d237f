#include "service/transport/frame_limiter.h"

#include <algorithm>

namespace sparseagg::service {
namespace {

constexpr size_t kFrameHeaderBytes = 9;

// RFC 9113, section 6.
enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettingsFrame = 4,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr uint8_t kEndStreamOrAck = 1;

uint32_t ReadBigEndian(const uint8_t* bytes, int size) {
  uint32_t value = 0;
  for (int i = 0; i < size; ++i) value = value << 8 | bytes[i];
  return value;
}

}  // namespace

const char* FrameLimiter::Read(const uint8_t* bytes, size_t size, absl::Duration now) {
  const uint8_t* const end = bytes + size;
  while (true) {
    const uint64_t skipped = std::min<uint64_t>(skip_, end - bytes);
    skip_ -= skipped;
    bytes += skipped;
    if (bytes == end) return nullptr;
    // The increment of a window update is the only payload that is read.
    const bool has_increment = header_size_ >= kFrameHeaderBytes;
    const size_t wanted = has_increment ? header_.size() : kFrameHeaderBytes;
    const size_t copied = std::min<size_t>(wanted - header_size_, end - bytes);
    std::copy_n(bytes, copied, header_.begin() + header_size_);
    header_size_ += copied;
    bytes += copied;
    if (header_size_ < wanted) return nullptr;
    if (!has_increment && header_[3] == kWindowUpdate && ReadBigEndian(header_.data(), 3) == 4) continue;
    if (const char* const excess = BeginFrame(now); excess != nullptr) return excess;
    header_size_ = 0;
  }
}

const char* FrameLimiter::BeginFrame(absl::Duration now) {
  const uint32_t size = ReadBigEndian(header_.data(), 3);
  const uint8_t type = header_[3];
  const bool is_end_or_ack = (header_[4] & kEndStreamOrAck) != 0;
  skip_ = size;
  switch (type) {
    case kData:
      if (size > 0 || is_end_or_ack) return nullptr;
      break;
    case kHeaders:
    case kContinuation:
      return CountHeaderBlock(size, type == kHeaders, now);
    case kResetStream:
      return Take(resets_, 1, now) ? nullptr : "streams that are opened and reset";
    case kSettingsFrame:
      if (is_end_or_ack) break;
      return Take(settings_, 1, now) ? nullptr : "SETTINGS frames";
    case kWindowUpdate:
      if (size != 4) break;
      skip_ = 0;
      if (ReadBigEndian(header_.data() + kFrameHeaderBytes, 4) >= kMinWindowUpdate) return nullptr;
      break;
    default:
      break;
  }
  return Take(control_, 1, now) ? nullptr : "frames that carry no message";
}

const char* FrameLimiter::CountHeaderBlock(uint64_t size, bool opens, absl::Duration now) {
  if (opens) {
    block_bytes_ = 0;
    block_frames_ = 0;
    if (!Take(streams_, 1, now)) return "calls in a second";
  }
  block_bytes_ += size;
  if (block_bytes_ > kMaxBlockBytes) return "bytes of headers in one call";
  if (++block_frames_ > kMaxBlockFrames) return "frames of headers in one call";
  return Take(header_bytes_, static_cast<double>(size), now) ? nullptr : "bytes of headers";
}

bool FrameLimiter::Take(Meter& meter, double amount, absl::Duration now) {
  if (meter.left < amount) Refill(now);
  if (meter.left < amount) return false;
  meter.left -= amount;
  return true;
}

void FrameLimiter::Refill(absl::Duration now) {
  const double seconds = absl::ToDoubleSeconds(now - refilled_);
  refilled_ = now;
  for (Meter* const meter : {&resets_, &settings_, &streams_, &header_bytes_, &control_}) {
    meter->left = std::min(meter->budget.most, meter->left + seconds * meter->budget.per_second);
  }
}

}  // namespace sparseagg::service
