// SealedReader: rows of the submissions, for another merge.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/half.h"
#include "service/rounds/row_export.h"
#include "service/rounds/sealed_reader.h"
#include "tests/service/support/submissions_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Code = absl::StatusCode;

constexpr uint64_t kWholePage = uint64_t{1} << 20;

// One submission as pages have it.
struct Exported {
  std::string client;
  double weight;
  std::vector<uint32_t> keys;
  std::vector<float> values;
};
bool operator==(const Exported& a, const Exported& b) {
  return a.client == b.client && a.weight == b.weight && a.keys == b.keys && a.values == b.values;
}

class SealedExportTest : public SubmissionsFixture {
 protected:
  static ExportQuery Query(KeyInterval keys = {}, uint64_t max_bytes = kWholePage, uint64_t sample_every = 0) {
    ExportQuery query;
    query.keys = keys;
    query.max_bytes = max_bytes;
    query.sample_every = sample_every;
    return query;
  }

  std::shared_ptr<Round> Sealed(const v1::RoundSpec& spec = SumSpec()) {
    auto round = Open(spec);
    EXPECT_THAT(Submit(*round, "b", {7, 9}, {1, 2}), IsOk());
    EXPECT_THAT(Submit(*round, "a", {9, 7, 8}, {1, 10, 3}), IsOk());
    EXPECT_THAT(Submit(*round, "c", {3}, {5}), IsOk());
    EXPECT_THAT(round->Seal(), IsOk());
    return round;
  }

  // Appends the submissions of a page; one that goes on from the page before is not begun again.
  static void AddTo(std::vector<Exported>& all, const ExportPage& page) {
    const std::vector<double> weights = Unpacked<double>(page.weights);
    const std::vector<uint32_t> num_keys = Unpacked<uint32_t>(page.num_keys);
    const std::vector<uint32_t> keys = Unpacked<uint32_t>(page.keys);
    const std::vector<float> values = Unpacked<float>(page.values);
    std::vector<std::string> clients = absl::StrSplit(page.client_ids, '\n');
    if (weights.empty()) clients.clear();
    ASSERT_EQ(clients.size(), weights.size());
    ASSERT_EQ(num_keys.size(), weights.size());
    ASSERT_EQ(keys.size(), page.num_rows);
    size_t at = 0;
    for (size_t i = 0; i < clients.size(); ++i) {
      if (all.empty() || all.back().client != clients[i]) all.push_back({clients[i], weights[i], {}, {}});
      for (uint32_t k = 0; k < num_keys[i]; ++k, ++at) {
        all.back().keys.push_back(keys[at]);
        all.back().values.push_back(values[at]);
      }
    }
    ASSERT_EQ(at, keys.size());
  }

