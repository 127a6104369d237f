// A test fixture for streams without sockets.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_STREAM_FIXTURE_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_STREAM_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "service/codec/round_codec.h"
#include "service/streams/stream_registry.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {

class StreamFixture : public RoundFixture {
 protected:
  StreamRegistry& streams() {
    if (streams_ == nullptr) streams_ = std::make_unique<StreamRegistry>(&registry(), context().ForRounds());
    return *streams_;
  }

  // A stream of sums over one float32 tensor "v".
  static v1::StreamSpec Spec(uint64_t buffer, const std::vector<double>& weights = {1.0}, uint64_t num_rows = 100) {
    v1::StreamSpec spec;
    *spec.mutable_round() = SumSpec(num_rows);
    spec.set_buffer(buffer);
    spec.mutable_staleness_weights()->Assign(weights.begin(), weights.end());
    return spec;
  }
  absl::StatusOr<std::shared_ptr<Stream>> TryOpenStream(const v1::StreamSpec& spec, const std::string& id = "s") {
    auto config = DecodeStreamSpec(spec, limits_);
    if (!config.ok()) return config.status();
    config->round.id = id;
    return streams().Create(*std::move(config));
  }
  std::shared_ptr<Stream> OpenStream(const v1::StreamSpec& spec, const std::string& id = "s") {
    auto stream = TryOpenStream(spec, id);
    EXPECT_THAT(stream, IsOk());
    return *std::move(stream);
  }

  // A submission of one key in one chunk.
  static absl::StatusOr<Receipt> Submit(Stream& stream, const std::string& client, const std::string& submission,
                                        uint64_t base_version, uint32_t key, float value = 1.0F) {
    ChunkSlice slice;
    slice.tensor = "v";
    slice.dtype = DType::kFloat32;
    slice.view.key_type = SliceView::Keys::kU32;
    const absl::string_view keys(reinterpret_cast<const char*>(&key), sizeof(key));
    const absl::string_view values(reinterpret_cast<const char*>(&value), sizeof(value));
    slice.view.keys = keys;
    slice.view.values = values;
    Chunk chunk;
    chunk.last = true;
    chunk.base_version = base_version;
    chunk.slices.push_back(slice);
    return stream.intake().Submit(client, submission, chunk);
  }

  std::shared_ptr<Round> VersionOf(const Stream& stream, uint64_t version) {
    const auto round = registry().Find(kDefaultTenant, stream.config().round.id + ".v" + std::to_string(version));
    EXPECT_THAT(round, IsOk());
    return *round;
  }

 private:
  std::unique_ptr<StreamRegistry> streams_;
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_STREAM_FIXTURE_H_
