// A message that is taken apart says what Protocol Buffers would have read in it, wherever the wire cut it and whatever
// is in it, or is refused for a field that nobody knows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "service/codec/parse.h"
#include "service/codec/sliced_message.h"

namespace sparseagg::service {
namespace {

constexpr uint64_t kMessageSeed = 20261121;
using Random = std::mt19937_64;

std::string AnyBytes(Random& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string RandomLetters(Random& random, size_t size) {
  std::string letters(size, '\0');
  for (char& letter : letters) letter = static_cast<char>('a' + random() % 26);
  return letters;
}

v1::UpdateChunk RandomChunk(Random& random, size_t most_bytes) {
  v1::UpdateChunk chunk;
  if (random() % 2 == 0) chunk.set_round("rounds/r");
  if (random() % 2 == 0) chunk.set_client_id("c\xc3\xa4");
  chunk.set_sequence(random() >> (random() % 64));
  chunk.set_last(random() % 2 == 0);
  if (random() % 2 == 0) chunk.set_weight(2.5);
  for (uint64_t i = random() % 4; i > 0; --i) {
    v1::TensorSlice* slice = chunk.add_slices();
    slice->set_tensor(random() % 2 == 0 ? "v" : "");
    slice->set_key_encoding(static_cast<v1::KeyEncoding>(random() % 6));
    slice->set_value_encoding(static_cast<v1::ValueEncoding>(random() % 11));
    slice->set_first_key(random() >> (random() % 64));
    slice->set_num_keys(random() % 1000);
    slice->set_keys_sorted(random() % 2 == 0);
    if (random() % 4 != 0) slice->set_keys(AnyBytes(random, random() % most_bytes));
    if (random() % 4 != 0) slice->set_values(AnyBytes(random, random() % most_bytes));
  }
  return chunk;
}

// What else a serialised message may have in it.
void AddOddities(Random& random, std::string& bytes) {
  switch (random() % 6) {
    case 0:
      bytes += RandomChunk(random, 100).SerializeAsString();  // the last of each scalar counts
      break;
    case 1:
      bytes += "\xa0\x06\x05";  // field 100, unknown, a varint
      break;
    case 2:
      bytes += std::string("\x3a\x08\x10\x01\x32\x01x\x32\x01y", 10);  // a slice of U32 with keys twice: "y"
      break;
    case 3:
      bytes += std::string("\x3a\x02\x30\x01", 4);  // a slice with a varint where keys belong
      break;
    case 4:
      bytes += "\xa3\x06\xa4\x06";  // an empty group
      break;
    default:
      bytes += std::string("\x3a\x04\x32\x09xy", 6);  // keys that go beyond their slice
  }
}

void Spoil(Random& random, std::string& bytes) {
  if (bytes.empty()) return;
  const size_t at = random() % bytes.size();
  random() % 2 == 0 ? bytes.resize(at) : void(bytes[at] = static_cast<char>(random()));
}

// Returns: the bytes in pieces, as they are received.
absl::Cord InPieces(Random& random, const std::string& bytes, size_t most_bytes) {
  absl::Cord cord;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t size = std::min<size_t>(bytes.size() - begin, random() % most_bytes);
    // Appended as a string, it would join the piece before it.
    cord.Append(absl::MakeCordFromExternal(absl::string_view(bytes).substr(begin, size), [] {}));
    begin += size;
  }
  return cord;
}

std::string Flat(const ByteSpans& pieces) {
  Column<char> storage;
  return std::string(pieces.Flatten(storage));
}

std::string Describe(const absl::StatusOr<Chunk>& chunk) {
  if (!chunk.ok()) return chunk.status().ToString();
  std::string text = absl::StrCat(chunk->sequence, " ", chunk->last, " ", chunk->weight.value_or(-1));
  for (const ChunkSlice& slice : chunk->slices) {
    absl::StrAppend(&text, "\n", slice.tensor, " ", static_cast<int>(slice.view.key_type), " ", slice.view.first_key,
                    " ", slice.view.num_keys, " ", slice.view.has_values, " ",
                    static_cast<int>(slice.view.value_packing), " ",
                    slice.dtype.has_value() ? static_cast<int>(*slice.dtype) : -1, " ", slice.keys_sorted, " ",
                    slice.keys_unique, " ", Flat(slice.view.keys), " ", Flat(slice.view.values));
  }
  return text;
}

TEST(ChunkMessage, SaysWhatProtocolBuffersReads) {
  constexpr int kTrials = 3000;
  int num_taken = 0;
  int num_refused = 0;
  int num_apart = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const uint64_t seed = kMessageSeed + static_cast<uint64_t>(trial);
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    std::string bytes = RandomChunk(random, size_t{1} << (4 + random() % 13)).SerializeAsString();
    if (random() % 4 == 0) AddOddities(random, bytes);
    if (random() % 4 == 0) Spoil(random, bytes);

    v1::UpdateChunk plain;
    const bool parses = plain.ParseFromString(bytes) && FindUnknownFields(plain).empty();
    const absl::Cord buffer = InPieces(random, bytes, 1 + (size_t{1} << (random() % 16)));
    ChunkMessage message;
    ASSERT_EQ(message.Parse(buffer).ok(), parses);
    (parses ? num_taken : num_refused) += 1;
    if (!parses) continue;
    EXPECT_EQ(message.head().round(), plain.round());
    EXPECT_EQ(message.head().client_id(), plain.client_id());
    EXPECT_EQ(Describe(message.Decode()), Describe(DecodeChunk(plain)));
    for (int i = 0; i < plain.slices_size(); ++i) {
      if (plain.slices(i).values().empty() || !message.head().slices(i).values().empty()) continue;
      ++num_apart;
      break;
    }
  }
  EXPECT_GT(num_taken, kTrials / 2);
  EXPECT_GT(num_refused, kTrials / 20);
  EXPECT_GT(num_apart, kTrials / 10);
}

TEST(ChunkMessage, ParseFrom_AnAggregateRequest_SaysTheSameOfItsChunk) {
  constexpr int kTrials = 1000;
  int num_apart = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const uint64_t seed = kMessageSeed + static_cast<uint64_t>(trial);
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    v1::AggregateRequest sent;
    if (random() % 4 != 0) {
      *sent.mutable_chunk() = RandomChunk(random, size_t{1} << (4 + random() % 13));
    } else {
      sent.mutable_spec()->add_tensors()->set_name(RandomLetters(random, random() % 40'000));
      sent.mutable_format()->set_value_encoding(v1::VALUE_ENCODING_FLOAT16);
    }
    std::string bytes = sent.SerializeAsString();
    if (random() % 4 == 0) Spoil(random, bytes);

    v1::AggregateRequest plain;
    const bool parses = plain.ParseFromString(bytes) && FindUnknownFields(plain).empty();
    const absl::Cord buffer = InPieces(random, bytes, 1 + (size_t{1} << (random() % 16)));
    ChunkMessage message;
    v1::AggregateRequest request;
    ASSERT_EQ(message.ParseFrom(buffer, Limits{}, &request).ok(), parses);
    if (!parses) continue;
    EXPECT_EQ(request.has_chunk(), plain.has_chunk());
    EXPECT_EQ(request.spec().SerializeAsString(), plain.spec().SerializeAsString());
    EXPECT_EQ(request.format().SerializeAsString(), plain.format().SerializeAsString());
    if (!plain.has_chunk()) continue;
    EXPECT_EQ(Describe(message.Decode()), Describe(DecodeChunk(plain.chunk())));
    if (bytes.size() > 20'000) ++num_apart;
  }
  EXPECT_GT(num_apart, kTrials / 20);
}

// What Protocol Buffers makes of these takes a hundred times their memory.
TEST(ChunkMessage, MoreSlicesThanAnybodyNeeds_AreRefused) {
  std::string bytes = v1::UpdateChunk().SerializeAsString();
  for (int i = 0; i < 100'000; ++i) bytes += std::string("\x3a\x00", 2);
  const absl::Cord buffer(bytes);
  ChunkMessage message;
  const absl::Status status = message.Parse(buffer);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("more than 8192 slices"));
  EXPECT_EQ(message.head().slices_size(), 0);
}

TEST(ChunkMessage, LongNames_AreRefused) {
  v1::UpdateChunk chunk;
  chunk.set_round(std::string(size_t{2} << 20, 'r'));
  const absl::Cord buffer(chunk.SerializeAsString());
  ChunkMessage message;
  EXPECT_THAT(std::string(message.Parse(buffer).message()), ::testing::HasSubstr("besides keys and values"));
}

// Such as a new encoding's parameter: without it the values would be others.
TEST(ChunkMessage, FieldsThatNobodyKnows_AreRefusedByTheirNumbers) {
  const std::string unknown = "\xa0\x06\x05";               // field 100, a varint
  for (const size_t keys : {size_t{0}, size_t{100'000}}) {  // parsed as a whole, and taken apart
    v1::UpdateChunk chunk;
    chunk.add_slices()->set_keys(std::string(keys, 'k'));
    ASSERT_TRUE(chunk.add_slices()->ParseFromString(unknown));
    const auto parsed = [](const std::string& bytes) {
      const absl::Cord buffer(bytes);
      return std::string(ChunkMessage().Parse(buffer).message());
    };
    constexpr char kReason[] = ": this server is older than the client";
    EXPECT_EQ(parsed(chunk.SerializeAsString()),
              absl::StrCat("unknown field 100 in slices[1] of UpdateChunk", kReason));
    chunk.mutable_slices(1)->DiscardUnknownFields();
    EXPECT_EQ(parsed(chunk.SerializeAsString()), "");
    EXPECT_EQ(parsed(chunk.SerializeAsString() + unknown), absl::StrCat("unknown field 100 in UpdateChunk", kReason));
  }
}

TEST(ChunkMessage, ManyFieldsThatNobodyKnows_TakeNoMemory) {
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes += "\xa0\x06\x05";
  const absl::Cord buffer(bytes);
  ChunkMessage message;
  EXPECT_FALSE(message.Parse(buffer).ok());
  EXPECT_LT(message.head().SpaceUsedLong(), 10'000);
}

TEST(ChunkMessage, AStringThatIsNoUtf8_IsRefusedWithAWordAboutThat) {
  for (const size_t keys : {size_t{0}, size_t{100'000}}) {  // parsed as a whole, and taken apart
    v1::UpdateChunk chunk;
    chunk.set_client_id("a");
    chunk.add_slices()->set_keys(std::string(keys, 'k'));
    std::string bytes = chunk.SerializeAsString();
    bytes[bytes.find("\x12\x01\x61") + 2] = '\xff';
    const absl::Cord buffer(bytes);
    ChunkMessage message;
    EXPECT_EQ(message.Parse(buffer).message(),
              "not a valid UpdateChunk: malformed, or with a string that is not UTF-8");
  }
}

}  // namespace
}  // namespace sparseagg::service
