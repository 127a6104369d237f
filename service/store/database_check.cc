#include "service/store/database_check.h"

#include <rocksdb/db.h>
#include <rocksdb/wal_filter.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <boost/crc.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "host/base/status_macros.h"
#include "service/base/log.h"
#include "service/base/read_file.h"

namespace sparseagg::service {
namespace {

// A record is cut into fragments, so that none crosses the end of a block: checksum (4 bytes), length (2), type (1) and
// the bytes. What is left of a block that has no room for a header is zeros.
constexpr size_t kBlockBytes = 32 * 1024;
constexpr size_t kHeaderBytes = 7;
constexpr size_t kTypeAt = 6;

enum FragmentType : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

// CRC-32C, as the format has it.
uint32_t MaskedChecksum(absl::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const uint32_t sum = crc.checksum();
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8;
}

uint32_t Number(absl::string_view bytes, size_t size) {
  uint32_t number = 0;
  for (size_t i = size; i-- > 0;) number = number << 8 | static_cast<uint8_t>(bytes[i]);
  return number;
}

// Returns: the fragment that `bytes` begins with, header included; empty: none.
absl::string_view FragmentOf(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return {};
  const size_t size = kHeaderBytes + Number(bytes.substr(4), 2);
  const auto type = static_cast<uint8_t>(bytes[kTypeAt]);
  if (type < kFull || type > kLast || size > bytes.size()) return {};
  if (MaskedChecksum(bytes.substr(kTypeAt, size - kTypeAt)) != Number(bytes, 4)) return {};
  return bytes.substr(0, size);
}

class Scanner {
 public:
  // `block`: the next one of the file; shorter only if it is the last one.
  void Add(absl::string_view block) {
    size_t at = 0;
    while (at < block.size()) {
      const absl::string_view rest = block.substr(at);
      if (rest.size() < kHeaderBytes && block.size() == kBlockBytes) break;
      const absl::string_view fragment = FragmentOf(rest);
      if (fragment.empty()) {
        OnDamage();
        ++at;
      } else {
        OnFragment(static_cast<FragmentType>(fragment[kTypeAt]), scan_.num_bytes + at, fragment.size());
        at += fragment.size();
      }
    }
    scan_.num_bytes += block.size();
  }
  LogScan Finish() const { return scan_; }

 private:
  void OnDamage() {
    is_damaged_ = true;
    begin_.reset();
  }
  void OnFragment(FragmentType type, uint64_t at, size_t size) {
    const bool is_begin = type == kFull || type == kFirst;
    if (is_begin == begin_.has_value()) is_damaged_ = true;  // a part of a record is missing
    if (is_begin) begin_ = at;
    if (type == kFirst || type == kMiddle || !begin_.has_value()) return;
    if (!is_damaged_) scan_.num_valid_bytes = at + size;
    if (is_damaged_ && !scan_.valid_again_at.has_value()) scan_.valid_again_at = begin_;
    begin_.reset();
  }

