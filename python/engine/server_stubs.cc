// The log and the store of the server's rounds in a process that writes no log and stores nothing.
#include <utility>

#include "service/base/log.h"
#include "service/store/store.h"

namespace sparseagg::service {

bool IsLogged(LogLevel) { return false; }
void Log(LogLevel, absl::string_view, std::initializer_list<LogField>) {}

namespace {

absl::Status NoStore() { return absl::UnimplementedError("this build has no store"); }

}  // namespace

absl::StatusOr<Store::Ticket> Store::PutRound(uint64_t, const RoundRecord&) { return NoStore(); }
absl::StatusOr<Store::Ticket> Store::DeleteRound(uint64_t) { return NoStore(); }
absl::StatusOr<Store::Ticket> Store::PutState(uint64_t, const StateRecord&, absl::Span<const WithdrawnSubmission>,
                                              absl::Span<const std::pair<std::string, SubmissionRecord>>) {
  return NoStore();
}
absl::StatusOr<Store::Ticket> Store::PutChunk(uint64_t, uint64_t, uint64_t, absl::Span<const absl::string_view>,
                                              const UploadRecord*) {
  return NoStore();
}
absl::StatusOr<Store::Ticket> Store::DeleteUpload(uint64_t, uint64_t) { return NoStore(); }
absl::StatusOr<Store::Ticket> Store::PutSubmission(uint64_t, absl::string_view, const SubmissionRecord&) {
  return NoStore();
}
absl::StatusOr<Store::Ticket> Store::DeleteSubmission(uint64_t, absl::string_view, uint64_t) { return NoStore(); }
absl::StatusOr<Store::Ticket> Store::WithdrawSubmission(uint64_t, const WithdrawnSubmission&) { return NoStore(); }
absl::StatusOr<Store::Ticket> Store::PutCut(uint64_t, uint64_t, const CutRecord&, uint64_t) { return NoStore(); }
absl::StatusOr<Store::Ticket> Store::PutModelVersion(uint64_t, uint64_t, const ModelVersionRecord&) {
  return NoStore();
}
absl::StatusOr<Store::Ticket> Store::PutModelSnapshot(uint64_t, uint64_t, const ModelVersionRecord&) {
  return NoStore();
}
absl::StatusOr<std::map<uint64_t, ModelVersionRecord>> Store::ReadModel(uint64_t) const { return NoStore(); }
absl::Status Store::ForEachChunk(uint64_t, uint64_t, const std::function<absl::Status(absl::string_view)>&) const {
  return NoStore();
}
absl::StatusOr<uint64_t> Store::DeleteOtherUploads(uint64_t, absl::Span<const uint64_t>) { return NoStore(); }
absl::StatusOr<std::string> Store::ReadChunk(uint64_t, uint64_t, uint64_t) const { return NoStore(); }
void Store::WhenDurable(Ticket, OnDurable done) { std::exchange(done, nullptr)(NoStore()); }
absl::Status Store::AwaitDurable(Ticket) { return NoStore(); }
std::string Store::Identity() const { return ""; }
absl::StatusOr<uint64_t> Store::Backup(const std::string&, const std::string&, const std::function<bool()>&) {
  return NoStore();
}

}  // namespace sparseagg::service
