#include "host/model/model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "host/base/float_environment.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/model/initial_rows.h"
#include "host/spec/spec.h"

namespace sparseagg {
namespace {

constexpr absl::string_view kMagic = "SAM1";

void SetBit(uint64_t i, std::string& bits) {
  if (bits.size() <= i / 8) bits.resize(i / 8 + 1);
  bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
}

// Makes a bit set that is not empty as long as the page.
void FinishBits(uint64_t num_keys, std::string& bits) {
  if (!bits.empty()) bits.resize((num_keys + 7) / 8);
}

void AppendKey(uint64_t key, KeyVector& keys) {
  if (auto* const narrow = std::get_if<Column<uint32_t>>(&keys)) return narrow->push_back(static_cast<uint32_t>(key));
  std::get<Column<uint64_t>>(keys).push_back(key);
}

template <typename T>
void Put(const T& value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
void Put(const std::string& text, std::string& out) {
  Put<uint64_t>(text.size(), out);
  out += text;
}

// Takes what Put has written off the front of `bytes`. Returns: false if they are too short.
template <typename T>
bool Get(absl::string_view& bytes, T& value) {
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return true;
}
bool Get(absl::string_view& bytes, std::string& text) {
  uint64_t size;
  if (!Get(bytes, size) || bytes.size() < size) return false;
  text.assign(bytes.data(), size);
  bytes.remove_prefix(size);
  return true;
}

}  // namespace

Model::Model(ModelSpec spec) : spec_(std::move(spec)) {
  for (size_t i = 0; i < spec_.tensors.size(); ++i) {
    tables_.push_back(
        std::make_unique<RowTable>(spec_.tensors[i], static_cast<uint32_t>(i), spec_.keep_versions, &mu_));
  }
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(ModelSpec spec, const ModelDelta& initial, ModelVersion first) {
  RETURN_IF_ERROR(Validate(spec));
  std::unique_ptr<Model> model(new Model(std::move(spec)));
  for (size_t i = 0; i < initial.size(); ++i) {
    if (initial[i] == nullptr) continue;
    RETURN_IF_ERROR(model->tables_[i]->Begin(0, initial[i], std::nullopt));
    WriterLock lock(&model->mu_);
    model->tables_[i]->AssertHeld();
    model->tables_[i]->Commit();
    first.num_rows += NumPresent(*initial[i]);
  }
  WriterLock lock(&model->mu_);
  model->versions_.push_back(std::move(first));
  return model;
}

uint64_t Model::version() const {
  ReaderLock lock(&mu_);
  return version_;
}

ModelVersion Model::newest() const {
  ReaderLock lock(&mu_);
  return versions_[versions_.size() - (versions_.back().version > version_ ? 2 : 1)];
}

uint64_t Model::memory_bytes() const {
  uint64_t bytes = 0;
  ReaderLock lock(&mu_);
  for (const auto& table : tables_) {
    table->AssertReaderHeld();
    bytes += table->memory_bytes();
  }
  return bytes;
}

ModelFigures Model::Figures() const {
  ModelFigures figures;
  ReaderLock lock(&mu_);
  figures.version = version_;
  figures.oldest_version = oldest_version_;
  figures.versions = versions_;
  if (figures.versions.back().version > version_) figures.versions.pop_back();
  for (const auto& table : tables_) {
    table->AssertReaderHeld();
    const bool adds = table->spec().optimizer.kind != OptimizerKind::kAssign;
    figures.tensors.push_back(
        {table->num_rows(), table->num_removed(), table->oldest_since(), adds ? table->steps().learning_rate() : 0.0});
  }
  return figures;
}

// ---- the writer ----

uint64_t Model::BeginBytes(const ModelDelta& delta) const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < tables_.size(); ++i) {
    bytes = SaturatingAdd(bytes, tables_[i]->BeginBytes(delta.empty() ? nullptr : delta[i]));
  }
  return bytes;
}

absl::Status Model::Begin(const ModelDelta& delta, std::optional<double> learning_rate) {
  DefaultFloatEnvironment environment;
  try {
    const absl::Status begun = BeginTables(delta, learning_rate);
    if (!begun.ok()) Abandon();
    return begun;
  } catch (const std::bad_alloc&) {
    Abandon();
    throw;
  }
}

absl::Status Model::BeginTables(const ModelDelta& delta, std::optional<double> learning_rate) {
  ModelVersion next;
  next.version = version() + 1;
  if (next.version > kMaxVersion) return absl::ResourceExhaustedError("a model has less than 2^32 versions");
  for (const Result* rows : delta) next.num_rows += rows == nullptr ? 0 : NumPresent(*rows);
  {
    WriterLock lock(&mu_);
    versions_.push_back(next);
  }
  for (size_t i = 0; i < tables_.size(); ++i) {
    const Result* const rows = delta.empty() ? nullptr : delta[i];
    RETURN_IF_ERROR(tables_[i]->Begin(static_cast<uint32_t>(next.version), rows, learning_rate));
  }
  return absl::OkStatus();
}

ModelVersion Model::Commit(ModelVersion made) {
  WriterLock lock(&mu_);
  for (const auto& table : tables_) {
    table->AssertHeld();
    table->Commit();
  }
  ++version_;
  if (version_ > spec_.keep_versions) oldest_version_ = std::max(oldest_version_, version_ - spec_.keep_versions);
  ModelVersion& newest = versions_.back();
  newest.source = std::move(made.source);
  newest.empty_reason = std::move(made.empty_reason);
  newest.digest = std::move(made.digest);
  while (versions_.size() > spec_.keep_versions + size_t{1}) versions_.pop_front();
  return newest;
}

void Model::Abandon() {
  for (const auto& table : tables_) table->Abandon();
  WriterLock lock(&mu_);
  if (versions_.back().version > version_) versions_.pop_back();
}

absl::Status Model::Save(absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)> take) const {
  std::string header(kMagic);
  {
    ReaderLock lock(&mu_);
    Put<uint64_t>(version_, header);
    for (const auto& table : tables_) Put(table->SavedHeader(), header);
    for (const ModelVersion& version : versions_) {
      Put(version.version, header);
      Put(version.num_rows, header);
      for (const std::string* text : {&version.source, &version.empty_reason, &version.digest}) Put(*text, header);
    }
  }
  RETURN_IF_ERROR(take({header}));
  for (const auto& table : tables_) RETURN_IF_ERROR(table->Save(take));
  return absl::OkStatus();
}