  static std::vector<Exported> AllPages(Round& round, const ExportQuery& query, int* num_pages = nullptr) {
    std::vector<Exported> all;
    std::string token;
    int pages = 0;
    do {
      const auto page = SealedReader(round).Export(query, token);
      EXPECT_THAT(page, IsOk());
      if (!page.ok()) break;
      EXPECT_LE(page->client_ids.size() + page->keys.size() + page->values.size(),
                SealedReader::ExportPageBytes(round.config(), query));
      AddTo(all, *page);
      EXPECT_TRUE(page->next_page_token.empty() || page->next_page_token != token) << "the next page is the same one";
      token = page->next_page_token;
      ++pages;
    } while (!token.empty() && pages < 10'000);
    if (num_pages != nullptr) *num_pages = pages;
    return all;
  }
};

TEST_F(SealedExportTest, Export_RoundIsCancelledMeanwhile_SaysSo) {
  std::shared_ptr<Round> round;
  hooks_.read = [&] { return round->Cancel("enough"); };
  round = Sealed();
  EXPECT_THAT(SealedReader(*round).Export(Query(), ""),
              Fails(Code::kFailedPrecondition, HasSubstr("the round is CANCELLED")));
}

TEST_F(SealedExportTest, Export_ListsAllClientsInOrder) {
  const auto round = Sealed();
  EXPECT_THAT(AllPages(*round, Query()), ElementsAre(Exported{"a", 1, {7, 8, 9}, {10, 3, 1}},
                                                     Exported{"b", 1, {7, 9}, {1, 2}}, Exported{"c", 1, {3}, {5}}));
  EXPECT_THAT(AllPages(*round, Query({8, 9})),
              ElementsAre(Exported{"a", 1, {8}, {3}}, Exported{"b", 1, {}, {}}, Exported{"c", 1, {}, {}}));
  EXPECT_THAT(AllPages(*round, Query({9, 0})).front(), (Exported{"a", 1, {9}, {1}}));
  EXPECT_EQ(round->state(), RoundState::kSealed);
  ASSERT_THAT(round->Close(), IsOk());
  EXPECT_THAT(ResultOf(*round), ElementsAre(Pair(3, 5), Pair(7, 11), Pair(8, 3), Pair(9, 3)));
}

TEST_F(SealedExportTest, Export_AnyPageSize_GivesTheSame) {
  const auto round = Sealed();
  const std::vector<Exported> all = AllPages(*round, Query());
  for (uint64_t max_bytes = 1; max_bytes < 120; ++max_bytes) {
    int pages = 0;
    EXPECT_EQ(AllPages(*round, Query({}, max_bytes), &pages), all) << max_bytes;
    if (max_bytes == 1) {
      EXPECT_EQ(pages, 6) << "one row each";
    }
    EXPECT_EQ(AllPages(*round, Query({8, 10}, max_bytes)), AllPages(*round, Query({8, 10}))) << max_bytes;
  }
}

TEST_F(SealedExportTest, Export_Weights_AreThoseSent) {
  const auto round = Open(MeanSpec());
  ASSERT_THAT(SubmitWeighted(*round, "a", 10, 3), IsOk());
  ASSERT_THAT(SubmitWeighted(*round, "b", -2, 0), IsOk());
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(AllPages(*round, Query()), ElementsAre(Exported{"a", 3, {7}, {10}}, Exported{"b", 0, {7}, {-2}}));
}

TEST_F(SealedExportTest, Export_RepeatedKeys_AddUpToTheirSum) {
  const auto round = Open(SumSpec());
  const float tiny = 0x1p-40f;
  ASSERT_THAT(Submit(*round, "a", {5, 2, 5}, {1, 7, tiny}), IsOk());
  ASSERT_THAT(round->Seal(), IsOk());
  const std::vector<Exported> all = AllPages(*round, Query());
  EXPECT_THAT(all, ElementsAre(Exported{"a", 1, {2, 5, 5}, {7, 1, tiny}}));
  for (uint64_t max_bytes = 1; max_bytes < 60; ++max_bytes) {
    EXPECT_EQ(AllPages(*round, Query({}, max_bytes)), all) << max_bytes;
  }
}

TEST_F(SealedExportTest, Export_SumOfTooManyTerms_IsRefused) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_tensors(0)->set_dtype(v1::DTYPE_INT32);
  spec.set_keep_submissions(true);
  const auto round = Open(spec);
  v1::UpdateChunk chunk = MakeChunk("", "a", std::vector<uint32_t>(70, 4), std::vector<float>(70));
  chunk.mutable_slices(0)->set_value_encoding(v1::VALUE_ENCODING_INT32);
  chunk.mutable_slices(0)->set_values(Packed(std::vector<int32_t>(70, INT32_MAX)));
  ASSERT_THAT(Submit(*round, chunk), IsOk());
  ASSERT_THAT(round->Seal(), IsOk());
  EXPECT_THAT(SealedReader(*round).Export(Query(), ""),
              Fails(Code::kFailedPrecondition, AllOf(HasSubstr("key 4"), HasSubstr("64"))));
  EXPECT_THAT(SealedReader(*round).Export(Query({5, 0}), ""), IsOk());
}

TEST_F(SealedExportTest, Export_Sample_HasEveryNthKey) {
  const auto round = Open(SumSpec(1'000'000));
  std::vector<uint32_t> keys(1000);
  for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = 17 * i;
  for (int client = 0; client < 20; ++client) {
    ASSERT_THAT(Submit(*round, absl::StrCat(client), keys, std::vector<float>(keys.size(), 1)), IsOk());
  }
  ASSERT_THAT(round->Seal(), IsOk());
  for (const uint64_t every : {1, 7, 999, 1000, 5000}) {
    std::vector<uint32_t> sample;
    std::string token;
    do {
      const auto page = SealedReader(*round).Export(Query({}, 1000, every), token);
      ASSERT_THAT(page, IsOk());
      EXPECT_THAT(page->client_ids + page->weights + page->values, IsEmpty());
      EXPECT_LE(page->keys.size(), 1000u);
      for (const uint32_t key : Unpacked<uint32_t>(page->keys)) sample.push_back(key);
      token = page->next_page_token;
    } while (!token.empty());
    EXPECT_EQ(sample, Unpacked<uint32_t>(SealedReader(*round).Export(Query({}, kWholePage, every), "")->keys));
    const double expected = 20'000.0 / static_cast<double>(every);
    EXPECT_NEAR(static_cast<double>(sample.size()), expected, every < 5000 ? 20 : 3) << every;
    for (const uint32_t key : sample) EXPECT_EQ(key % 17, 0);
  }
}

