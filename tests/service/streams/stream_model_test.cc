// Streams: random commits, retries, cuts and withdrawals on several threads, compared with what their answers say.
//
// Each submission has a key of its own, so that the keys of a version's result are the commits in it.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/service/support/on_threads.h"
#include "tests/service/support/stream_fixture.h"

namespace sparseagg::service {
namespace {

using Code = absl::StatusCode;

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