absl::Status Model::RestoreHeader(absl::string_view piece) {
  absl::Status damaged = absl::DataLossError("a snapshot of a model does not begin with its header");
  uint64_t version;
  if (piece.substr(0, kMagic.size()) != kMagic) return damaged;
  piece.remove_prefix(kMagic.size());
  if (!Get(piece, version) || version > kMaxVersion) return damaged;
  num_missing_ = 0;
  for (const auto& table : tables_) {
    RowTable::Header header;
    if (!Get(piece, header)) return damaged;
    *num_missing_ += header.num_entries;
    table->RestoreHeader(header);
  }
  WriterLock lock(&mu_);
  versions_.clear();
  while (!piece.empty()) {
    ModelVersion& made = versions_.emplace_back();
    if (!Get(piece, made.version) || !Get(piece, made.num_rows) || !Get(piece, made.source) ||
        !Get(piece, made.empty_reason) || !Get(piece, made.digest)) {
      return damaged;
    }
  }
  if (versions_.empty() || versions_.back().version != version) return damaged;
  version_ = oldest_version_ = static_cast<uint32_t>(version);
  return absl::OkStatus();
}

absl::Status Model::Restore(absl::string_view piece, bool is_last) {
  if (!num_missing_.has_value()) {
    RETURN_IF_ERROR(RestoreHeader(piece));
  } else {
    ASSIGN_OR_RETURN(const RowBlock block, RowBlock::Parse(piece, spec_));
    if (block.num_rows > *num_missing_) return absl::DataLossError("a snapshot of a model has too many rows");
    *num_missing_ -= block.num_rows;
    RETURN_IF_ERROR(tables_[block.tensor]->Restore(block));
  }
  if (is_last && *num_missing_ != 0) {
    return absl::DataLossError(absl::StrCat("a snapshot of a model lacks ", *num_missing_, " rows"));
  }
  return absl::OkStatus();
}

// ---- readers ----

absl::StatusOr<uint32_t> Model::ResolveLocked(const ReadAt& at, const RowTable& table) const {
  table.AssertReaderHeld();
  const uint64_t version = at.version.value_or(version_);
  for (const uint64_t asked : {version, at.since.value_or(0)}) {
    if (asked <= version_) continue;
    return absl::InvalidArgumentError(absl::StrCat("version ", asked, " does not exist yet; the newest is ", version_));
  }
  if (version < oldest_version_) {
    return absl::FailedPreconditionError(
        absl::StrCat("version ", version, " is not kept any more; the oldest version is ", oldest_version_));
  }
  if (at.since.has_value() && *at.since < table.oldest_since()) {
    return absl::FailedPreconditionError(
        absl::StrCat("removals before version ", table.oldest_since(), " are forgotten; read the whole tensor"));
  }
  return static_cast<uint32_t>(version);
}

ModelRows Model::StartRows(size_t tensor, uint64_t most_keys) const {
  const ModelTensorSpec& spec = spec_.tensors[tensor];
  ModelRows out;
  out.rows.dtype = spec.dtype;
  out.rows.row_width = spec.row_width;
  out.rows.num_rows = spec.num_rows;
  if (spec.num_rows == 0 || spec.num_rows > uint64_t{1} << 32) out.rows.keys.emplace<Column<uint64_t>>();
  out.rows.values.reserve(most_keys * spec.row_bytes());
  return out;
}