  LogScan scan_;
  std::optional<uint64_t> begin_;  // of the record that the next fragment belongs to
  bool is_damaged_ = false;        // somewhere before
};

}  // namespace

absl::StatusOr<LogScan> ScanLog(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (file == nullptr) return absl::UnavailableError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  Scanner scanner;
  std::array<char, kBlockBytes> block;
  while (const size_t size = std::fread(block.data(), 1, block.size(), file.get())) {
    scanner.Add({block.data(), size});
  }
  if (std::ferror(file.get()) != 0) return absl::UnavailableError(absl::StrCat("cannot read ", path));
  return scanner.Finish();
}

namespace {

namespace fs = std::filesystem;

absl::Status DamagedError(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the data directory's ", path, " is damaged: ", what));
}

// Takes the torn end off a manifest, until Keep is called: RocksDB takes zeros in its last record for damage. A change
// of the manifest counts once it is synced.
class ManifestCut {
 public:
  ~ManifestCut() {
    if (!tail_.empty()) std::ofstream(path_, std::ios::binary | std::ios::app) << tail_;
  }
  // `scan`: of the file. Without zeros at its end, the file is left to RocksDB.
  void Cut(const std::string& path, const LogScan& scan) {
    std::ifstream file(path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(scan.num_valid_bytes));
    std::string tail((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::error_code error;
    if (tail.empty() || tail.back() != '\0') return;
    fs::resize_file(path, scan.num_valid_bytes, error);
    if (error) return;
    path_ = path;
    tail_ = std::move(tail);
  }
  void Keep() { tail_.clear(); }

 private:
  std::string path_;
  std::string tail_;  // what was taken off
};

bool IsLog(const fs::path& path) {
  uint64_t number = 0;
  return path.extension() == ".log" && absl::SimpleAtoi(path.stem().string(), &number);
}

// Refuses logs and a manifest with a whole record behind damage. Returns: whether there is a log.
absl::StatusOr<bool> CheckFiles(const std::string& path, ManifestCut* cut) {
  ASSIGN_OR_RETURN(const std::string manifest, ReadFile(path + "/CURRENT"));  // and a line feed
  bool has_log = false;
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const bool is_log = IsLog(it->path());
    has_log = has_log || is_log;
    const bool is_manifest = it->path().filename().string() == absl::StripSuffix(manifest, "\n");
    if (!is_log && !is_manifest) continue;
    const std::string file = it->path().string();
    ASSIGN_OR_RETURN(const LogScan scan, ScanLog(file));
    if (scan.valid_again_at.has_value()) {
      return DamagedError(file, absl::StrCat("behind ", scan.num_valid_bytes, " bytes of whole records comes damage, ",
                                             "and a whole record behind it, at ", *scan.valid_again_at));
    }
    if (scan.num_valid_bytes == scan.num_bytes) continue;
    Log(LogLevel::kWarning, "log_torn",
        {{"file", file}, {"bytes", scan.num_bytes}, {"whole_records", scan.num_valid_bytes}});
    if (is_manifest) cut->Cut(file, scan);
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot list ", path));
  return has_log;
}

// Follows the writes that RocksDB finds in its logs, and has it ignore them. Not thread-safe.
class LogReader final : public rocksdb::WalFilter {
 public:
  const char* Name() const override { return "sparseagg"; }

  // Called first; RocksDB may read all a second time.
  void ColumnFamilyLogNumberMap(const std::map<uint32_t, uint64_t>& first_logs,
                                const std::map<std::string, uint32_t>&) override {
    found_ = {};
    path_.clear();
    for (const auto& [family, number] : first_logs) found_.first_log = number;
  }
  WalProcessingOption LogRecordFound(unsigned long long, const std::string& path, const rocksdb::WriteBatch& batch,
                                     rocksdb::WriteBatch*, bool*) override {
    if (batch.Count() == 0) return WalProcessingOption::kIgnoreCurrentRecord;
    const uint64_t sequence = SequenceOf(batch);
    if (found_.first == 0) found_.first = sequence;
    const bool is_behind_gap = found_.last != 0 && sequence > found_.last + 1;
    if (is_behind_gap && path == path_) found_.damaged = path;
    if (is_behind_gap || !found_.orphans.empty()) {
      found_.orphans.insert(path);
    } else {
      found_.last = std::max(found_.last, sequence + static_cast<uint64_t>(batch.Count()) - 1);
    }
    path_ = path;
    return WalProcessingOption::kIgnoreCurrentRecord;
  }

  struct Found {
    uint64_t first_log = 0;  // number; the writes of earlier logs are in tables
    uint64_t first = 0;      // sequence number of the first write; 0: there is none
    uint64_t last = 0;       // of those that follow on one another
    std::set<std::string> orphans;
    std::string damaged;  // a log from whose middle writes are missing; empty: none
  };
  const Found& found() const { return found_; }

 private:
  // The first 8 bytes of a batch, little-endian.
  static uint64_t SequenceOf(const rocksdb::WriteBatch& batch) {
    uint64_t number = 0;
    for (size_t i = 8; i-- > 0;) number = number << 8 | static_cast<uint8_t>(batch.Data()[i]);
    return number;
  }

  Found found_;
  std::string path_;  // of the latest log
};

}  // namespace

absl::StatusOr<DatabaseCheck> CheckDatabase(rocksdb::Options options, const std::string& path,
                                            const std::optional<LogPosition>& synced) {
  ManifestCut cut;
  ASSIGN_OR_RETURN(const bool has_log, CheckFiles(path, &cut));
  // The first start may have ended before it made one.
  if (!has_log && synced.has_value()) return DamagedError(path, "it has no log, expected a file *.log");

  LogReader reader;
  options.wal_filter = &reader;
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, path, &opened);
  const std::unique_ptr<rocksdb::DB> db(opened);
  RETURN_IF_ERROR(ToAbslStatus(status, absl::StrCat("cannot read the data directory's ", path)));
  const LogReader::Found& logs = reader.found();
  if (!logs.damaged.empty()) return DamagedError(logs.damaged, "writes are missing in its middle");
  const uint64_t in_manifest = db->GetLatestSequenceNumber();  // when it was changed last
  const uint64_t num_found = logs.first == 0 ? in_manifest : logs.last;
  DatabaseCheck check{num_found, {logs.orphans.begin(), logs.orphans.end()}};
  if (!synced.has_value()) {
    cut.Keep();
    return check;
  }
  // All writes until then were in tables or logs.
  if (logs.first > in_manifest + 1) {
    return DamagedError(
        path, absl::StrCat("its logs begin with write ", logs.first, ", expected one up to ", in_manifest + 1));
  }
  // No table has the writes of this log, whatever the manifest says.
  const bool has_lost_log = logs.first == 0 && synced->log_number > 0 && synced->log_number >= logs.first_log;
  if (num_found < synced->sequence || has_lost_log) {
    return DamagedError(path, absl::StrCat("its logs lack the last of ", synced->sequence, " writes that were synced"));
  }
  cut.Keep();
  return check;
}

}  // namespace sparseagg::service
