// Store: the log and the snapshots of models.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/base/status_macros.h"
#include "service/base/fail_point.h"
#include "service/store/database.h"
#include "service/store/keys.h"
#include "service/store/store.h"

namespace sparseagg::service {

using keys::Kind;

absl::StatusOr<Store::Ticket> Store::PutModelVersion(uint64_t model, uint64_t version,
                                                     const ModelVersionRecord& record) {
  rocksdb::WriteBatch batch;
  batch.Put(keys::ModelVersion(model, version), EncodeRecord(record));
  FailPoint("before_model_version");
  absl::StatusOr<Ticket> ticket = Write(batch);
  FailPoint("after_model_version");
  return ticket;
}

absl::StatusOr<Store::Ticket> Store::PutModelSnapshot(uint64_t model, const ModelSnapshotRecord& record,
                                                      absl::Span<const uint64_t> removed) {
  // A power failure must not leave the record without its chunks: what it replaces is gone.
  RETURN_IF_ERROR(WithoutRoot(SyncAll()));
  rocksdb::WriteBatch batch;
  std::vector<Freed> freed;
  for (const uint64_t upload : removed) {
    RETURN_IF_ERROR(ListLargeChunks(model, upload, 0, &freed));
    batch.DeleteRange(keys::Chunks(model, upload), keys::Chunks(model, upload + 1));
  }
  batch.DeleteRange(keys::Make(model, Kind::kModelVersion), keys::Make(model, Kind::kModelSnapshot));
  batch.Put(keys::Make(model, Kind::kModelSnapshot), EncodeRecord(record));
  FailPoint("before_model_snapshot");
  absl::StatusOr<Ticket> ticket = WriteRemoval(batch, std::move(freed));
  FailPoint("after_model_snapshot");
  return ticket;
}

absl::StatusOr<Store::StoredModel> Store::ReadModel(uint64_t model) const {
  StoredModel stored;
  Database::Range snapshot(*database_, keys::Make(model, Kind::kModelSnapshot), keys::Make(model, Kind::kEnd));
  RETURN_IF_ERROR(snapshot.status());
  if (!snapshot.Valid()) return absl::DataLossError("the data directory has no snapshot of the model");
  ASSIGN_OR_RETURN(stored.snapshot, DecodeModelSnapshotRecord(snapshot.value()));
  Database::Range log(*database_, keys::Make(model, Kind::kModelVersion), keys::Make(model, Kind::kModelSnapshot));
  for (uint64_t version = stored.snapshot.version + 1; log.Valid(); log.Next(), ++version) {
    if (log.key() != keys::ModelVersion(model, version)) {
      return absl::DataLossError(absl::StrCat("the data directory lacks the log record of version ", version));
    }
    ASSIGN_OR_RETURN(ModelVersionRecord record, DecodeModelVersionRecord(log.value()));
    stored.log.emplace(version, std::move(record));
  }
  RETURN_IF_ERROR(log.status());
  return stored;
}

}  // namespace sparseagg::service
