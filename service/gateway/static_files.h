// The files of the server's pages, which the build puts into the program (cmake/embed_files.cmake).
#ifndef SPARSEAGG_SERVICE_GATEWAY_STATIC_FILES_H_
#define SPARSEAGG_SERVICE_GATEWAY_STATIC_FILES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sparseagg::service {

struct StaticFile {
  absl::string_view path;  // of the URL
  absl::string_view content_type;
  absl::string_view content;
};

absl::Span<const StaticFile> StaticFiles();

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_GATEWAY_STATIC_FILES_H_
