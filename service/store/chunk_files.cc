#include "service/store/chunk_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "host/base/content_hash.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"

namespace sparseagg::service {
namespace {

namespace fs = std::filesystem;

// Descriptors of files that stay open for the next append or sync.
constexpr size_t kMaxOpenFiles = 32;

absl::Status FileError(absl::string_view what, const std::string& path, int error) {
  const std::string text = absl::StrCat("cannot ", what, " the data directory's ", path, ": ", std::strerror(error));
  const bool is_full = error == ENOSPC || error == EDQUOT;
  return is_full ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError("open", path, errno);
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return error == 0 ? absl::OkStatus() : FileError("sync", path, error);
}

// Returns: 0, or the error number.
int WriteAll(int fd, std::vector<iovec> spans, uint64_t offset) {
  for (size_t first = 0; first < spans.size();) {
    const size_t number = std::min<size_t>(spans.size() - first, IOV_MAX);
    const ssize_t written = pwritev(fd, &spans[first], static_cast<int>(number), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    offset += static_cast<uint64_t>(written);
    for (auto left = static_cast<size_t>(written); left > 0;) {
      iovec& span = spans[first];
      const size_t taken = std::min(left, span.iov_len);
      span.iov_base = static_cast<char*>(span.iov_base) + taken;
      span.iov_len -= taken;
      left -= taken;
      if (span.iov_len == 0) ++first;
    }
  }
  return 0;
}

}  // namespace

struct ChunkFiles::File {
  explicit File(std::string name, uint64_t size = 0) : path(std::move(name)), end(size), next(size) {}
  ~File() { Close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void Raise(uint64_t offset) {
    uint64_t old = next;
    while (old < offset && !next.compare_exchange_weak(old, offset)) {
    }
  }
  void Close() {
    if (fd >= 0) close(fd);
    fd = -1;
  }
  // Requires: the file is open, and stays so.
  absl::Status Sync() {
    if (sync_error == 0 && fdatasync(fd) != 0) sync_error = errno;
    return sync_error == 0 ? absl::OkStatus() : FileError("sync", path, sync_error);
  }

  const std::string path;
  Mutex mu;  // held while bytes are written, so that all before `end` are
  // Stays open until the sync: the kernel may forget an error of its own writing once nobody has the file open.
  std::atomic<int> fd = -1;
  // A second sync would succeed, since the kernel drops what it could not write.
  std::atomic<int> sync_error = 0;
  bool is_syncing ABSL_GUARDED_BY(mu) = false;  // and must stay open
  bool is_deleted ABSL_GUARDED_BY(mu) = false;  // and must not be made again
  uint64_t end ABSL_GUARDED_BY(mu);             // of what was written
  // Where the next chunk begins: at `end`, or behind a reserved range. Changed with and without `mu`.
  std::atomic<uint64_t> next;
  uint64_t synced ABSL_GUARDED_BY(mu) = 0;
};

absl::StatusOr<std::unique_ptr<ChunkFiles>> ChunkFiles::Open(const std::string& directory, bool syncs) {
  std::error_code error;
  if (fs::create_directory(directory, error)) {
    fs::permissions(directory, fs::perms::owner_all, error);
    RETURN_IF_ERROR(SyncDirectory(fs::path(directory).parent_path().string()));
  }
  auto files = std::unique_ptr<ChunkFiles>(new ChunkFiles(directory, syncs));
  MutexLock lock(&files->mu_);
  files->has_new_files_ = true;  // perhaps, by a server that was killed
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    uint64_t round = 0;
    if (!absl::SimpleAtoi(it->path().filename().string(), &round)) continue;
    auto file = std::make_shared<File>(files->PathOf(round), it->file_size(error));
    files->files_.emplace(round, file);
    files->unsynced_.emplace(round, file);
  }
  if (error) return FileError("list", directory, error.value());
  return files;
}

ChunkFiles::~ChunkFiles() = default;

std::string ChunkFiles::PathOf(uint64_t round) const { return absl::StrCat(directory_, "/", round); }

std::shared_ptr<ChunkFiles::File> ChunkFiles::FindOrAdd(uint64_t round) {
  MutexLock lock(&mu_);
  std::shared_ptr<File>& file = files_[round];
  if (file == nullptr) file = std::make_shared<File>(PathOf(round));
  return file;
}

absl::Status ChunkFiles::OpenLocked(File& file) {
  if (file.fd >= 0) return absl::OkStatus();
  bool is_new = false;
  int fd = open(file.path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) {
    fd = open(file.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    is_new = true;
  }
  if (fd < 0) return FileError("open", file.path, errno);
  file.fd = fd;
  MutexLock lock(&mu_);
  has_new_files_ = has_new_files_ || is_new;
  return absl::OkStatus();
}

absl::Status ChunkFiles::CloseSome(const File* kept) {
  std::vector<std::shared_ptr<File>> open;
  {
    MutexLock lock(&mu_);
    for (const auto& [round, file] : files_) {
      if (file->fd >= 0 && file.get() != kept) open.push_back(file);
    }
  }
  if (open.size() < kMaxOpenFiles) return absl::OkStatus();
  bool has_closed = false;
  for (const bool with_sync : {false, true}) {
    for (const std::shared_ptr<File>& file : open) {
      MutexLock lock(&file->mu);
      if (has_closed && with_sync) return absl::OkStatus();  // one is enough
      const bool is_safe = !syncs_ || file->synced == file->end;
      if (file->fd < 0 || file->is_syncing || (!is_safe && !with_sync)) continue;
      if (!is_safe) RETURN_IF_ERROR(file->Sync());
      file->synced = file->end;
      file->Close();
      has_closed = true;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ChunkReference> ChunkFiles::Append(uint64_t round, absl::Span<const absl::string_view> bytes) {
  ChunkReference chunk;
  ContentHasher hasher;
  std::vector<iovec> spans;
  spans.reserve(bytes.size());
  for (const absl::string_view span : bytes) {
    if (span.empty()) continue;
    hasher.Add(span.data(), span.size());
    spans.push_back({const_cast<char*>(span.data()), span.size()});
    chunk.size += span.size();
  }
  chunk.hash = hasher.Digest();
  const std::shared_ptr<File> file = FindOrAdd(round);
  if (file->fd < 0) RETURN_IF_ERROR(CloseSome(file.get()));
  MutexLock lock(&file->mu);
  if (file->is_deleted) return absl::FailedPreconditionError("the round has ended, and its chunks were removed");
  RETURN_IF_ERROR(OpenLocked(*file));
  chunk.offset = file->next;
  if (const int error = WriteAll(file->fd, std::move(spans), chunk.offset); error != 0) {
    // What was written is behind the end; the next chunk goes over it.
    if (ftruncate(file->fd, static_cast<off_t>(file->end)) != 0) return FileError("cut", file->path, errno);
    return FileError("write to", file->path, error);
  }
  file->end = chunk.offset + chunk.size;
  file->Raise(file->end);
  {
    MutexLock all(&mu_);
    unsynced_.emplace(round, file);
  }
  FailPoint("chunk_appended");
  // The disk begins now, so that the sync of a commit has little left to do.
  if (syncs_) {
    sync_file_range(file->fd, static_cast<off_t>(chunk.offset), static_cast<off_t>(chunk.size), SYNC_FILE_RANGE_WRITE);
  }
  return chunk;
}

void ChunkFiles::Reserve(uint64_t round, const ChunkReference& chunk) {
  FindOrAdd(round)->Raise(chunk.offset + chunk.size);
}

absl::StatusOr<std::optional<std::string>> ChunkFiles::Read(uint64_t round, const ChunkReference& chunk) const {
  const std::string path = PathOf(round);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0) return FileError("open", path, errno);
  std::optional<std::string> bytes;
  int error = 0;
  struct stat status {};
  if (fstat(fd, &status) != 0) error = errno;
  // Before the allocation: the reference may be damaged.
  const auto size = static_cast<uint64_t>(status.st_size);
  if (error == 0 && chunk.offset <= size && chunk.size <= size - chunk.offset) {
    bytes.emplace(chunk.size, '\0');
    for (size_t done = 0; done < bytes->size() && error == 0;) {
      const ssize_t read =
          pread(fd, bytes->data() + done, bytes->size() - done, static_cast<off_t>(chunk.offset + done));
      if (read < 0 && errno != EINTR) error = errno;
      if (read == 0) error = EIO;
      if (read > 0) done += static_cast<size_t>(read);
    }
  }
  close(fd);
  if (error != 0) return FileError("read", path, error);
  if (bytes.has_value() && HashOf(bytes->data(), bytes->size()) != chunk.hash) return std::nullopt;
  return bytes;
}

absl::StatusOr<std::vector<ChunkFiles::Extent>> ChunkFiles::Sync() {
  std::map<uint64_t, std::shared_ptr<File>> files;
  bool has_new_files = false;
  {
    MutexLock lock(&mu_);
    files.swap(unsynced_);
    std::swap(has_new_files, has_new_files_);
  }
  std::vector<Extent> synced;
  for (const auto& [round, file] : files) {
    if (file->fd < 0) RETURN_IF_ERROR(CloseSome(file.get()));
    uint64_t end = 0;
    bool needs_sync = false;
    {
      MutexLock lock(&file->mu);
      if (file->is_deleted) continue;
      end = file->end;
      needs_sync = file->synced < end;
      if (needs_sync) RETURN_IF_ERROR(OpenLocked(*file));
      file->is_syncing = needs_sync;
    }
    // Without the lock: appends go on meanwhile.
    const absl::Status status = needs_sync ? file->Sync() : absl::OkStatus();
    MutexLock lock(&file->mu);
    file->is_syncing = false;
    RETURN_IF_ERROR(status);
    if (file->is_deleted) continue;
    file->synced = std::max(file->synced, end);
    synced.push_back({round, end});
  }
  if (has_new_files) RETURN_IF_ERROR(SyncDirectory(directory_));
  FailPoint("files_synced");
  return synced;
}

void ChunkFiles::Free(uint64_t round, const ChunkReference& chunk) {
  const int fd = open(PathOf(round).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  // Some file systems cannot, and keep the space until the round is deleted.
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(chunk.offset),
            static_cast<off_t>(chunk.size));
  close(fd);
}

uint64_t ChunkFiles::Delete(uint64_t round) {
  std::shared_ptr<File> file;
  {
    MutexLock lock(&mu_);
    if (const auto found = files_.find(round); found != files_.end()) file = found->second;
  }
  uint64_t bytes = 0;
  if (file != nullptr) {
    // First, so that an append or a sync that has the object does not make the file again.
    MutexLock lock(&file->mu);
    file->is_deleted = true;
    bytes = file->end;
  }
  MutexLock lock(&mu_);
  files_.erase(round);
  unsynced_.erase(round);
  unlink(PathOf(round).c_str());
  return bytes;
}

bool ChunkFiles::Has(uint64_t round) const {
  MutexLock lock(&mu_);
  return files_.find(round) != files_.end();
}

std::vector<uint64_t> ChunkFiles::Rounds() const {
  MutexLock lock(&mu_);
  std::vector<uint64_t> rounds;
  rounds.reserve(files_.size());
  for (const auto& [round, file] : files_) rounds.push_back(round);
  return rounds;
}

}  // namespace sparseagg::service
