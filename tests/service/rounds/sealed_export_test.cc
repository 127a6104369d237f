// SealedReader: rows of the submissions, for another merge.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "host/base/half.h"
#include "host/cpu/prepare/coarse_order.h"
#include "service/rounds/row_export.h"
#include "service/rounds/sealed_reader.h"
#include "tests/service/support/submissions_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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
  static ExportQuery Query(KeyInterval keys = {}, uint64_t max_bytes = kWholePage) {
    ExportQuery query;
    query.keys = keys;
    query.max_bytes = max_bytes;
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

// Large updates are kept in coarse order, and repeats apart.
class CoarseExportTest : public SealedExportTest {
 protected:
  // Keys of all buckets, or of two only; the first few are listed twice.
  std::shared_ptr<Round> OpenLarge(uint64_t num_rows, uint32_t bound, int num_repeats) {
    auto round = Open(SumSpec(num_rows), absl::StrCat("r", num_rows, ".", bound, ".", num_repeats));
    for (const char* const client : {"b", "a"}) {
      std::vector<uint32_t> keys(kKeys);
      std::vector<float> values(kKeys);
      for (uint32_t i = 0; i < kKeys; ++i) {
        keys[i] = static_cast<uint32_t>(uint64_t{i} * 7919 % kKeys * (bound / kKeys));
        values[i] = static_cast<float>(random_() % 1000);
      }
      for (int i = 0; i < num_repeats; ++i) keys[kKeys - 1 - i] = keys[i];
      EXPECT_THAT(Submit(*round, client, keys, values), IsOk());
    }
    EXPECT_THAT(Submit(*round, "small", {7, 5}, {1, 2}), IsOk());
    EXPECT_THAT(round->Seal(), IsOk());
    return round;
  }

  static ExportQuery InAnyOrder(KeyInterval keys, uint64_t max_bytes = kWholePage) {
    ExportQuery query = Query(keys, max_bytes);
    query.any_order = true;
    return query;
  }

  static std::vector<Exported> Sorted(std::vector<Exported> all) {
    for (Exported& each : all) {
      std::vector<std::pair<uint32_t, float>> rows;
      for (size_t i = 0; i < each.keys.size(); ++i) rows.emplace_back(each.keys[i], each.values[i]);
      std::stable_sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.first < b.first; });
      for (size_t i = 0; i < rows.size(); ++i) std::tie(each.keys[i], each.values[i]) = rows[i];
    }
    return all;
  }

  static constexpr uint32_t kKeys = 10'000;
  std::mt19937_64 random_{7};
};

