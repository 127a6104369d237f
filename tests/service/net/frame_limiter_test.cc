#include "service/net/frame_limiter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace sparseagg::service {
namespace {

constexpr uint8_t kEndHeaders = 4;

std::string BigEndian(uint64_t number, int size) {
  std::string bytes(size, '\0');
  for (int i = size; i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number);
  return bytes;
}

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload = "") {
  return BigEndian(payload.size(), 3) + BigEndian(type, 1) + BigEndian(flags, 1) + BigEndian(stream, 4) + payload;
}

class FrameLimiterTest : public ::testing::Test {
 protected:
  FrameLimiterTest() { EXPECT_EQ(Read(std::string(FrameReader::kClientPreface, 'x')), nullptr); }

  const char* Read(const std::string& bytes) {
    return limiter_.ReadReceived(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), now_);
  }
  // Returns: how often `frame` passes, of at most `most` times.
  int Count(const std::string& frame, int most) {
    for (int i = 0; i < most; ++i) {
      if (Read(frame) != nullptr) return i;
    }
    return most;
  }
  void Send(const std::string& bytes) {
    limiter_.ReadSent(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }

  absl::Duration now_ = absl::Seconds(100);
  FrameLimiter limiter_{now_};
};

TEST_F(FrameLimiterTest, Resets_HaveABudget_ThatRefillsWithTime) {
  const std::string reset = Frame(kResetFrame, 0, 1, std::string(4, '\0'));
  constexpr int kMax = FrameLimiter::kResets.most;
  EXPECT_EQ(Count(reset, kMax), kMax);
  now_ += absl::Seconds(1);
  EXPECT_EQ(Count(reset, 10'000), FrameLimiter::kResets.per_second);
}

TEST_F(FrameLimiterTest, AnyCut_SameFrames) {
  const std::string bytes = Frame(kDataFrame, 0, 1, std::string(3, 'd')) +
                            Frame(kWindowUpdateFrame, 0, 1, BigEndian(1, 4)) +
                            Frame(kHeadersFrame, kEndHeaders, 1, "headers");
  for (char byte : bytes) EXPECT_EQ(Read(std::string(1, byte)), nullptr);
  EXPECT_EQ(limiter_.open_streams(), 1);
}

TEST_F(FrameLimiterTest, Data_IsNotLimited) {
  EXPECT_EQ(Count(Frame(kDataFrame, 0, 1, "data"), 200'000), 200'000);
  EXPECT_EQ(Count(Frame(kDataFrame, FrameHeader::kEndStream, 1), 200'000), 200'000);
}

TEST_F(FrameLimiterTest, FramesWithoutMessage_AreLimited) {
  const int most = static_cast<int>(FrameLimiter::kControl.most);
  for (const std::string& frame : {Frame(kDataFrame, 0, 1), Frame(2, 0, 1, "12345"), Frame(200, 0, 0),
                                   Frame(kWindowUpdateFrame, 0, 1, BigEndian(FrameLimiter::kMinWindowUpdate - 1, 4))}) {
    limiter_ = FrameLimiter(now_);
    EXPECT_EQ(Read(std::string(FrameReader::kClientPreface, 'x')), nullptr);
    EXPECT_EQ(Count(frame, 200'000), most);
  }
  limiter_ = FrameLimiter(now_);
  EXPECT_EQ(Read(std::string(FrameReader::kClientPreface, 'x')), nullptr);
  const std::string wide = Frame(kWindowUpdateFrame, 0, 1, BigEndian(FrameLimiter::kMinWindowUpdate, 4));
  EXPECT_EQ(Count(wide, 200'000), 200'000);
}

TEST_F(FrameLimiterTest, HeaderBlock_IsBounded) {
  EXPECT_EQ(Read(Frame(kHeadersFrame, 0, 1, std::string(FrameLimiter::kMaxBlockBytes, 'h'))), nullptr);
  EXPECT_STREQ(Read(Frame(kContinuationFrame, 0, 1, "h")), "bytes of headers in one call");
}

TEST_F(FrameLimiterTest, HeaderBlock_InManyFrames_IsBounded) {
  EXPECT_EQ(Read(Frame(kHeadersFrame, 0, 1, "h")), nullptr);
  EXPECT_EQ(Count(Frame(kContinuationFrame, 0, 1), 100), FrameLimiter::kMaxBlockFrames - 1);
}

TEST_F(FrameLimiterTest, OpenStreams_EndWithTheServersAnswerOrAReset) {
  for (uint32_t stream : {1, 3, 5, 7}) EXPECT_EQ(Read(Frame(kHeadersFrame, kEndHeaders, stream, "h")), nullptr);
  EXPECT_EQ(limiter_.open_streams(), 4);
  Send(Frame(kHeadersFrame, kEndHeaders, 1, "h") + Frame(kDataFrame, 0, 1, "d"));
  EXPECT_EQ(limiter_.open_streams(), 4);
  Send(Frame(kHeadersFrame, kEndHeaders | FrameHeader::kEndStream, 1, "h"));
  EXPECT_EQ(limiter_.open_streams(), 3);
  Send(Frame(kResetFrame, 0, 3, std::string(4, '\0')));
  EXPECT_EQ(Read(Frame(kResetFrame, 0, 5, std::string(4, '\0'))), nullptr);
  EXPECT_EQ(limiter_.open_streams(), 1);
  // Trailers of the client, and a stream that is over, open nothing.
  EXPECT_EQ(Read(Frame(kHeadersFrame, kEndHeaders, 5, "h")), nullptr);
  EXPECT_EQ(limiter_.open_streams(), 1);
  EXPECT_EQ(limiter_.opened_streams(), 4);
}

}  // namespace
}  // namespace sparseagg::service
