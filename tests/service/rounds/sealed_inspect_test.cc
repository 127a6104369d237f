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
using ::testing::IsEmpty;
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

TEST_F(SealedInspectTest, Inspect_HasTheLowerTriangles) {
  const auto round = Sealed();
  for (int i = 0; i < 2; ++i) {  // the second time from sorted submissions
    const auto page = SealedReader(*round).Inspect({}, kPage, "", kNever);
    ASSERT_THAT(page, IsOk());
    EXPECT_EQ(page->num_clients, 3);
    EXPECT_EQ(page->first_row, 0);
    EXPECT_THAT(page->client_ids, ElementsAre("a", "b", "c"));
    EXPECT_THAT(page->gram, ElementsAre(116, 18, 5, 0, 0, 25));
    EXPECT_THAT(page->squared_distances, ElementsAre(0, 85, 0, 141, 30, 0));
    EXPECT_THAT(page->overlap, ElementsAre(2, 2, 2, 0, 0, 1));
    EXPECT_EQ(page->next_page_token, "");
  }
  EXPECT_EQ(round->state(), RoundState::kSealed);
  EXPECT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(3, 5), Pair(7, 11), Pair(9, 6)));
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

TEST_F(SealedInspectTest, Inspect_WithinBounds_IsOfWhatIsMerged) {
  v1::RoundSpec spec = MeanSpec();
  spec.mutable_clip()->set_l2(5);
  const auto round = Open(spec);
  ASSERT_THAT(SubmitWeighted(*round, "a", 10, 3), IsOk());
  ASSERT_THAT(SubmitWeighted(*round, "b", -2, 7), IsOk());
  ASSERT_THAT(round->Seal(), IsOk());
  const auto page = SealedReader(*round).Inspect({}, kPage, "", kNever);
  ASSERT_THAT(page, IsOk());
  EXPECT_THAT(page->gram, ElementsAre(25, -10, 4)) << "clipped, and without the weights";
}

TEST_F(SealedInspectTest, Inspect_Tensors_AreNamedOrThoseOfFloats) {
  v1::RoundSpec spec = SumSpec();
  *spec.add_tensors() = spec.tensors(0);
  spec.mutable_tensors(1)->set_name("w");
  *spec.add_tensors() = spec.tensors(0);
  spec.mutable_tensors(2)->set_name("n");
  spec.mutable_tensors(2)->set_dtype(v1::DTYPE_INT64);
  *spec.add_tensors() = spec.tensors(0);
  spec.mutable_tensors(3)->set_name("u");
  spec.mutable_tensors(3)->mutable_aggregation()->set_op(v1::OP_UNION);
  const auto round = Open(spec);
  v1::UpdateChunk chunk = MakeChunk("", "a", {7}, {2});
  *chunk.add_slices() = chunk.slices(0);
  chunk.mutable_slices(1)->set_tensor("w");
  *chunk.mutable_slices(1)->mutable_values() = Packed<float>({3});
  ASSERT_THAT(Submit(*round, chunk), IsOk());
  ASSERT_THAT(round->Seal(), IsOk());
  const auto gram = [&](std::vector<size_t> tensors) {
    return SealedReader(*round).Inspect(std::move(tensors), kPage, "", kNever)->gram;
  };
  EXPECT_THAT(gram({}), ElementsAre(13));
  EXPECT_THAT(gram({0}), ElementsAre(4));
  EXPECT_THAT(gram({1}), ElementsAre(9));
  EXPECT_EQ(SealedReader(*round).Inspect({0, 1}, kPage, "", kNever)->overlap, std::vector<uint64_t>{2});
  EXPECT_THAT(SealedReader(*round).Inspect({2}, kPage, "", kNever),
              Fails(Code::kInvalidArgument, HasSubstr("tensor 'n'")));
  EXPECT_THAT(SealedReader(*round).Inspect({0, 3}, kPage, "", kNever),
              Fails(Code::kInvalidArgument, HasSubstr("tensor 'u'")));
}

TEST_F(SealedInspectTest, Inspect_OtherStates_AreRefused) {
  const auto round = Open(SumSpec());
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", kNever),
              Fails(Code::kFailedPrecondition, HasSubstr("the round is OPEN")));
  ASSERT_THAT(round->Seal(), IsOk());
  const auto empty = SealedReader(*round).Inspect({}, kPage, "", kNever);
  ASSERT_THAT(empty, IsOk());
  EXPECT_THAT(empty->gram, IsEmpty());
  EXPECT_EQ(empty->next_page_token, "");
  EXPECT_THAT(round->Close(), IsOk());
  AwaitEnd(*round);
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", kNever),
              Fails(Code::kFailedPrecondition, HasSubstr("the round is DONE")));
}

TEST_F(SealedInspectTest, Inspect_MergedOnArrival_IsRefusedByName) {
  const auto round = OpenMerged();
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", kNever),
              Fails(Code::kFailedPrecondition, HasSubstr("tensor 'v': its submissions have been merged")));
}

TEST_F(SealedInspectTest, Inspect_NoFloats_IsRefused) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_tensors(0)->set_dtype(v1::DTYPE_INT64);
  const auto round = Open(spec);
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(SealedReader(*round).Inspect({}, kPage, "", kNever),
              Fails(Code::kInvalidArgument, HasSubstr("no tensor of floats")));
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
