// Streams: uploads that cross a cut, cuts that fail, versions that fail, and the end of a stream.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "service/codec/round_codec.h"
#include "service/streams/stream_registry.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/threads.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

class StreamFixture : public RoundFixture {
 protected:
  StreamRegistry& streams() {
    if (streams_ == nullptr) streams_ = std::make_unique<StreamRegistry>(&registry(), context().ForRounds());
    return *streams_;
  }

  // A stream of sums over one float32 tensor "v".
  static v1::StreamSpec Spec(uint64_t buffer, const std::vector<double>& weights = {1.0}, uint64_t num_rows = 100) {
    v1::StreamSpec spec;
    *spec.mutable_round() = SumSpec(num_rows);
    spec.set_buffer(buffer);
    spec.mutable_staleness_weights()->Assign(weights.begin(), weights.end());
    return spec;
  }
  absl::StatusOr<std::shared_ptr<Stream>> TryOpenStream(const v1::StreamSpec& spec, const std::string& id = "s") {
    auto config = DecodeStreamSpec(spec, limits_);
    if (!config.ok()) return config.status();
    config->round.id = id;
    return streams().Create(*std::move(config));
  }
  std::shared_ptr<Stream> OpenStream(const v1::StreamSpec& spec, const std::string& id = "s") {
    auto stream = TryOpenStream(spec, id);
    EXPECT_THAT(stream, IsOk());
    return *std::move(stream);
  }

  // A submission of one key in one chunk.
  static absl::StatusOr<Receipt> Submit(Stream& stream, const std::string& client, const std::string& submission,
                                        uint64_t base_version, uint32_t key, float value = 1.0F) {
    ChunkSlice slice;
    slice.tensor = "v";
    slice.dtype = DType::kFloat32;
    slice.view.key_type = SliceView::Keys::kU32;
    const absl::string_view keys(reinterpret_cast<const char*>(&key), sizeof(key));
    const absl::string_view values(reinterpret_cast<const char*>(&value), sizeof(value));
    slice.view.keys = keys;
    slice.view.values = values;
    Chunk chunk;
    chunk.last = true;
    chunk.base_version = base_version;
    chunk.slices.push_back(slice);
    return stream.intake().Submit(client, submission, chunk);
  }

  std::shared_ptr<Round> VersionOf(const Stream& stream, uint64_t version) {
    const auto round = registry().Find(kDefaultTenant, stream.config().round.id + ".v" + std::to_string(version));
    EXPECT_THAT(round, IsOk());
    return *round;
  }

 private:
  std::unique_ptr<StreamRegistry> streams_;
};

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

TEST_F(StreamTest, Binned_TakesWeightsOnArrival) {
  v1::StreamSpec spec = Spec(2, {1.0, 0.25});
  spec.mutable_round()->mutable_aggregation()->set_numerics(v1::NUMERICS_BINNED);
  const auto stream = OpenStream(spec);
  for (const char* client : {"a", "b"}) ASSERT_THAT(Submit(*stream, client, "1", 0, 1), IsOk());
  for (const char* client : {"c", "d"}) ASSERT_THAT(Submit(*stream, client, "1", 0, 1), IsOk());
  AwaitEnd(*VersionOf(*stream, 2));
  EXPECT_THAT(ResultOf(*VersionOf(*stream, 2)), ElementsAre(Pair(1, 0.5F)));
}

// ---- Streams: random commits, retries, cuts and withdrawals on several threads, compared with what their answers say.
//
// Each submission has a key of its own, so that the keys of a version's result are the commits in it.

constexpr int kThreads = 4;
constexpr int kSteps = 25'000;  // of each thread
constexpr uint64_t kBuffer = 17;
constexpr size_t kMaxStaleness = 4;

struct Answered {
  std::string client;
  std::string submission;
  StreamPlace place;
  uint32_t key = 0;
  bool is_withdrawn = false;
};

class StreamModelTest : public StreamFixture {};