absl::Status Model::Gather(size_t tensor, absl::Span<const uint64_t> keys, const ReadAt& at, bool is_range,
                           bool with_initial, ModelRows& out) const {
  const RowTable& table = *tables_[tensor];
  const size_t row_bytes = spec_.tensors[tensor].row_bytes();
  std::array<const std::byte*, kReadBatch> rows;
  std::vector<std::pair<uint64_t, uint64_t>> initial;  // (key, index of its row among those sent)
  {
    ReaderLock lock(&mu_);
    ASSIGN_OR_RETURN(const uint32_t version, ResolveLocked(at, table));
    out.version = version;
    table.AssertReaderHeld();
    for (size_t i = 0; i < std::min<size_t>(keys.size(), 16); ++i) table.Prefetch(keys[i]);
    size_t num_rows = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + 16 < keys.size()) table.Prefetch(keys[i + 16]);
      const RowTable::Found found = table.Find(keys[i], version);
      const bool is_changed = !at.since.has_value() || found.touched > *at.since;
      if (is_range) {
        // Without `since` only rows; with it also removals.
        if (!is_changed || (found.row == nullptr && !at.since.has_value())) continue;
        AppendKey(keys[i], out.rows.keys);
      }
      const uint64_t position = out.num_keys++;
      if (!is_changed) {
        SetBit(position, out.unchanged);
      } else if (found.row != nullptr) {
        for (size_t byte = 0; byte < std::min<size_t>(row_bytes, 512); byte += 64) __builtin_prefetch(found.row + byte);
        rows[num_rows++] = found.row;
      } else if (with_initial) {
        initial.emplace_back(keys[i], out.num_sent + num_rows);
        rows[num_rows++] = nullptr;
      } else {
        SetBit(position, out.untouched);
      }
    }
    out.rows.values.resize((out.num_sent + num_rows) * row_bytes);
    for (size_t i = 0; i < num_rows; ++i, ++out.num_sent) {
      if (rows[i] != nullptr) std::memcpy(out.rows.values.data() + out.num_sent * row_bytes, rows[i], row_bytes);
    }
  }
  for (const auto& [key, row] : initial) {
    WriteInitialRows(spec_.tensors[tensor], static_cast<uint32_t>(tensor), {&key, 1},
                     out.rows.values.data() + row * row_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelRows> Model::ReadKeys(size_t tensor, absl::Span<const uint64_t> keys, const ReadAt& at,
                                          bool with_initial) const {
  const ModelTensorSpec& spec = spec_.tensors[tensor];
  for (const uint64_t key : keys) {
    if (spec.num_rows == 0 || key < spec.num_rows) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", spec.name, "': key ", key, " is not below num_rows ", spec.num_rows));
  }
  DefaultFloatEnvironment environment;
  ReadAt pinned = at;
  ModelRows out = StartRows(tensor, keys.size());
  size_t begin = 0;
  do {  // once without keys, for the version
    RETURN_IF_ERROR(Gather(tensor, keys.subspan(begin, kReadBatch), pinned, /*is_range=*/false, with_initial, out));
    pinned.version = out.version;
    begin += kReadBatch;
  } while (begin < keys.size());
  out.rows.num_keys = out.num_keys;
  FinishBits(out.num_keys, out.untouched);
  FinishBits(out.num_keys, out.unchanged);
  return out;
}

absl::StatusOr<ModelRows> Model::ReadRange(size_t tensor, uint64_t begin, uint64_t end, const ReadAt& at,
                                           uint64_t max_rows) const {
  const ModelTensorSpec& spec = spec_.tensors[tensor];
  if (end != 0 && begin > end) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", spec.name, "': the range begins at ", begin, " and ends before, at ", end));
  }
  ReadAt pinned = at;
  ModelRows out = StartRows(tensor, 0);
  RETURN_IF_ERROR(Gather(tensor, {}, pinned, /*is_range=*/true, /*with_initial=*/false, out));
  pinned.version = out.version;
  const std::shared_ptr<const Column<uint64_t>> keys = tables_[tensor]->SortedKeys();
  const uint64_t* next = std::lower_bound(keys->begin(), keys->end(), begin);
  const uint64_t* const last = end == 0 ? keys->end() : std::lower_bound(next, keys->end(), end);
  while (next < last && out.num_keys < max_rows) {
    const auto n = std::min<uint64_t>({kReadBatch, max_rows - out.num_keys, static_cast<uint64_t>(last - next)});
    RETURN_IF_ERROR(Gather(tensor, {next, n}, pinned, /*is_range=*/true, /*with_initial=*/false, out));
    next += n;
  }
  if (next < last) out.next_key = *next;
  out.rows.num_keys = out.num_keys;
  FinishBits(out.num_keys, out.untouched);
  return out;
}

absl::StatusOr<ModelDelta> MatchResults(const ModelSpec& spec, absl::Span<const TensorSpec> specs,
                                        absl::Span<const Result> results, bool is_initial) {
  ModelDelta delta(spec.tensors.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    ASSIGN_OR_RETURN(const size_t tensor, spec.ChooseTensor(specs[i].name));
    RETURN_IF_ERROR(CheckFits(spec.tensors[tensor], specs[i], is_initial));
    if (NumPresent(results[i]) != 0) delta[tensor] = &results[i];
  }
  return delta;
}

}  // namespace sparseagg
