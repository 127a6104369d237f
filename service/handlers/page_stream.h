// The pages of a result, one after the other.
#ifndef SPARSEAGG_SERVICE_HANDLERS_PAGE_STREAM_H_
#define SPARSEAGG_SERVICE_HANDLERS_PAGE_STREAM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/codec/page_format.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/round.h"

namespace sparseagg::v1 {
class ResultPage;
}

namespace sparseagg::service {

// Cuts the results of some tensors into pages. Keeps the round and its results alive. Not thread-safe.
//
//   ASSIGN_OR_RETURN(PageStream pages, PageStream::Create(round, results, {0}, KeyInterval{}, 1 << 20, format));
//   v1::ResultPage page;
//   while (pages.HasNext()) {
//     pages.Next(&page);
//     ...
//   }
class PageStream {
 public:
  // `tensors`: positions in the spec of the round. `page_bytes`: the size of a page before its keys and values are
  // packed. `page_token`: where the first tensor begins; empty: at its first row in `keys`.
  // Errors: INVALID_ARGUMENT for a key range that ends before it begins, or a page token that does not fit.
  static absl::StatusOr<PageStream> Create(std::shared_ptr<const Round> round, Results results,
                                           std::vector<size_t> tensors, KeyInterval keys, uint64_t page_bytes,
                                           const PageFormat& format, absl::string_view page_token = "");

  const Round& round() const { return *round_; }

  // Every tensor has at least one page, even without rows.
  bool HasNext() const { return next_ < tensors_.size(); }

  // Returns: the most bytes that the next page may take: `page_bytes`, or one row if that is larger.
  // Requires: HasNext().
  uint64_t NextBytes() const;

  // Replaces the content of `page` by the next page.
  // Requires: HasNext().
  void Next(v1::ResultPage* page);

 private:
  PageStream() = default;

  std::shared_ptr<const Round> round_;
  Results results_;
  std::vector<size_t> tensors_;
  std::vector<RowInterval> rows_;  // of each of tensors_: the rows that are left
  uint64_t page_bytes_ = 0;
  PageFormat format_;
  size_t next_ = 0;                 // in tensors_: the tensor of the next page
  bool is_first_of_tensor_ = true;  // whether the next page is the tensor's first
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_HANDLERS_PAGE_STREAM_H_