TEST_F(CoarseExportTest, AnyOrder_AnyRange_HasTheSameRows) {
  for (const uint64_t num_rows : {uint64_t{1} << 24, uint64_t{1} << 31}) {
    for (const uint32_t bound : {uint32_t{1} << 24, uint32_t{30'000}}) {  // the second: all in few buckets
      for (const int num_repeats : {0, 1, 60}) {
        SCOPED_TRACE(absl::StrCat(num_rows, " rows, keys below ", bound, ", ", num_repeats, " repeats"));
        const auto round = OpenLarge(num_rows, bound, num_repeats);
        const uint64_t width = uint64_t{1} << cpu::CoarseBits(num_rows);
        std::vector<std::pair<KeyInterval, std::vector<Exported>>> coarse;
        // All; whole buckets; ends within buckets, of one and of several; one key; no key.
        for (const KeyInterval keys :
             {KeyInterval{0, 0}, KeyInterval{0, 3 * width}, KeyInterval{3 * width, 0}, KeyInterval{0, 5001},
              KeyInterval{5001, 9000}, KeyInterval{width + 3, 2 * width - 5}, KeyInterval{9000, 5 * width + 77},
              KeyInterval{7, 8}, KeyInterval{num_rows - 5, 0}, KeyInterval{12, 12}}) {
          const std::vector<Exported> whole = AllPages(*round, InAnyOrder(keys));
          for (const uint64_t max_bytes : {uint64_t{9000}, uint64_t{40'000}}) {
            EXPECT_EQ(AllPages(*round, InAnyOrder(keys, max_bytes)), whole) << keys.begin << " " << max_bytes;
          }
          coarse.emplace_back(keys, whole);
        }
        const Exported& first = coarse[0].second[0];
        EXPECT_FALSE(std::is_sorted(first.keys.begin(), first.keys.end())) << "nothing was sorted";
        if (bound > 30'000) {
          const auto buckets = [&](uint32_t a, uint32_t b) { return a / width < b / width; };
          EXPECT_TRUE(std::is_sorted(first.keys.begin(), first.keys.end(), buckets));
        }
        for (const auto& [keys, found] : coarse) {
          const std::vector<Exported> ascending = AllPages(*round, Query(keys));
          EXPECT_EQ(Sorted(found), ascending) << keys.begin << " to " << keys.end;
          EXPECT_EQ(AllPages(*round, InAnyOrder(keys)), ascending) << "as they are kept now";
        }
      }
    }
  }
}

TEST_F(CoarseExportTest, AnyOrder_SortedBetweenTwoPages_IsAborted) {
  const auto round = OpenLarge(uint64_t{1} << 24, uint32_t{1} << 24, 0);
  const auto page = SealedReader(*round).Export(InAnyOrder({}, 9000), "");
  ASSERT_THAT(page, IsOk());
  ASSERT_THAT(SealedReader(*round).Export(Query({5, 5}), ""), IsOk());
  EXPECT_THAT(SealedReader(*round).Export(InAnyOrder({}, 9000), page->next_page_token), IsOk()) << "no rows, no sort";
  ASSERT_THAT(SealedReader(*round).Export(Query(), ""), IsOk());
  EXPECT_THAT(SealedReader(*round).Export(InAnyOrder({}, 9000), page->next_page_token),
              Fails(Code::kAborted, HasSubstr("sorted since the page before")));
}

TEST_F(CoarseExportTest, CountKeys_CountsEachBucket) {
  struct Case {
    uint32_t bound;
    int num_repeats;
    KeyInterval range;
  };
  for (const auto& [bound, num_repeats, range] :
       {Case{1 << 24, 0, {1'000'000, 16'000'000}}, Case{1 << 24, 60, {1'000'000, 16'000'000}},
        Case{30'000, 60, {5000, 0}}}) {  // thousands in a coarse bucket
    const auto round = OpenLarge(uint64_t{1} << 24, bound, num_repeats);
    const std::vector<Exported> all = AllPages(*round, InAnyOrder(range));
    for (const KeyBuckets& buckets :
         {KeyBuckets{10, 0, {}}, KeyBuckets{23, 0, {}}, KeyBuckets{30, 0, {}}, KeyBuckets{7, 0, {}},
          KeyBuckets{0, 14, {900, 1, 1023}}, KeyBuckets{3, 20, {15}}, KeyBuckets{5, 63, {0}}}) {
      const auto counted = SealedReader(*round).CountKeys(InAnyOrder(range), buckets);
      if (buckets.within_bits == 63) {
        EXPECT_THAT(counted, Fails(Code::kInvalidArgument, HasSubstr("at most 131072 parts")));
        continue;
      }
      ASSERT_THAT(counted, IsOk());
      const uint32_t within_bits = buckets.within.empty() ? 24 : buckets.within_bits;
      const std::vector<uint64_t> within = buckets.within.empty() ? std::vector<uint64_t>{0} : buckets.within;
      const uint64_t parts = uint64_t{1} << (within_bits - std::min(within_bits, buckets.bits));
      std::vector<uint64_t> expected(within.size() * parts);
      for (const Exported& each : all) {
        for (const uint32_t key : std::set<uint32_t>(each.keys.begin(), each.keys.end())) {
          const auto at = std::find(within.begin(), within.end(), key >> within_bits);
          if (at == within.end()) continue;
          ++expected[static_cast<size_t>(at - within.begin()) * parts + ((key >> buckets.bits) & (parts - 1))];
        }
      }
      EXPECT_EQ(*counted, expected) << buckets.bits << " of " << within_bits;
    }
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

TEST_F(SealedExportTest, CountKeys_BadBuckets_AreRefused) {
  const auto round = Sealed(SumSpec(1'000'000));
  EXPECT_THAT(SealedReader(*round).CountKeys(Query(), {3, 0, {}}), IsOk());  // 131072 of 8 keys
  for (const KeyBuckets& bad : {KeyBuckets{2, 0, {}}, KeyBuckets{64, 0, {}}, KeyBuckets{9, 9, {1}},
                                KeyBuckets{3, 2, {1}}, KeyBuckets{0, 64, {1}}, KeyBuckets{0, 16, {1, 2, 3}}}) {
    EXPECT_THAT(SealedReader(*round).CountKeys(Query(), bad),
                Fails(Code::kInvalidArgument, HasSubstr("at most 131072 parts")));
  }
}

TEST_F(SealedExportTest, Export_BadCalls_AreRefused) {
  const auto open = Open(SumSpec(), "open");
  EXPECT_THAT(SealedReader(*open).Export(Query(), ""),
              Fails(Code::kFailedPrecondition, HasSubstr("the round is OPEN")));
  const auto round = Sealed();
  EXPECT_THAT(SealedReader(*round).Export(Query({5, 4}), ""), Fails(Code::kInvalidArgument, HasSubstr("ends at 4")));
  const std::string created = absl::StrCat(absl::ToUnixNanos(round->create_time()));
  for (const std::string& bad : {std::string("17.1.0"), created, created + ".4.0", created + ".x.0.3.0",
                                 created + ".1.0.3.x", created + ".1.0.3"}) {
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
