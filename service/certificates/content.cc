#include "service/certificates/content.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <variant>

#include "absl/types/span.h"
#include "service/certificates/cbor.h"
#include "service/certificates/sha256.h"

namespace sparseagg::service {
namespace {

static_assert(std::endian::native == std::endian::little, "columns are hashed as they are");

constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

// Calls `take` with the keys as uint64, a few thousand at a time.
template <typename KeyAt, typename Take>
void ForEachBatch(uint64_t num_keys, KeyAt key_at, Take take) {
  constexpr uint64_t kBatch = 4096;  // divides a block
  static_assert(kBlockBytes % (kBatch * sizeof(uint64_t)) == 0);
  std::array<uint64_t, kBatch> batch;
  for (uint64_t begin = 0; begin < num_keys; begin += kBatch) {
    const uint64_t n = std::min(kBatch, num_keys - begin);
    for (uint64_t i = 0; i < n; ++i) batch[i] = key_at(begin + i);
    take(batch.data(), n * sizeof(uint64_t));
  }
}

template <typename Take>
void ForEachKeyBatch(const UpdateContent& content, Take take) {
  if (const auto* run = std::get_if<KeyRun>(&content.keys)) {
    ForEachBatch(
        content.num_keys, [run](uint64_t i) { return run->first + i; }, take);
  } else if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&content.keys)) {
    ForEachBatch(
        content.num_keys, [narrow](uint64_t i) { return uint64_t{(*narrow)[i]}; }, take);
  } else {
    const auto& wide = std::get<absl::Span<const uint64_t>>(content.keys);
    take(wide.data(), wide.size() * sizeof(uint64_t));
  }
}

// Hashes bytes in blocks, and adds the hash of each block to `digests`.
class BlockHash {
 public:
  explicit BlockHash(Sha256* digests) : digests_(*digests) {}
  void Add(const void* bytes, size_t size) {
    const auto* at = static_cast<const char*>(bytes);
    while (size > 0) {
      const size_t part = std::min<uint64_t>(size, kBlockBytes - filled_);
      block_.Add(at, part);
      filled_ += part;
      at += part;
      size -= part;
      if (filled_ == kBlockBytes) End();
    }
  }
  // Ends a block that is not full.
  void End() {
    if (filled_ == 0) return;
    const Sha256Digest digest = block_.Finish();
    digests_.Add(digest.data(), digest.size());
    filled_ = 0;
  }

 private:
  Sha256& digests_;
  Sha256 block_;
  uint64_t filled_ = 0;
};

}  // namespace

Sha256Digest DigestOf(const UpdateContent& content) {
  Sha256 digests;
  BlockHash blocks(&digests);
  ForEachKeyBatch(content, [&](const void* bytes, size_t size) { blocks.Add(bytes, size); });
  blocks.End();
  blocks.Add(content.values.data(), content.values.size());
  blocks.End();
  return digests.Finish();
}

Sha256Digest DigestOf(const TensorSpec& spec, const Result& result) {
  std::string form;
  cbor::AppendArray(11, &form);
  cbor::AppendText("sparseagg result 1", &form);
  cbor::AppendText(spec.name, &form);
  cbor::AppendText(result.layout == Layout::kDense ? "dense" : "sparse", &form);
  cbor::AppendText(Name(result.dtype), &form);
  cbor::AppendUint(result.row_width, &form);
  cbor::AppendUint(result.num_rows, &form);
  cbor::AppendUint(result.num_keys, &form);
  cbor::AppendBool(result.has_values, &form);
  cbor::AppendBool(ReturnsCounts(spec), &form);
  cbor::AppendBool(spec.aggregation.return_weights, &form);
  cbor::AppendBool(spec.aggregation.return_moments, &form);
  Sha256 hash;
  hash.Add(form.data(), form.size());
  if (result.layout == Layout::kSparse) {
    ForEachBatch(
        result.num_keys, [&](uint64_t i) { return result.KeyAt(i); },
        [&](const void* bytes, size_t size) { hash.Add(bytes, size); });
  }
  if (result.has_values) hash.Add(result.values.data(), result.values.size());
  hash.Add(result.counts.data(), result.counts.size() * sizeof(uint32_t));
  hash.Add(result.weights.data(), result.weights.size() * sizeof(double));
  hash.Add(result.moments.data(), result.moments.size() * sizeof(double));
  return hash.Finish();
}

}  // namespace sparseagg::service
