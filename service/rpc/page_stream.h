// All pages of some tensors of a result, one after the other.
#ifndef SPARSEAGG_SERVICE_RPC_PAGE_STREAM_H_
#define SPARSEAGG_SERVICE_RPC_PAGE_STREAM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "service/codec/page_format.h"
#include "service/rounds/result_pages.h"
#include "service/rounds/round.h"

namespace sparseagg::v1 {
class ResultPage;
}

namespace sparseagg::service {

// Not thread-safe. Keeps round and results.
class PageStream {
 public:
  // `tensors`: positions in the spec. INVALID_ARGUMENT: a key range that ends before it begins.
  static absl::StatusOr<PageStream> Create(std::shared_ptr<const Round> round, Results results,
                                           std::vector<size_t> tensors, KeyInterval keys, uint64_t page_bytes,
                                           const PageFormat& format);

  const Round& round() const { return *round_; }
  // Whether there is another page. Every tensor has at least one.
  bool more() const { return next_ < tensors_.size(); }
  // If so: what it may take, which is what was asked for, and a row at least.
  uint64_t NextBytes() const;
  // If so: fills it, in place of what `page` held.
  void Next(v1::ResultPage* page);

 private:
  PageStream() = default;

  std::shared_ptr<const Round> round_;
  Results results_;
  std::vector<size_t> tensors_;
  std::vector<RowInterval> rows_;  // of each of tensors_: what is left
  uint64_t page_bytes_ = 0;
  PageFormat format_;
  size_t next_ = 0;    // of tensors_
  bool first_ = true;  // page of that tensor
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_RPC_PAGE_STREAM_H_
