#include "service/base/read_file.h"

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"

namespace sparseagg::service {
namespace {

constexpr int64_t kMaxBytes = int64_t{16} << 20;

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(found.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a file"));
  if (found.st_size > kMaxBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": ", found.st_size, " bytes; up to ", kMaxBytes, " are read"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, path);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  return bytes;
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, size_t min_bytes) {
  ASSIGN_OR_RETURN(std::string bytes, ReadFile(path));
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return absl::ErrnoToStatus(errno, path);
  const std::string mode = absl::StrFormat("%03o", found.st_mode & 0777);
  const auto refuse = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat(path, " ", problem));
  };
  if ((found.st_mode & S_IWOTH) != 0) {
    return refuse(absl::StrCat("has the mode ", mode, ": everybody may replace the secret; chmod 600 it"));
  }
  if (bytes.size() < min_bytes) {
    return refuse(absl::StrCat("has ", bytes.size(), " bytes; it needs ", min_bytes, " random ones or more"));
  }
  if (!bytes.empty() && bytes.find_first_not_of(bytes.front()) == std::string::npos) {
    return refuse(absl::StrCat("has ", bytes.size(), " equal bytes, which are no secret"));
  }
  if ((found.st_mode & (S_IROTH | S_IWGRP)) != 0) {
    Log(LogLevel::kWarning, "secret_exposed", {{"path", path}, {"mode", mode}});
  }
  return bytes;
}

bool FileVersion::HasChanged() {
  struct stat now {};
  if (stat(path_.c_str(), &now) != 0) now = {};
  const bool same = now.st_dev == last_.st_dev && now.st_ino == last_.st_ino && now.st_size == last_.st_size &&
                    now.st_mtim.tv_sec == last_.st_mtim.tv_sec && now.st_mtim.tv_nsec == last_.st_mtim.tv_nsec;
  last_ = now;
  return !same;
}

}  // namespace sparseagg::service
