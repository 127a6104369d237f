// SealedReader: the submissions of a sealed round, for those who may look at them before the close.
#ifndef SPARSEAGG_SERVICE_ROUNDS_SEALED_READER_H_
#define SPARSEAGG_SERVICE_ROUNDS_SEALED_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/inspect/inner_products.h"
#include "host/updates/update.h"
#include "service/admission/memory_budget.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/round.h"
#include "service/rounds/round_config.h"
#include "service/rounds/row_export.h"
#include "service/rounds/submission_table.h"

namespace sparseagg::service {

// Rows of the lower triangles of three symmetric matrices over the submissions, in ascending order of client ids: see
// InnerProducts. Row j has the columns 0 to j.
struct InspectionPage {
  uint64_t num_clients = 0;
  uint64_t first_row = 0;
  std::vector<std::string> client_ids;  // of the rows of the page
  std::vector<double> gram;             // row after row
  std::vector<double> squared_distances;
  std::vector<uint64_t> overlap;
  std::string next_page_token;               // empty on the last page
  std::shared_ptr<Reservation> reservation;  // of MemoryBytes()

  uint64_t MemoryBytes() const;
};

// Which submissions to export.
struct ExportQuery {
  size_t tensor = 0;
  KeyInterval keys;
  uint64_t max_bytes = 0;   // of ids, keys and values in a page
  bool takes_runs = false;  // the reader understands pages without keys (ExportPage::has_runs)
  bool any_order = false;   // the rows of a submission ascend by the leading bits of their keys only
  bool by_place = false;    // pages name submissions by their places in order of client ids
};

// Which rows to export of a partial.
struct PartialQuery {
  size_t tensor = 0;
  KeyInterval keys;
  uint64_t max_bytes = 0;  // of a page
};
struct PartialPage {
  std::string blocks;           // one block of host/partial.h
  std::string next_page_token;  // empty on the last page
};

// Reads the submissions of a sealed round, or of a cluster's round that is DONE, page by page: their inner products and
// distances, their rows, or what they add up to. All pages show the same submissions, since a sealed round takes none,
// and a page fails that finds one withdrawn. Each call fails once the round is not sealed any more.
//
// Errors of every call but the *PageBytes: FAILED_PRECONDITION: the round is not sealed, or not any more.
// INVALID_ARGUMENT: not a token of this round. RESOURCE_EXHAUSTED: no memory.
// Thread-safe. Blocks: the first call sorts or merges the submissions of its tensors; calls that change the round wait.
class SealedReader {
 public:
  static constexpr uint64_t kMaxInspected = 4096;  // submissions

  // `round`: borrowed.
  explicit SealedReader(Round& round) : round_(round), config_(round.config()) {}

  // Returns: the first rows from the token on; from the first one on if the token is empty. As many as fit `max_bytes`
  // and a second or two; at least one, unless the round has no submissions.
  // `tensors`: of the spec, in ascending order; empty: all of floats with values.
  // Errors: INVALID_ARGUMENT: a tensor without such values, none in the round, or more than kMaxInspected submissions.
  // FAILED_PRECONDITION: submissions of a tensor are merged already, or were withdrawn since the page before; or
  // privacy applies. CANCELLED: `is_cancelled`, which is asked before each row, has returned true. Blocks: while it
  // computes.
  absl::StatusOr<InspectionPage> Inspect(std::vector<size_t> tensors, uint64_t max_bytes, absl::string_view page_token,
                                         absl::FunctionRef<bool()> is_cancelled);

  // Returns: a page of the submissions in ascending order of client ids, from the token on; from the first one on if
  // the token is empty. A page has the rows or the end of one submission at least, unless the round has none.
  // Errors: INVALID_ARGUMENT: a range that ends before it begins. FAILED_PRECONDITION: submissions of the tensor are
  // merged already; clip.l2 or privacy applies; or as of AppendRows.
  // Cost: besides the page, O(n log n) in the number n of submissions.
  absl::StatusOr<ExportPage> Export(const ExportQuery& query, absl::string_view page_token);
  // Returns: how many keys the submissions have in each bucket; of a tensor that is merged on arrival, the merged rows.
  // Errors: as of Export, and of KeyCounter.
  absl::StatusOr<std::vector<uint64_t>> CountKeys(const ExportQuery& query, const KeyBuckets& buckets);
  // Returns: an upper bound of the bytes of a page.
  static uint64_t ExportPageBytes(const RoundConfig& config, const ExportQuery& query);

  // Returns: a page of what the submissions add up to, in ascending order of keys, from the token on. A page has one
  // row at least, or the end of the range. Errors: INVALID_ARGUMENT: a range that ends before it begins.
  // FAILED_PRECONDITION: as of Aggregation::CheckExportsPartial; or the round keeps its submissions. OUT_OF_RANGE: as
  // of Aggregation::ExportPartial.
  absl::StatusOr<PartialPage> ExportPartial(const PartialQuery& query, absl::string_view page_token);
  // Returns: an upper bound of the bytes of a page.
  static uint64_t PartialPageBytes(const RoundConfig& config, const PartialQuery& query);

 private:
  struct ExportPosition {
    uint64_t submission = 0;       // in ascending order of client ids
    uint64_t row = 0;              // of its ExportedRows
    uint64_t num_submissions = 0;  // at the page before; now fewer if a coordinator has withdrawn some
    bool is_ascending = false;     // the update, when the page before was made
  };
  struct ExportedClient {
    std::string id;
    double weight;
  };

  // Errors: FAILED_PRECONDITION: the round is not sealed, so that it cannot be `verb` ("inspected").
  absl::Status CheckSealed(absl::string_view verb) const;

  // Errors: of Inspect, for the tensors and for privacy. Returns: the tensors to inspect.
  absl::StatusOr<std::vector<size_t>> CheckInspected(std::vector<size_t> tensors) const;
  // Returns: the rows of the tensors, and the clients. `working`: gets the memory of InnerProducts.
  absl::StatusOr<std::vector<InspectedTensor>> ReadSubmissions(absl::Span<const size_t> tensors,
                                                               std::vector<std::string>& client_ids,
                                                               Reservation& working);

  // Errors: of Export, but for the token and for what only the submissions tell.
  absl::Status CheckExported(const ExportQuery& query) const;
  // Errors: INVALID_ARGUMENT: not a token of this round.
  absl::StatusOr<ExportPosition> ResumeExport(absl::string_view page_token) const;
  // Appends up to `max_clients` clients from the `first` one on. `num_submissions`: of the sum.
  static absl::Status ReadClients(const SubmissionTable::Map& all, uint64_t num_submissions, uint64_t first,
                                  uint64_t max_clients, std::vector<ExportedClient>& clients, Reservation& working);
  // Reads the rows of all submissions, and up to `max_clients` clients from the `first` one on. `working`: gets the
  // memory of both.
  absl::Status ReadForExport(const ExportQuery& query, uint64_t first, uint64_t max_clients,
                             std::vector<UpdateRows>& rows, std::vector<ExportedClient>& clients, Reservation& working);

  // Errors: INVALID_ARGUMENT: not a token of this round. Returns: the first key of a page over merged rows.
  absl::StatusOr<uint64_t> ResumeAtKey(KeyInterval keys, absl::string_view page_token) const;
  Round& round_;
  const RoundConfig& config_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_ROUNDS_SEALED_READER_H_
