// SealedReader: inner products.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/rounds/sealed_reader.h"
#include "tests/service/support/submissions_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Code = absl::StatusCode;

constexpr uint64_t kPage = uint64_t{1} << 20;
constexpr auto kNever = [] { return false; };

class SealedInspectTest : public SubmissionsFixture {
 protected:
  std::shared_ptr<Round> Sealed(const v1::RoundSpec& spec = SumSpec()) {
    auto round = Open(spec);
    EXPECT_THAT(Submit(*round, "b", {7, 9}, {1, 2}), IsOk());
    EXPECT_THAT(Submit(*round, "a", {9, 7, 9}, {1, 10, 3}), IsOk());
    EXPECT_THAT(Submit(*round, "c", {3}, {5}), IsOk());
    EXPECT_THAT(round->Seal(), IsOk());
    return round;
  }
};

TEST_F(SealedInspectTest, Inspect_EndsWithTheCaller) {
  const auto round = Sealed();
  int num_rows = 0;
  const auto after_one = [&] { return ++num_rows == 2; };
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", after_one), Fails(Code::kCancelled, HasSubstr("cancelled")));
  EXPECT_EQ(num_rows, 2);
}

TEST_F(SealedInspectTest, Inspect_Pages_ContinueAtTheToken) {
  const auto round = Sealed();
  std::string token;
  std::vector<double> gram;
  int pages = 0;
  do {
    const auto page = SealedReader(*round).Inspect({}, 1, token, kNever);
    ASSERT_THAT(page, IsOk());
    EXPECT_EQ(page->first_row, pages);
    EXPECT_EQ(page->client_ids.size(), 1) << "at least one row, whatever the limit";
    gram.insert(gram.end(), page->gram.begin(), page->gram.end());
    token = page->next_page_token;
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(pages, 3);
  EXPECT_THAT(gram, ElementsAre(116, 18, 5, 0, 0, 25));
  const std::string created = absl::StrCat(absl::ToUnixNanos(round->create_time()));
  for (const std::string& bad : {std::string("17.1"), created, created + ".4", created + ".x.3", created + ".4.3"}) {
    EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, bad, kNever),
                Fails(Code::kInvalidArgument, HasSubstr("page_token")))
        << bad;
  }
}

TEST_F(SealedInspectTest, Inspect_MergedOnArrival_IsRefusedByName) {
  const auto round = OpenMerged();
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", kNever),
              Fails(Code::kFailedPrecondition, HasSubstr("tensor 'v': its submissions have been merged")));
}

TEST_F(SealedInspectTest, Inspect_TooManySubmissions_AreRefused) {
  const auto round = Open(SumSpec());
  for (uint64_t i = 0; i <= SealedReader::kMaxInspected; ++i) {
    if (i == SealedReader::kMaxInspected) {
      // Exactly at the limit.
      const auto twin = Open(SumSpec(), "twin");
      for (uint64_t k = 0; k < SealedReader::kMaxInspected; ++k) {
        ASSERT_THAT(Submit(*twin, absl::StrCat(k), {}, {}), IsOk());
      }
      ASSERT_THAT(twin->Seal(), IsOk());
      EXPECT_THAT(SealedReader(*twin).Inspect({}, 1, "", kNever), IsOk());
    }
    ASSERT_THAT(Submit(*round, absl::StrCat(i), {}, {}), IsOk());
  }
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", kNever),
              Fails(Code::kInvalidArgument, HasSubstr("4097 submissions; a round of at most 4096")));
}

TEST_F(SealedInspectTest, Inspect_ReservesItsMemory) {
  const auto round = Sealed();
  const uint64_t before = context().budget.reserved();
  {
    const auto page = SealedReader(*round).Inspect({}, kPage, "", kNever);
    ASSERT_THAT(page, IsOk());
    EXPECT_GE(context().budget.reserved(), before + page->MemoryBytes());
  }
  EXPECT_EQ(context().budget.reserved(), before);
}

TEST_F(SealedInspectTest, Inspect_WithoutMemory_IsRefusedAndNothingIsLost) {
  limits_.memory_limit_bytes = 1'000'000;
  const auto round = Sealed();
  const uint64_t before = context().budget.reserved();
  EXPECT_THAT(SealedReader(*round).Inspect({}, uint64_t{1} << 30, "", kNever),
              Fails(Code::kResourceExhausted, HasSubstr("inspection")));
  EXPECT_EQ(context().budget.reserved(), before);
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(3, 5), Pair(7, 11), Pair(9, 6)));
}

}  // namespace
}  // namespace sparseagg::service
