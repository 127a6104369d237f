#include "service/net/frame_limiter.h"

#include <algorithm>

namespace sparseagg::service {

const char* FrameLimiter::ReadReceived(const uint8_t* bytes, size_t size, absl::Duration now) {
  const char* excess = nullptr;
  received_.Read(bytes, size, [&](const FrameHeader& frame) {
    excess = Count(frame, now);
    return excess == nullptr;
  });
  return excess;
}

void FrameLimiter::ReadSent(const uint8_t* bytes, size_t size) {
  sent_.Read(bytes, size, [this](const FrameHeader& frame) {
    const bool has_end = frame.type == kDataFrame || frame.type == kHeadersFrame;
    if (frame.type == kResetFrame || (has_end && (frame.flags & FrameHeader::kEndStream) != 0))
      open_.erase(frame.stream);
    return true;
  });
}

const char* FrameLimiter::Count(const FrameHeader& frame, absl::Duration now) {
  switch (frame.type) {
    case kDataFrame:
      if (frame.size > 0 || (frame.flags & FrameHeader::kEndStream) != 0) return nullptr;
      break;
    case kHeadersFrame:
    case kContinuationFrame:
      return CountHeaderBlock(frame, now);
    case kResetFrame:
      open_.erase(frame.stream);
      return Take(resets_, 1, now) ? nullptr : "streams that are opened and reset";
    case kSettingsFrame:
      if ((frame.flags & FrameHeader::kAck) != 0) break;
      return Take(settings_, 1, now) ? nullptr : "SETTINGS frames";
    case kPingFrame:
      if ((frame.flags & FrameHeader::kAck) != 0) break;
      return Take(pings_, 1, now) ? nullptr : "PING frames";
    case kWindowUpdateFrame:
      if (frame.increment >= kMinWindowUpdate) return nullptr;
      break;
    default:
      break;
  }
  return Take(control_, 1, now) ? nullptr : "frames that carry no message";
}

const char* FrameLimiter::CountHeaderBlock(const FrameHeader& frame, absl::Duration now) {
  if (frame.type == kHeadersFrame) {
    block_bytes_ = 0;
    block_frames_ = 0;
    if (frame.stream > last_stream_) {
      last_stream_ = frame.stream;
      open_.insert(frame.stream);
      ++opened_;
    }
    if (!Take(streams_, 1, now)) return "calls in a second";
  }
  block_bytes_ += frame.size;
  if (block_bytes_ > kMaxBlockBytes) return "bytes of headers in one call";
  if (++block_frames_ > kMaxBlockFrames) return "frames of headers in one call";
  return Take(header_bytes_, frame.size, now) ? nullptr : "bytes of headers";
}

bool FrameLimiter::Take(Meter& meter, double amount, absl::Duration now) {
  if (meter.left < amount) {
    const double seconds = absl::ToDoubleSeconds(now - refilled_);
    refilled_ = now;
    for (Meter* const each : {&resets_, &settings_, &streams_, &header_bytes_, &pings_, &control_}) {
      each->left = std::min(each->budget.most, each->left + seconds * each->budget.per_second);
    }
  }
  if (meter.left < amount) return false;
  meter.left -= amount;
  return true;
}

}  // namespace sparseagg::service