TEST_F(SealedExportTest, Export_BadCalls_AreRefused) {
  const auto open = Open(SumSpec(), "open");
  EXPECT_THAT(SealedReader(*open).Export(Query(), ""),
              Fails(Code::kFailedPrecondition, HasSubstr("the round is OPEN")));
  const auto round = Sealed();
  EXPECT_THAT(SealedReader(*round).Export(Query({5, 4}), ""), Fails(Code::kInvalidArgument, HasSubstr("ends at 4")));
  const std::string created = absl::StrCat(absl::ToUnixNanos(round->create_time()));
  for (const std::string& bad : {std::string("17.1.0"), created, created + ".4.0", created + ".x.0", created + ".1"}) {
    EXPECT_THAT(SealedReader(*round).Export(Query(), bad), Fails(Code::kInvalidArgument, HasSubstr("page_token")))
        << bad;
  }
  ASSERT_THAT(round->Close(), IsOk());
  EXPECT_THAT(SealedReader(*round).Export(Query(), ""), HasCode(Code::kFailedPrecondition));
  v1::RoundSpec scaled = SumSpec();
  scaled.mutable_clip()->set_l2(5);
  const auto clipped = Open(scaled, "clipped");
  ASSERT_THAT(clipped->Seal(), IsOk());
  EXPECT_THAT(SealedReader(*clipped).Export(Query(), ""), Fails(Code::kFailedPrecondition, HasSubstr("clip.l2")));
}

TEST_F(SealedExportTest, Export_NoSubmissions_IsOneEmptyPage) {
  const auto round = Open(SumSpec());
  ASSERT_THAT(round->Seal(), IsOk());
  int pages = 0;
  EXPECT_THAT(AllPages(*round, Query(), &pages), IsEmpty());
  EXPECT_EQ(pages, 1);
}

TEST_F(SealedExportTest, Export_MergedOnArrival_IsRefusedUnlessKept) {
  const auto merged = OpenMerged();
  ASSERT_THAT(merged->Seal(), IsOk());
  EXPECT_THAT(SealedReader(*merged).Export(Query(), ""), Fails(Code::kFailedPrecondition, HasSubstr("merged")));
}

TEST_F(SealedExportTest, KeepSubmissions_NothingIsMergedBeforeTheClose) {
  v1::RoundSpec spec = SumSpec(1'000'000);
  spec.mutable_aggregation()->set_op(v1::OP_MAX);
  spec.set_keep_submissions(true);
  const auto round = Open(spec);
  EXPECT_FALSE(round->MergesOnArrival());
  std::vector<uint32_t> keys(1'000'000);
  for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const std::vector<float> values(keys.size(), 1);
  for (int client = 0; client < 10; ++client) {  // 80 MB: engines merge at 64 MiB
    ASSERT_THAT(Submit(*round, absl::StrCat(client), keys, values), IsOk());
  }
  EXPECT_THAT(round->Withdraw("3", ""), IsOkAndHolds(true));
  ASSERT_THAT(round->Seal(), IsOk());
  const auto page = SealedReader(*round).Export(Query({10, 12}), "");
  ASSERT_THAT(page, IsOk());
  EXPECT_EQ(page->num_rows, 18);
  ASSERT_THAT(round->Close(), IsOk());
  EXPECT_EQ(ResultOf(*round).size(), 1'000'000);
}

// ---- rows of a wider type

TensorSpec FloatSpec(DType dtype) {
  TensorSpec spec;
  spec.name = "v";
  spec.dtype = dtype;
  spec.num_rows = 100;
  return spec;
}

TEST(RowExport, FoldedFloats_AddUpToTheSameBits) {
  const uint32_t seed = 38;
  std::mt19937_64 random(seed);
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const TensorSpec spec = FloatSpec(dtype);
    const auto value_of = [&](const char* bytes) -> double {
      uint16_t half;
      float single;
      if (dtype == DType::kFloat32) {
        std::memcpy(&single, bytes, sizeof(single));
        return single;
      }
      std::memcpy(&half, bytes, sizeof(half));
      return dtype == DType::kFloat16 ? WidenFloat16(half) : WidenBFloat16(half);
    };
    const size_t size = SizeOf(dtype);
    for (int i = 0; i < 20'000; ++i) {
      // The fold of a few values of the dtype of any bits, but NaN and infinity.
      double folded = 0.0;
      for (uint64_t terms = 2 + random() % 4; terms > 0; --terms) {
        const uint64_t bits = random();
        const double value = value_of(reinterpret_cast<const char*>(&bits));
        if (std::isfinite(value)) folded += value;
      }
      const std::vector<uint32_t> keys = {3};
      UpdateRows row;
      row.keys = absl::MakeConstSpan(keys);
      row.num_keys = 1;
      row.values = reinterpret_cast<const std::byte*>(&folded);
      row.dtype = DType::kFloat64;
      ExportPage page;
      ASSERT_THAT(AppendRows(spec, row, {0, 1}, 100, page), IsOk());
      double again = 0.0;
      for (uint64_t term = 0; term < page.num_rows; ++term) again += value_of(page.values.data() + term * size);
      ASSERT_EQ(std::bit_cast<uint64_t>(again), std::bit_cast<uint64_t>(folded)) << Name(dtype) << " " << folded;
    }
  }
}

}  // namespace
}  // namespace sparseagg::service
