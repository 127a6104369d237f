// The streams of a server, by id.
#ifndef SPARSEAGG_SERVICE_STREAMS_STREAM_REGISTRY_H_
#define SPARSEAGG_SERVICE_STREAMS_STREAM_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/base/mutex.h"
#include "service/base/name_table.h"
#include "service/rounds/registry.h"
#include "service/streams/stream.h"

namespace sparseagg::service {

// All streams of a server. Their intakes and their rounds are in the Registry, which has the ids of all. Owned by
// Server. Thread-safe.
class StreamRegistry : public NameTable<Stream> {
 public:
  StreamRegistry(Registry* registry, const RoundServices& services)
      : NameTable("stream"), registry_(*registry), services_(services) {}

  // Opens a stream of config.round.tenant with the id config.round.id, or a random id if that is empty.
  // Returns: the existing stream, if its id and spec are the same.
  // Errors: INVALID_ARGUMENT: as of StreamConfig::Check. ALREADY_EXISTS: the id is another stream's, or a round's.
  // Otherwise as Registry::Create.
  absl::StatusOr<std::shared_ptr<Stream>> Create(StreamConfig config);
  // Reopens a stream of an earlier run, which Restore completes: Stream::Reopen.
  absl::StatusOr<std::shared_ptr<Stream>> Reopen(StreamConfig config, uint64_t number, absl::Time create_time) {
    return Stream::Reopen(std::move(config), &registry_, services_, number, create_time);
  }
  // Completes and lists a stream of an earlier run. Errors: as of Stream::RestoreVersions.
  absl::Status Restore(std::shared_ptr<Stream> stream, const Stream::Stored& stored);
  // Returns: where submissions to "streams/ID" go, or to "rounds/ID", a round or, since over HTTP the paths of
  // submissions have that, a stream. Errors: INVALID_ARGUMENT: another form of name. NOT_FOUND. FAILED_PRECONDITION:
  // the round is a version of a stream.
  absl::StatusOr<std::shared_ptr<Intake>> FindIntake(absl::string_view tenant, absl::string_view name) const;
  // Errors: NOT_FOUND. Of Store. Returns: the stream, whose intake tells when its removal is durable.
  absl::StatusOr<std::shared_ptr<Stream>> Delete(absl::string_view tenant, absl::string_view id);

 private:
  Registry& registry_;
  const RoundServices services_;
  Mutex create_mu_;  // held while a stream is created, which may take long
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_SERVICE_STREAMS_STREAM_REGISTRY_H_
