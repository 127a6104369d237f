#include "tools/loadgen/batches.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/common/machine.h"
#include "tools/loadgen/report.h"
#include "tools/loadgen/rounds.h"

namespace sparseagg::bench {
namespace {

template <typename T>
void Append(const std::vector<T>& numbers, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

// Returns: the clients from `first` on, `count` at the most, without the round.
v1::SubmitBatchRequest MakeBatch(const Workload& workload, size_t first, size_t count) {
  v1::SubmitBatchRequest batch;
  batch.set_submission_id("s");
  v1::TensorSlice* const slice = batch.add_slices();
  slice->set_tensor(workload.spec.name);
  const bool is_narrow = HasNarrowKeys(workload.spec);
  slice->set_key_encoding(is_narrow ? v1::KEY_ENCODING_U32 : v1::KEY_ENCODING_U64);
  slice->set_value_encoding(v1::VALUE_ENCODING_FLOAT32);
  std::vector<uint32_t> num_keys;
  const size_t end = std::min(first + count, workload.clients.size());
  for (size_t k = first; k < end; ++k) {
    const ClientArrays& client = workload.clients[k];
    absl::StrAppend(batch.mutable_client_ids(), k == first ? "" : "\n", ClientId(k));
    Append(client.narrow_keys, slice->mutable_keys());
    Append(client.wide_keys, slice->mutable_keys());
    Append(client.values, slice->mutable_values());
    num_keys.push_back(static_cast<uint32_t>(std::max(client.narrow_keys.size(), client.wide_keys.size())));
  }
  Append(num_keys, batch.mutable_num_keys());
  return batch;
}

// Sends all batches from `streams` threads. Returns: the seconds until the last answer.
double Send(Connections& server, int streams, const std::vector<v1::SubmitBatchRequest>& batches) {
  std::atomic<size_t> next = 0;
  std::vector<std::string> errors(static_cast<size_t>(streams));
  const double begin = Now();
  std::vector<std::thread> threads;
  for (size_t lane = 0; lane < errors.size(); ++lane) {
    threads.emplace_back([&, lane] {
      const auto stub = v1::Aggregation::NewStub(server.channel(lane));
      for (size_t i = next++; i < batches.size() && errors[lane].empty(); i = next++) {
        grpc::ClientContext context;
        v1::SubmitBatchResponse response;
        const grpc::Status status = stub->SubmitBatch(&context, batches[i], &response);
        if (!status.ok()) {
          errors[lane] = absl::StrCat("code ", status.error_code(), ": ", status.error_message());
        } else if (response.refusals_size() > 0) {
          errors[lane] = absl::StrCat("client ", response.refusals(0).client_id(), ": ", response.refusals(0).reason());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = Now() - begin;
  for (const std::string& error : errors) {
    if (!error.empty()) throw std::runtime_error("a batch was refused with " + error);
  }
  return seconds;
}

}  // namespace

std::string MeasureBatches(const Flags& flags, Plan& plan, Connections& server) {
  const Workload& workload = plan.workload();
  std::vector<v1::SubmitBatchRequest> batches;
  for (size_t first = 0; first < workload.clients.size(); first += flags.batch) {
    batches.push_back(MakeBatch(workload, first, flags.batch));
  }
  Rounds rounds(server, workload.spec);
  std::vector<double> seconds;
  for (int repetition = -1; repetition < flags.repetitions; ++repetition) {  // the first one warms the server
    const std::string name = rounds.Create();
    for (v1::SubmitBatchRequest& batch : batches) batch.set_round(name);
    const double taken = Send(server, flags.streams, batches);
    if (repetition >= 0) seconds.push_back(taken);
    rounds.Close(name);
    const v1::Round ended = rounds.AwaitDone(name);
    if (ended.num_submissions() != workload.clients.size()) {
      throw std::runtime_error(absl::StrCat(name, " counted ", ended.num_submissions(), " submissions"));
    }
    const std::string difference = plan.FindDifference(0, rounds.Read(name));
    if (!difference.empty()) throw std::runtime_error(absl::StrCat("wrong result of ", name, ": ", difference));
    rounds.Delete(name);
  }
  return absl::StrFormat(R"("mode": "batches", "batch": %d, "streams": %d, "seconds": %s, "submissions_per_s": %.0f, )"
                         R"("tuples_per_s": %.0f, "verified": true)",
                         flags.batch, flags.streams, NumbersJson(seconds),
                         static_cast<double>(workload.clients.size()) / Median(seconds),
                         static_cast<double>(workload.num_tuples) / Median(seconds));
}

}  // namespace sparseagg::bench
