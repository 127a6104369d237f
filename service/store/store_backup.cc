// Store: a copy of the data directory while the server uses it.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"
#include "service/store/chunk_files.h"
#include "service/store/data_directory.h"
#include "service/store/database.h"
#include "service/store/keys.h"
#include "service/store/store.h"
#include "service/store/synced_file.h"

namespace sparseagg::service {
namespace {

namespace fs = std::filesystem;

// Of a copy that is not whole. No name of a backup begins with a dot.
constexpr absl::string_view kUnfinished = ".unfinished";

// Memory of the process, by which the copy's database has the smallest buffers.
constexpr uint64_t kSmallMemory = uint64_t{256} << 20;

absl::Status WriteError(int error) {
  return absl::ErrnoToStatus(error, error == ENOSPC ? "the disk of the backups is full" : "cannot write the backup");
}

absl::Status SyncFileSystem(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return WriteError(errno);
  const int error = syncfs(fd) == 0 ? 0 : errno;
  close(fd);
  return error == 0 ? absl::OkStatus() : WriteError(error);
}

}  // namespace

absl::StatusOr<uint64_t> Store::Backup(const std::string& parent, const std::string& name,
                                       const std::function<bool()>& is_cancelled) {
  MutexLock lock(&copy_mu_);
  absl::StatusOr<uint64_t> num_bytes = WriteBackup(parent, name, is_cancelled);
  if (num_bytes.ok()) return num_bytes;
  Log(LogLevel::kWarning, "backup_failed", {{"name", name}, {"reason", num_bytes.status().message()}});
  return WithoutPath(WithoutRoot(num_bytes.status()), parent);
}

absl::StatusOr<uint64_t> Store::WriteBackup(const std::string& parent, const std::string& name,
                                            const std::function<bool()>& is_cancelled) {
  std::error_code error;
  const std::string path = absl::StrCat(parent, "/", name);
  if (fs::exists(path, error)) {
    return absl::AlreadyExistsError(absl::StrCat("there is a backup '", name, "'; choose another name, or remove it"));
  }
  const std::string unfinished = absl::StrCat(parent, "/", kUnfinished);
  const absl::Cleanup remove = [&unfinished] {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
  };
  fs::remove_all(unfinished, error);  // of a server that was killed
  const uint64_t needed = MeasureDisk().used_bytes;
  const uint64_t available = MeasureSpace(parent).available_bytes;
  if (needed > available) {
    return absl::ResourceExhaustedError(absl::StrCat("the data takes ", needed,
                                                     " bytes, and the disk of the backups has ", available,
                                                     " left: remove older backups, or give it more space"));
  }
  RETURN_IF_ERROR(MakeDirectory(unfinished));
  RETURN_IF_ERROR(SyncAll());
  RETURN_IF_ERROR(CopyTo(unfinished, is_cancelled));
  RETURN_IF_ERROR(SyncFileSystem(unfinished));
  // Last: no start takes a directory without it.
  RETURN_IF_ERROR(WriteFormat(unfinished));
  const uint64_t num_bytes = MeasureSpace(unfinished).used_bytes;
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) return WriteError(errno);
  RETURN_IF_ERROR(SyncPath(parent));
  return num_bytes;
}

absl::Status Store::CopyTo(const std::string& directory, const std::function<bool()>& is_cancelled) {
  RETURN_IF_ERROR(database_->CopyTo(directory + "/db"));
  // As a start does: what the log has comes into tables.
  ASSIGN_OR_RETURN(const std::unique_ptr<Database> copy,
                   Database::Open(directory + "/db", DatabaseCheck(), kSmallMemory));
  ASSIGN_OR_RETURN(const std::unique_ptr<SyncedFile> synced, SyncedFile::Open(directory + "/SYNCED"));
  synced->Write(copy->opened_at());
  std::error_code error;
  if (!fs::create_directory(directory + "/chunks", error)) return WriteError(error.value());
  // All keys and values, whose checksums RocksDB compares. A chunk is written where it was: no hard link, since Free
  // makes holes in the file.
  std::ofstream file;
  uint64_t round_of_file = 0;
  Database::Range range(*copy, "", keys::Seen() + '\xff');
  for (; range.Valid(); range.Next()) {
    if (is_cancelled()) return absl::CancelledError("the backup was cancelled");
    const absl::string_view key = range.key();
    if (!keys::IsChunk(key) || !keys::IsReference(range.value())) continue;
    const uint64_t round = keys::NumberAt(key);
    ASSIGN_OR_RETURN(const ChunkReference chunk, DecodeChunkReference(range.value().substr(1)));
    ASSIGN_OR_RETURN(const std::optional<std::string> bytes, files_->Read(round, chunk));
    if (!bytes.has_value()) {
      return absl::DataLossError(absl::StrCat("the data directory's chunks/", round, " is damaged at ", chunk.offset,
                                              ", ", chunk.size, " bytes"));
    }
    if (round != std::exchange(round_of_file, round)) {
      if (file.is_open()) file.close();
      if (file) file.open(absl::StrCat(directory, "/chunks/", round), std::ios::binary);
    }
    file.seekp(static_cast<std::streamoff>(chunk.offset));
    if (!file.write(bytes->data(), static_cast<std::streamsize>(bytes->size()))) return WriteError(errno);
  }
  RETURN_IF_ERROR(range.status());
  if (file.is_open()) file.close();
  return file ? absl::OkStatus() : WriteError(errno);
}

}  // namespace sparseagg::service
