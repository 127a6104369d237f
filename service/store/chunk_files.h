// Large chunks of uploads, which lie in files beside the database.
#ifndef SPARSEAGG_SERVICE_STORE_CHUNK_FILES_H_
#define SPARSEAGG_SERVICE_STORE_CHUNK_FILES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "host/base/mutex.h"
#include "service/store/records.h"

namespace sparseagg::service {

// One file for each round, in which its large chunks follow each other. RocksDB would write each byte twice, to its log
// and to a blob file, and compute two checksums in software: seven times the processor time of one write.
//
// A chunk counts only when the database has its reference. So what a crash leaves behind the last referenced byte is
// garbage, which does no harm. The end of a machine may also leave references to bytes that the file does not have.
// Reserve keeps their ranges free, so that freeing such a chunk later never frees another one.
//
// Errors of the file system: RESOURCE_EXHAUSTED: the disk is full. UNAVAILABLE: any other. The message has the path.
// Owned by Store. Thread-safe.
class ChunkFiles {
 public:
  // Makes the directory, if it is missing. `syncs`: Sync will be called.
  static absl::StatusOr<std::unique_ptr<ChunkFiles>> Open(const std::string& directory, bool syncs);
  ~ChunkFiles();
  ChunkFiles(const ChunkFiles&) = delete;
  ChunkFiles& operator=(const ChunkFiles&) = delete;

  // Hands the chunk to the operating system, whole or not at all. `bytes`: the chunk, in several spans.
  // Errors: of the file system. FAILED_PRECONDITION: Delete has removed the file meanwhile.
  absl::StatusOr<ChunkReference> Append(uint64_t round, absl::Span<const absl::string_view> bytes);
  // Makes later appends begin behind this chunk of an earlier run, which the file may lack.
  void Reserve(uint64_t round, const ChunkReference& chunk);
  // Returns: the chunk; nullopt: the file does not have it, or has other bytes in its place.
  absl::StatusOr<std::optional<std::string>> Read(uint64_t round, const ChunkReference& chunk) const;

  // Bytes from the begin of a round's file.
  struct Extent {
    uint64_t round = 0;
    uint64_t bytes = 0;
  };
  // Makes all appended chunks outlive the machine. Returns: the files of which more is on the disk than at the last
  // call, and how much. After an error, nobody knows what the disk has.
  absl::StatusOr<std::vector<Extent>> Sync();

  // Gives the space of a chunk back, as far as the file system can. Requires: the chunk was appended, or reserved.
  void Free(uint64_t round, const ChunkReference& chunk);
  // Removes the round's file, if there is one. Returns: the bytes that the file had.
  uint64_t Delete(uint64_t round);
  // Whether the round has a file.
  bool Has(uint64_t round) const;
  // Returns: the rounds that have a file.
  std::vector<uint64_t> Rounds() const;

 private:
  struct File;

  ChunkFiles(std::string directory, bool syncs) : directory_(std::move(directory)), syncs_(syncs) {}
  std::string PathOf(uint64_t round) const;
  std::shared_ptr<File> FindOrAdd(uint64_t round);
  absl::Status OpenLocked(File& file);
  // Closes files, if too many are open: first those that have nothing to sync.
  absl::Status CloseSome(const File* kept);

  const std::string directory_;
  const bool syncs_;
  mutable Mutex mu_;
  std::map<uint64_t, std::shared_ptr<File>> files_ ABSL_GUARDED_BY(mu_);     // by round
  std::map<uint64_t, std::shared_ptr<File>> unsynced_ ABSL_GUARDED_BY(mu_);  // those with appends since the latest Sync
  bool has_new_files_ ABSL_GUARDED_BY(mu_) = false;                          // since the directory was synced
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STORE_CHUNK_FILES_H_