TEST_F(StreamModelTest, RandomSteps_EveryCommitIsInOneVersion) {
  const uint64_t seed = std::random_device()();  // allow(randomness): printed, and each thread's steps follow from it
  std::cout << "seed " << seed << "\n";
  std::vector<double> weights;
  for (size_t tau = 0; tau <= kMaxStaleness; ++tau) weights.push_back(1.0 / static_cast<double>(1 + tau));
  const auto stream = OpenStream(Spec(kBuffer, weights, /*num_rows=*/kThreads * kSteps));
  std::vector<std::vector<Answered>> answered(kThreads);
  std::atomic<uint64_t> num_stale = 0;
  std::atomic<uint64_t> num_cuts = 0;
  OnThreads(kThreads, [&](int t) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(t));
    const auto pick = [&](uint64_t below) { return random() % below; };
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t what = pick(100);
      std::vector<Answered>& own = answered[t];
      if (what < 2) {
        ASSERT_THAT(stream->Cut(pick(2) == 0 ? 0 : stream->Snapshot().version, CutCause::kCall), IsOk());
        ++num_cuts;
      } else if (what < 10 && !own.empty()) {
        // A retry, of a recent commit or an old one, with any base version.
        const Answered& again = own[pick(2) == 0 ? own.size() - 1 : pick(own.size())];
        if (again.is_withdrawn) continue;  // it would count anew, or be stale
        const auto receipt =
            Submit(*stream, again.client, again.submission, pick(stream->Snapshot().version), again.key);
        ASSERT_THAT(receipt, IsOk());
        EXPECT_TRUE(receipt->duplicate);
        EXPECT_EQ(receipt->stream->position, again.place.position);
        EXPECT_EQ(receipt->stream->version, again.place.version);
      } else if (what < 14 && !own.empty() && !own.back().is_withdrawn) {
        Answered& last = own.back();
        const auto withdrawn = stream->Withdraw(last.client, last.submission);
        if (withdrawn.ok()) {
          EXPECT_TRUE(*withdrawn);
          last.is_withdrawn = true;
        } else {
          EXPECT_THAT(withdrawn, HasCode(Code::kFailedPrecondition));
        }
      } else {
        const uint64_t latest = stream->Snapshot().version - 1;
        const uint64_t lag = pick(kMaxStaleness + 2);
        Answered commit{"c" + std::to_string(pick(5)),
                        std::to_string(t) + "-" + std::to_string(step),
                        {},
                        static_cast<uint32_t>(t * kSteps + step)};
        const uint64_t base = latest - std::min(lag, latest);
        const auto receipt = Submit(*stream, commit.client, commit.submission, base, commit.key);
        if (!receipt.ok()) {
          ASSERT_THAT(receipt, Fails(Code::kFailedPrecondition, ::testing::HasSubstr("stale by")));
          ++num_stale;
          continue;
        }
        EXPECT_FALSE(receipt->duplicate);
        commit.place = *receipt->stream;
        EXPECT_EQ(commit.place.base_version, base);
        ASSERT_LE(commit.place.staleness(), kMaxStaleness);
        EXPECT_EQ(commit.place.weight, weights[commit.place.staleness()]);
        own.push_back(commit);
      }
    }
  });
  ASSERT_THAT(stream->Cut(0, CutCause::kCall), IsOk());

  // What the answers say of each version.
  std::map<uint64_t, std::map<uint64_t, Answered>> model;  // by version and position
  std::set<uint64_t> positions;
  for (const auto& own : answered) {
    for (const Answered& commit : own) {
      EXPECT_TRUE(positions.insert(commit.place.position).second)
          << "two commits have position " << commit.place.position;
      if (!commit.is_withdrawn) model[commit.place.version].emplace(commit.place.position, commit);
    }
  }
  const uint64_t last = stream->Snapshot().version - 1;
  uint64_t latest_position = 0;
  uint64_t num_commits = 0;
  std::map<uint64_t, CutCause> causes;
  for (uint64_t after = 0; after < last;) {
    AwaitEnd(*VersionOf(*stream, after + 1));
    for (const StreamVersion& ended : stream->EndedAfter(after, 100)) {
      EXPECT_EQ(ended.version, after + 1);
      causes[ended.version] = ended.cause;
      after = ended.version;
    }
  }
  for (uint64_t version = 1; version <= last; ++version) {
    const auto round = VersionOf(*stream, version);
    std::map<std::pair<std::string, uint64_t>, uint32_t> expected;  // in the order of the fold
    std::map<uint64_t, float> sums;
    for (const auto& [position, commit] : model[version]) {
      EXPECT_GT(position, latest_position) << "a version has a commit from before the cut of an earlier one";
      latest_position = position;
      expected.emplace(std::make_pair(commit.client, position), commit.key);
      sums.emplace(commit.key, static_cast<float>(commit.place.weight));
      ++num_commits;
    }
    const auto page = round->ListSubmissions(100, "");
    ASSERT_THAT(page, IsOk());
    ASSERT_EQ(page->submissions.size(), expected.size()) << "version " << version;
    auto next = expected.begin();
    for (const ListedSubmission& listed : page->submissions) {
      EXPECT_EQ(listed.client_id, next->first.first);
      EXPECT_EQ(listed.stream->position, next->first.second);
      ++next;
    }
    if (causes[version] == CutCause::kFull) {
      EXPECT_EQ(expected.size(), kBuffer);
    } else {
      EXPECT_LE(expected.size(), kBuffer);
      EXPECT_GT(expected.size(), 0U);
    }
    EXPECT_EQ(ResultOf(*round), sums);
  }
  const StreamSnapshot snapshot = stream->Snapshot();
  EXPECT_EQ(snapshot.num_buffered, 0U);
  std::cout << kThreads * kSteps << " steps: " << num_commits << " commits in " << last << " versions, " << num_stale
            << " stale, " << num_cuts << " cuts by call\n";
}

}  // namespace
}  // namespace sparseagg::service
