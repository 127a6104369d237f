// Streams: uploads that cross a cut, cuts that fail, versions that fail, and the end of a stream.
#include "tests/service/support/stream_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class StreamTest : public StreamFixture {
 protected:
  // A chunk of an upload to the stream "s".
  static Chunk ChunkOf(const uint32_t& key, const float& value, uint64_t sequence, bool last) {
    ChunkSlice slice;
    slice.tensor = "v";
    slice.dtype = DType::kFloat32;
    slice.view.key_type = SliceView::Keys::kU32;
    slice.view.keys = absl::string_view(reinterpret_cast<const char*>(&key), sizeof(key));
    slice.view.values = absl::string_view(reinterpret_cast<const char*>(&value), sizeof(value));
    Chunk chunk;
    chunk.sequence = sequence;
    chunk.last = last;
    if (sequence == 0) chunk.base_version = 0;
    chunk.slices.push_back(slice);
    return chunk;
  }
};

TEST_F(StreamTest, Create_ListsTheStreamWhenItHasAVersionToFill) {
  absl::Status found;
  hooks_.create = [&] {  // of version 1
    found = registry().FindIntake(kDefaultTenant, "s").status();
    return absl::OkStatus();
  };
  const auto stream = OpenStream(Spec(2));
  EXPECT_THAT(found, HasCode(Code::kNotFound));
  EXPECT_EQ(VersionOf(*stream, 1)->config().stream->uploads.get(), &stream->intake().config());
  EXPECT_THAT(Submit(*stream, "a", "1", 0, 1), IsOk());
}

TEST_F(StreamTest, Create_ThatFails_LeavesNothing) {
  hooks_.create = [] { return absl::InternalError("no accumulator"); };
  EXPECT_THAT(TryOpenStream(Spec(2)), HasCode(Code::kInternal));
  hooks_.create = [] { return absl::OkStatus(); };
  Open(SumSpec(), "s");
  EXPECT_THAT(TryOpenStream(Spec(2)), Fails(Code::kAlreadyExists, HasSubstr("round 's' exists already")));
  EXPECT_THAT(registry().Find(kDefaultTenant, "s.v1"), HasCode(Code::kNotFound));
  EXPECT_THAT(registry().Find(kDefaultTenant, "s"), IsOk());
  // A round of the name of its version 1 is not the stream's.
  Open(SumSpec(), "t.v1");
  EXPECT_THAT(TryOpenStream(Spec(2), "t"), Fails(Code::kAlreadyExists, HasSubstr("round 't.v1' has a name")));
  EXPECT_THAT(registry().Find(kDefaultTenant, "t.v1"), IsOk());
  EXPECT_THAT(registry().Find(kDefaultTenant, "t"), HasCode(Code::kNotFound));
}

TEST_F(StreamTest, Commit_OfAnUploadThatCrossesACut_BelongsToTheNextVersion) {
  const auto stream = OpenStream(Spec(2, {1.0, 0.5}));
  const uint32_t key = 7;
  const float value = 4.0F;
  const auto named = stream->intake().PutChunk("slow", "x", ChunkOf(key, value, 0, false));
  ASSERT_THAT(named, IsOk());
  const auto upload = stream->intake().OpenStreamUpload("slow", "y", nullptr);
  ASSERT_THAT(upload, IsOk());
  ASSERT_THAT(stream->intake().Append(**upload, ChunkOf(key, value, 0, true)), IsOk());
  ASSERT_THAT(Submit(*stream, "a", "1", 0, 1), IsOk());
  ASSERT_THAT(Submit(*stream, "b", "1", 0, 2), IsOk());  // the cut
  ASSERT_EQ(stream->Snapshot().version, 2U);

  const uint32_t second = 8;
  ASSERT_THAT(stream->intake().PutChunk("slow", "x", ChunkOf(second, value, 1, true)), IsOk());
  const auto first = CommitNamed(stream->intake(), "slow", "x");
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->stream->version, 2U);
  EXPECT_EQ(first->stream->staleness(), 1U);
  const auto other = stream->intake().Commit(**upload);
  ASSERT_THAT(other, IsOk());
  EXPECT_EQ(other->stream->version, 2U);
  AwaitEnd(*VersionOf(*stream, 2));
  EXPECT_THAT(ResultOf(*VersionOf(*stream, 2)), ElementsAre(Pair(7, 4.0F), Pair(8, 2.0F)));

  // Late calls of the committed upload.
  EXPECT_TRUE(stream->intake().GetProgress("slow", "x")->committed);
  const auto again = CommitNamed(stream->intake(), "slow", "x");
  ASSERT_THAT(again, IsOk());
  EXPECT_TRUE(again->duplicate);
  EXPECT_EQ(again->stream->version, 2U);
}

