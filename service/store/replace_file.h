// Small files of the data directory.
#ifndef SPARSEAGG_SERVICE_STORE_REPLACE_FILE_H_
#define SPARSEAGG_SERVICE_STORE_REPLACE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sparseagg::service {

// Makes a change of a directory's entries, or of a file, outlive the machine. Errors: of the file system.
absl::Status SyncPath(const std::string& path);

// Writes a file as a whole: the disk has all of it, or what it had before. Until then the bytes are in `path`.new.
// Errors: of the file system.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_REPLACE_FILE_H_
