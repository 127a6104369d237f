// Rows of committed submissions, as ExportSubmissions sends them.
#ifndef SPARSEAGG_SERVICE_ROUNDS_ROW_EXPORT_H_
#define SPARSEAGG_SERVICE_ROUNDS_ROW_EXPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"
#include "service/rounds/result_pages.h"

namespace sparseagg::service {

// Some rows of submissions in ascending order of client ids, in the columns of v1.ExportedSubmissions.
struct ExportPage {
  std::string client_ids;  // each but the last followed by a line feed
  std::string weights;     // float64 of each submission
  std::string num_keys;    // uint32 of each submission; or uint64 of each bucket
  std::string keys;        // of KeyBytes(spec) bytes
  std::string values;      // in the dtype of the tensor
  uint64_t num_rows = 0;
  // `keys` is empty: those of the first submission ascend by 1 from `first_key` on, those of others from the begin of
  // the exported interval on.
  bool has_runs = false;
  uint64_t first_key = 0;
  std::string next_page_token;  // empty on the last page
  // Of a page by place, which has neither client_ids nor weights, and num_keys of submissions with rows alone.
  uint64_t first_place = 0;
  uint64_t end_place = 0;
  std::string has_rows;  // a bit of each submission, from the lowest one of the first byte on
  bool is_continued = false;
  uint64_t num_submissions = 0;  // of the round
};

// The most rows that one row of folded repeated keys is exported as.
inline constexpr uint64_t kMaxTerms = 64;

// Unfinished rows that are read at a time to count their keys.
inline constexpr uint64_t kCountedRows = uint64_t{1} << 16;

// As v1.KeyBuckets.
struct KeyBuckets {
  uint32_t bits = 0;
  uint32_t within_bits = 0;
  std::vector<uint64_t> within;
};

// Counts keys by buckets.
class KeyCounter {
 public:
  static constexpr uint64_t kMaxBuckets = uint64_t{1} << 17;

  // Errors: INVALID_ARGUMENT: there are more of them, or bits that keys do not have.
  static absl::StatusOr<KeyCounter> Create(const TensorSpec& spec, const KeyBuckets& buckets);
  // Counts the keys of some rows, which ascend by key >> coarse_bits.
  // Cost: a few searches for each bucket, if these are not smaller than 2^coarse_bits; or a step for each key.
  void Add(const KeyColumn& keys, RowInterval rows, int coarse_bits);
  const std::vector<uint64_t>& counts() const { return counts_; }

 private:
  static constexpr uint32_t kMaxSplit = 17;

  KeyCounter() = default;

  // Counts a key `number` times.
  void AddKey(uint64_t key, uint64_t number);
  // `key_at`: of a row.
  template <typename KeyAt>
  void AddRows(const KeyAt& key_at, RowInterval rows, bool ascends_by_bucket);

  uint32_t bits_ = 0;
  uint32_t within_bits_ = 0;
  uint64_t mask_ = 0;
  absl::flat_hash_map<uint64_t, uint64_t> begins_;  // of the counts of each bucket of within_bits_; empty: of all keys
  uint64_t last_ = ~uint64_t{0};                    // the latest such bucket; none has so large a number
  uint64_t begin_ = kMaxBuckets;                    // where its counts begin; kMaxBuckets: it has none
  std::vector<uint64_t> counts_;
};

// Returns: bytes of one exported row.
uint64_t ExportedRowBytes(const TensorSpec& spec);

// Returns: whether the rows of an update, from key `begin` on, can be sent without keys.
bool IsRunFrom(const TensorSpec& spec, const UpdateRows& update, uint64_t begin);

// Rows of an update, or of its repeats, that lie side by side.
struct RowPiece {
  const UpdateRows* update = nullptr;
  RowInterval rows;
};

// The rows of an update whose keys are in `keys`, in pieces that ascend by key >> coarse_bits, repeats in between.
// `pieces`: memory for them. `update` must outlive it. Requires: the interval does not end before it begins.
// Cost: two binary searches, for an update without repeats whose buckets the interval does not cut; a bucket that it
// cuts is searched key by key.
class ExportedRows {
 public:
  ExportedRows(const UpdateRows& update, KeyInterval keys, std::vector<RowPiece>& pieces);
  uint64_t size() const { return size_; }
  // Returns: the key of row `index` of them.
  uint64_t Key(uint64_t index) const;
  void Count(KeyCounter& counter) const;
  // Appends those of `rows`, by their numbers here, as AppendRows does.
  absl::StatusOr<uint64_t> Append(const TensorSpec& spec, RowInterval rows, uint64_t max_rows, ExportPage& page) const;

 private:
  void Add(const UpdateRows& update, RowInterval rows);
  // `from`: rows of the update before it are before the interval; set for the interval behind.
  void AddKeys(const UpdateRows& update, KeyInterval keys, uint64_t& from);

  std::vector<RowPiece>& pieces_;
  uint64_t size_ = 0;
};

// Appends rows to `page`, which then has up to `max_rows` rows, or one row of the update that takes more.
// A row whose repeated keys were folded to a wider type is appended as several rows of the tensor's dtype, which add up
// to it exactly when they are folded again in this order: each is the rest, rounded to the dtype. All sums on the way
// are multiples of the unit in the last place of the folded value and not larger, so none of them is rounded.
// Returns: the first row that was not appended; all rows are appended if this is rows.end. At least one is, if the page
// has no rows yet.
// Errors: FAILED_PRECONDITION: a row needs more than kMaxTerms rows.
absl::StatusOr<uint64_t> AppendRows(const TensorSpec& spec, const UpdateRows& update, RowInterval rows,
                                    uint64_t max_rows, ExportPage& page);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_ROW_EXPORT_H_
