// Chunks spoilt at random: whatever comes, the answer is a status of the caller's fault, and what was taken before
// stays as it was. Run under the sanitizers, this is also the test that nothing is read or written out of bounds.
#include <random>

#include "host/wire/delta_keys.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/spec_codec.h"
#include "service/rounds/upload.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/three_tensors.h"

namespace sparseagg::service {
namespace {

constexpr uint64_t kMutationSeed = 20261201;
constexpr uint64_t kNumRows = 3000;
using Random = std::mt19937_64;

std::string ValueBytes(Random& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random() & 0x3f);  // finite floats, most of them
  return bytes;
}

v1::TensorSlice GoodSlice(Random& random) {
  v1::TensorSlice slice;
  const uint64_t tensor = random() % 3;
  slice.set_tensor(tensor == 0 ? "v" : tensor == 1 ? "w" : "u");
  std::vector<uint32_t> keys;
  for (uint32_t key = random() % 50; key < kNumRows && keys.size() < 300; key += 1 + random() % 12) {
    keys.push_back(key);
  }
  slice.set_num_keys(keys.size());
  slice.set_first_key(keys.front());
  switch (random() % 3) {
    case 0:
      slice.set_key_encoding(v1::KEY_ENCODING_DELTA_BITPACKED);
      slice.set_keys(wire::EncodeDeltaKeys(keys));
      break;
    case 1:
      slice.set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
      break;
    default:
      slice.set_key_encoding(v1::KEY_ENCODING_U32);
      slice.set_first_key(0);
      slice.set_keys(Packed(keys));
  }
  const size_t num_values = keys.size() * (tensor == 0 ? 2 : 1);
  switch (random() % 4) {
    case 0:
      slice.set_value_encoding(v1::VALUE_ENCODING_FLOAT16);
      slice.set_values(ValueBytes(random, 2 * num_values));
      break;
    case 1:
      slice.set_value_encoding(v1::VALUE_ENCODING_INT8_SCALED);
      slice.set_values(std::string(4 * ((num_values + 63) / 64), '\0') + ValueBytes(random, num_values));
      break;
    case 2:
      if (tensor == 2) {
        slice.set_value_encoding(v1::VALUE_ENCODING_NONE);
        break;
      }
      [[fallthrough]];
    default:
      slice.set_values(ValueBytes(random, (tensor == 1 ? 8 : 4) * num_values));
  }
  return slice;
}

void SpoilBytes(Random& random, std::string& bytes) {
  const size_t at = bytes.empty() ? 0 : random() % bytes.size();
  switch (random() % 3) {
    case 0:
      bytes.resize(at);
      break;
    case 1:
      bytes.append(1 + random() % 9, static_cast<char>(random()));
      break;
    default:
      if (!bytes.empty()) bytes[at] = static_cast<char>(random());
  }
}

void Spoil(Random& random, v1::TensorSlice& slice) {
  const uint64_t number = random() >> (random() % 64);
  switch (random() % 8) {
    case 0:
      slice.set_key_encoding(static_cast<v1::KeyEncoding>(random() % 7));
      break;
    case 1:
      slice.set_value_encoding(static_cast<v1::ValueEncoding>(random() % 12));
      break;
    case 2:
      slice.set_first_key(random() % 2 == 0 ? number : ~number);
      break;
    case 3:
      slice.set_num_keys(number);
      break;
    case 4:
      slice.set_keys_unique(true);
      slice.set_keys_sorted(true);
      break;
    case 5:
      SpoilBytes(random, *slice.mutable_values());
      break;
    default:
      SpoilBytes(random, *slice.mutable_keys());
  }
}

TEST(ChunkMutation, SpoiltSlices_AreTakenOrRefusedAsTheCallersFault) {
  constexpr int kTrials = 4000;
  Limits limits;
  limits.max_tuples_per_submission = 100'000;
  const auto config = DecodeRoundSpec(ThreeTensors(kNumRows), limits);
  ASSERT_THAT(config, IsOk());
  const auto shared = std::make_shared<const RoundConfig>(*config);
  int num_taken = 0;
  int num_refused = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const uint64_t seed = kMutationSeed + static_cast<uint64_t>(trial);
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    MemoryBudget budget(4 << 20);
    Upload upload(shared, &budget);
    v1::UpdateChunk wire;
    wire.set_last(true);
    for (uint64_t i = random() % 3 + 1; i > 0; --i) *wire.add_slices() = GoodSlice(random);
    const bool is_spoilt = random() % 4 != 0;
    for (uint64_t i = is_spoilt ? random() % 3 + 1 : 0; i > 0; --i) {
      Spoil(random, *wire.mutable_slices(static_cast<int>(random() % static_cast<uint64_t>(wire.slices_size()))));
    }
    const auto chunk = DecodeChunk(wire);
    absl::Status status = chunk.ok() ? upload.Append(*chunk) : chunk.status();
    if (status.ok()) status = upload.TakeUpdates().status();
    EXPECT_TRUE(is_spoilt || status.ok()) << status;
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)) << status;
    EXPECT_LE(budget.reserved(), 2 * budget.limit());
    (status.ok() ? num_taken : num_refused) += 1;
  }
  EXPECT_GT(num_taken, kTrials / 5);
  EXPECT_GT(num_refused, kTrials / 5);
}

}  // namespace
}  // namespace sparseagg::service