TEST_F(StreamTest, Commit_BelowTheBuffer_AfterARefusal_FillsTheVersion) {
  const auto stream = OpenStream(Spec(2));
  ASSERT_THAT(Submit(*stream, "a", "1", 0, 1), IsOk());
  EXPECT_THAT(Submit(*stream, "b", "1", 0, 1000), HasCode(Code::kInvalidArgument));  // no such row
  EXPECT_EQ(stream->Snapshot().num_buffered, 1U);
  const auto second = Submit(*stream, "b", "1", 0, 2);
  ASSERT_THAT(second, IsOk());
  EXPECT_FALSE(second->duplicate);
  EXPECT_EQ(stream->Snapshot().version, 2U);
}

TEST_F(StreamTest, Cut_ThatCannotOpenTheNextVersion_KeepsTheVersion) {
  limits_.max_open_rounds = 2;  // the intake and version 1
  const auto stream = OpenStream(Spec(1));
  const auto first = Submit(*stream, "a", "1", 0, 1);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(stream->Snapshot().version, 1U);
  EXPECT_THAT(Submit(*stream, "b", "1", 0, 2), Fails(Code::kResourceExhausted, HasSubstr("version 2")));
  EXPECT_EQ(VersionOf(*stream, 1)->Snapshot().num_submissions, 1U);
}

TEST_F(StreamTest, AFailedVersion_LetsTheStreamGoOn) {
  v1::StreamSpec spec = Spec(3);
  spec.mutable_round()->set_min_submissions(2);
  const auto stream = OpenStream(spec);
  ASSERT_THAT(Submit(*stream, "a", "1", 0, 1), IsOk());
  ASSERT_THAT(stream->Cut(1, CutCause::kCall), IsOk());
  EXPECT_EQ(AwaitEnd(*VersionOf(*stream, 1)).state, RoundState::kFailed);
  const auto next = Submit(*stream, "a", "2", 1, 1);
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(next->stream->version, 2U);
}

TEST_F(StreamTest, Delete_EndsAllVersions) {
  const auto stream = OpenStream(Spec(2));
  ASSERT_THAT(Submit(*stream, "a", "1", 0, 1), IsOk());
  const auto version = VersionOf(*stream, 1);
  ASSERT_THAT(streams().Delete(kDefaultTenant, "s"), IsOk());
  EXPECT_EQ(AwaitEnd(*version).state, RoundState::kCancelled);
  EXPECT_THAT(registry().Find(kDefaultTenant, "s.v1"), HasCode(Code::kNotFound));
  EXPECT_THAT(Submit(*stream, "a", "2", 0, 1), HasCode(Code::kNotFound));
  // The id is free again.
  const auto other = OpenStream(Spec(5));
  EXPECT_EQ(other->Snapshot().num_buffered, 0U);
}

TEST_F(StreamTest, AVersionThatExpires_IsForgotten) {
  v1::StreamSpec spec = Spec(1);
  spec.mutable_round()->mutable_result_ttl()->set_seconds(5);
  const auto stream = OpenStream(spec);
  ASSERT_THAT(Submit(*stream, "a", "1", 0, 1), IsOk());
  AwaitEnd(*VersionOf(*stream, 1));
  Advance(absl::Seconds(6));
  RunPendingTasks();
  EXPECT_EQ(stream->Snapshot().oldest_version, 2U);
  // A retry that comes so late counts again.
  const auto again = Submit(*stream, "a", "1", 1, 1);
  ASSERT_THAT(again, IsOk());
  EXPECT_FALSE(again->duplicate);
}

TEST_F(StreamTest, FixedPoint_TakesWeightsOnArrival) {
  v1::StreamSpec spec = Spec(2, {1.0, 0.25});
  spec.mutable_round()->mutable_aggregation()->set_numerics(v1::NUMERICS_FIXED_POINT);
  spec.mutable_round()->mutable_aggregation()->set_value_bound(16.0);
  const auto stream = OpenStream(spec);
  for (const char* client : {"a", "b"}) ASSERT_THAT(Submit(*stream, client, "1", 0, 1), IsOk());
  for (const char* client : {"c", "d"}) ASSERT_THAT(Submit(*stream, client, "1", 0, 1), IsOk());
  AwaitEnd(*VersionOf(*stream, 2));
  EXPECT_THAT(ResultOf(*VersionOf(*stream, 2)), ElementsAre(Pair(1, 0.5F)));
}

}  // namespace
}  // namespace sparseagg::service
