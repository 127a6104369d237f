#include "service/handlers/page_stream.h"

#include <algorithm>
#include <utility>

#include "host/base/status_macros.h"
#include "service/codec/round_codec.h"
#include "sparseagg/v1/aggregation.pb.h"

namespace sparseagg::service {

absl::StatusOr<PageStream> PageStream::Create(std::shared_ptr<const Round> round, Results results,
                                              std::vector<size_t> tensors, KeyInterval keys, uint64_t page_bytes,
                                              const PageFormat& format, absl::string_view page_token) {
  PageStream stream;
  for (const size_t tensor : tensors) {
    ASSIGN_OR_RETURN(const RowInterval rows, FindRows((*results)[tensor], keys));
    stream.rows_.push_back(rows);
  }
  if (!page_token.empty()) {
    RowInterval& rows = stream.rows_.front();
    ASSIGN_OR_RETURN(rows, ResumeAt(page_token, round->create_time(), tensors.front(), rows));
    stream.is_first_of_tensor_ = false;
  }
  stream.round_ = std::move(round);
  stream.results_ = std::move(results);
  stream.tensors_ = std::move(tensors);
  stream.page_bytes_ = page_bytes;
  stream.format_ = format;
  return stream;
}

uint64_t PageStream::NextBytes() const { return std::max(page_bytes_, RowBytes((*results_)[tensors_[next_]])); }

void PageStream::Next(v1::ResultPage* page) {
  page->Clear();
  const size_t tensor = tensors_[next_];
  const Result& result = (*results_)[tensor];
  RowInterval& rows = rows_[next_];
  const RowInterval now = FirstPage(result, rows, page_bytes_);
  const absl::Duration begin = round_->clock().Monotonic();
  EncodePage(round_->config().tensors[tensor], result, now, format_, is_first_of_tensor_, page);
  round_->meter().RecordPage(page->ByteSizeLong(), round_->clock().Monotonic() - begin);
  rows.begin = now.end;
  is_first_of_tensor_ = rows.begin == rows.end;
  if (is_first_of_tensor_) {
    ++next_;
  } else {
    page->set_next_page_token(MakePageToken(round_->create_time(), tensor, rows.begin));
  }
}

}  // namespace sparseagg::service
