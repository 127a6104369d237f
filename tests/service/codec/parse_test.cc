// What is made of a message is bounded before it is made.
#include "service/codec/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "sparseagg/v1/aggregation.pb.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr uint64_t kSeed = 20261123;

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

v1::RoundSpec SpecOf(int tensors) {
  v1::RoundSpec spec;
  for (int i = 0; i < tensors; ++i) spec.add_tensors()->mutable_aggregation();
  return spec;
}

TEST(ParseTest, ParseSpec_MoreTensorsThanThereMayBe_MakesNoneOfThem) {
  Limits limits;
  limits.max_tensors = 10;
  v1::CreateRoundRequest sent;
  *sent.mutable_spec() = SpecOf(11);
  v1::CreateRoundRequest request;
  EXPECT_THAT(ParseSpec(Buffer(sent.SerializeAsString()), limits, &request),
              Fails(Code::kResourceExhausted, HasSubstr("11 tensors are beyond the server's max_tensors 10")));
  EXPECT_FALSE(request.has_spec());
  *sent.mutable_spec() = SpecOf(10);
  EXPECT_THAT(ParseSpec(Buffer(sent.SerializeAsString()), limits, &request), IsOk());
  EXPECT_EQ(request.spec().tensors_size(), 10);
}

TEST(ParseTest, ParseSpec_ListOfNumbers_CountsEachOfThem) {
  Limits limits;
  limits.max_tensors = 10;
  v1::StreamResultRequest sent;
  for (int i = 0; i < 5000; ++i) sent.mutable_format()->add_key_encodings(v1::KEY_ENCODING_U32);
  v1::StreamResultRequest request;
  EXPECT_THAT(ParseSpec(Buffer(sent.SerializeAsString()), limits, &request),
              Fails(Code::kResourceExhausted, HasSubstr("fields")));
}

// Whatever else is in it: fields that nobody knows, of another type, in groups, cut short.
TEST(ParseTest, ParseSpec_RefusesWhatProtocolBuffersDoesAndNothingElse) {
  constexpr int kTrials = 5000;
  int num_taken = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed + static_cast<uint64_t>(trial));
    std::mt19937_64 random(kSeed + static_cast<uint64_t>(trial));
    v1::CreateRoundRequest sent;
    sent.set_round_id("r");
    *sent.mutable_spec() = SpecOf(static_cast<int>(random() % 4));
    sent.mutable_spec()->mutable_deadline()->set_seconds(5);
    if (sent.spec().tensors_size() > 0) *sent.mutable_spec()->mutable_tensors(0) = SumSpec().tensors(0);
    std::string bytes = sent.SerializeAsString();
    if (random() % 2 == 0) bytes += std::string("\x7b\x0a\x01\x01\x12\x02\x08\x05\x7c", 9);  // a group of what is known
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    for (uint64_t i = random() % 3; i > 0 && !bytes.empty(); --i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    v1::CreateRoundRequest plain;
    const bool parses = plain.ParseFromString(bytes);
    v1::CreateRoundRequest request;
    ASSERT_EQ(ParseSpec(Buffer(bytes), Limits{}, &request).ok(), parses);
    num_taken += parses ? 1 : 0;
  }
  EXPECT_GT(num_taken, kTrials / 4);
  EXPECT_LT(num_taken, kTrials);
}

}  // namespace
}  // namespace sparseagg::service
