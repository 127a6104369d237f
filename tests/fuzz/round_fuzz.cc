// Random operations on a round, against a model of it that is a few maps: the same answers, and the same sums.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "service/codec/spec_codec.h"
#include "sparseagg/v1/aggregation.pb.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/rounds.h"

namespace sparseagg::service {
namespace {

constexpr uint64_t kNumRows = 40;

using Sums = std::map<uint64_t, int64_t>;
using Tuples = std::vector<std::pair<uint64_t, int64_t>>;  // in the order in which they were sent

struct SentChunk {
  Tuples tuples;
  bool last = false;
  bool operator==(const SentChunk&) const = default;
};

// What the round should be.
class RoundModel {
 public:
  using Name = std::pair<std::string, std::string>;  // client id, submission id
  struct Upload {
    std::string tag;
    std::vector<SentChunk> chunks;
    bool complete() const { return !chunks.empty() && chunks.back().last; }
  };
  // A submission of a client that counts. `retry`: the latest upload that was committed after it with its content.
  struct Submission {
    std::string id;
    Upload first;
    std::string retry_id = {};
    Upload retry = {};
  };

  // Returns: the upload of this name and tag that the client has committed; null: none.
  const Upload* FindCommitted(const Name& name, const std::string& tag) const {
    const auto found = submissions.find(name.first);
    if (found == submissions.end()) return nullptr;
    const Submission& submission = found->second;
    if (submission.id == name.second && submission.first.tag == tag) return &submission.first;
    return submission.retry_id == name.second && submission.retry.tag == tag ? &submission.retry : nullptr;
  }

  // Returns: whether the chunk is taken. A repeat must be equal to the chunk that came before.
  bool Put(const Name& name, const std::string& tag, uint64_t sequence, const SentChunk& chunk) {
    const auto is_repeat = [&](const Upload& upload) {
      return sequence < upload.chunks.size() && upload.chunks[sequence] == chunk;
    };
    const auto found = uploads.find(name);
    const bool is_there = found != uploads.end();
    if (is_there && found->second.tag == tag) {
      Upload& upload = found->second;
      if (sequence != upload.chunks.size() || upload.complete()) return is_repeat(upload);
      upload.chunks.push_back(chunk);
      return true;
    }
    const Upload* const committed = FindCommitted(name, tag);
    // Only another chunk 0 begins an upload of a committed submission again. (It may be the same content, cut
    // elsewhere.)
    if (committed != nullptr && is_repeat(*committed)) return true;
    if (sequence > 0 || (is_there && committed != nullptr)) return false;
    if (is_closed && !submissions.contains(name.first)) return false;
    uploads[name] = {tag, {chunk}};
    return true;
  }

  bool is_closed = false;  // takes no submissions: sealed, or merged
  bool is_merged = false;
  std::map<Name, Upload> uploads;
  std::map<std::string, Submission> submissions;  // by client
};

Tuples TuplesOf(const RoundModel::Upload& upload) {
  Tuples all;
  for (const SentChunk& chunk : upload.chunks) all.insert(all.end(), chunk.tuples.begin(), chunk.tuples.end());
  return all;
}

v1::RoundSpec Spec() {
  v1::RoundSpec spec;
  v1::TensorSpec* tensor = spec.add_tensors();
  tensor->set_name("v");
  tensor->set_dtype(v1::DTYPE_INT64);
  tensor->set_num_rows(kNumRows);
  return spec;
}

template <typename T>
absl::string_view AsBytes(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

Sums ToSums(const Result& result) {
  Sums sums;
  for (uint64_t row = 0; row < result.num_keys; ++row) {
    std::memcpy(&sums[result.KeyAt(row)], result.values.data() + row * sizeof(int64_t), sizeof(int64_t));
  }
  return sums;
}

absl::StatusOr<Receipt> Commit(Round& round, const RoundModel::Name& name, const std::string& tag) {
  absl::StatusOr<Receipt> answer = absl::UnknownError("");
  absl::Notification answered;
  round.intake().CommitNamed(name.first, name.second, tag, [&](absl::StatusOr<Receipt> receipt) {
    answer = std::move(receipt);
    answered.Notify();
  });
  answered.WaitForNotification();
  return answer;
}

// Commits, and checks that the answer is the model's.
void CheckCommit(Round& round, RoundModel& model, const RoundModel::Name& name, const std::string& tag) {
  const absl::StatusOr<Receipt> receipt = Commit(round, name, tag);
  const auto found = model.uploads.find(name);
  const bool is_there = found != model.uploads.end() && found->second.tag == tag;
  if (!is_there || !found->second.complete()) {
    if (model.FindCommitted(name, tag) != nullptr) {
      Require(receipt.ok() && receipt->duplicate, "a repeated commit is a duplicate", receipt.status().ToString());
      if (is_there) model.uploads.erase(found);
      return;
    }
    Require(!receipt.ok(), "there is nothing to commit");
    if (!is_there) return;
    Require(absl::IsFailedPrecondition(receipt.status()), "the last chunk is missing", receipt.status().ToString());
    return;
  }
  const RoundModel::Upload upload = found->second;
  model.uploads.erase(found);
  if (const auto committed = model.submissions.find(name.first); committed != model.submissions.end()) {
    RoundModel::Submission& submission = committed->second;
    if (TuplesOf(upload) != TuplesOf(submission.first)) {
      Require(absl::IsAlreadyExists(receipt.status()), "other content", receipt.status().ToString());
      return;
    }
    Require(receipt.ok() && receipt->duplicate, "the same content", receipt.status().ToString());
    submission.retry_id = name.second;
    submission.retry = upload;
    // The round has room for the hashes of as many chunks as the first upload has.
    if (upload.chunks.size() > submission.first.chunks.size()) submission.retry.chunks.clear();
    return;
  }
  Require(receipt.ok() == !model.is_closed, "an open round takes a complete upload", receipt.status().ToString());
  if (receipt.ok()) {
    Require(!receipt->duplicate, "the first of its client");
    model.submissions[name.first] = {name.second, upload};
  }
}

// Sends a chunk of a few keys, and checks that the answer is the model's.
void CheckPut(Round& round, RoundModel& model, FuzzedDataProvider& input, const RoundModel::Name& name,
              const std::string& tag) {
  std::vector<uint32_t> keys(input.ConsumeIntegralInRange(0, 5));
  std::vector<int64_t> values(keys.size());
  SentChunk sent;
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = input.ConsumeIntegralInRange<uint32_t>(0, kNumRows - 1);
    values[i] = input.ConsumeIntegral<int16_t>();
    sent.tuples.emplace_back(keys[i], values[i]);
  }
  Chunk chunk;
  chunk.sequence = input.ConsumeIntegralInRange<uint64_t>(0, 3);
  chunk.last = sent.last = input.ConsumeBool();
  ChunkSlice slice;
  slice.tensor = "v";
  slice.view.keys = AsBytes(keys);
  slice.view.values = AsBytes(values);
  chunk.slices.push_back(slice);
  const absl::StatusOr<UploadProgress> progress = round.intake().PutChunk(name.first, name.second, chunk, tag);
  const bool is_taken = model.Put(name, tag, chunk.sequence, sent);
  Require(progress.ok() == is_taken, "the model takes the chunk, too", progress.status().ToString());
}

void CheckResult(const Round& round, const RoundModel& model) {
  Sums expected;
  for (const auto& [client, submission] : model.submissions) {
    for (const auto& [key, value] : TuplesOf(submission.first)) expected[key] += value;
  }
  const absl::StatusOr<Results> results = round.GetResults();
  Require(results.ok(), "the round is done", results.status().ToString());
  Require(ToSums((*results)->front()) == expected, "the sums of the model");
}

}  // namespace
}  // namespace sparseagg::service

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg;
  using namespace sparseagg::service;
  static Rounds rounds;
  RoundConfig config = *DecodeRoundSpec(Spec(), rounds.server.limits);
  config.id = "r";
  const std::shared_ptr<Round> round = *rounds.registry.Create(std::move(config));
  RoundModel model;
  FuzzedDataProvider input(data, size);
  while (input.remaining_bytes() > 0) {
    const RoundModel::Name name = {absl::StrCat("c", input.ConsumeIntegralInRange(0, 2)),
                                   absl::StrCat("s", input.ConsumeIntegralInRange(0, 1))};
    const std::string tag = input.ConsumeBool() ? "t" : "";
    switch (input.ConsumeIntegralInRange(0, 7)) {
      case 0: {
        const auto withdrawn = round->Withdraw(name.first, "");
        if (withdrawn.ok()) {
          Require(*withdrawn == (model.submissions.erase(name.first) == 1), "the model has withdrawn it, too");
        }
        break;
      }
      case 1: {
        const int choice = input.ConsumeIntegralInRange(0, 19);
        if (choice > 2) break;
        if (choice == 2) {
          Require(round->Seal().ok() == !model.is_merged, "a round is sealed until it is closed");
        } else {
          Require(round->Close().ok(), "a round can be closed");
          model.is_merged = true;
        }
        model.is_closed = true;
        std::erase_if(model.uploads,
                      [&](const auto& upload) { return !model.submissions.contains(upload.first.first); });
        break;
      }
      case 2:
      case 3:
        CheckCommit(*round, model, name, tag);
        break;
      default:
        CheckPut(*round, model, input, name, tag);
    }
  }
  Require(round->Close().ok(), "a round can be closed");
  absl::Notification ended;
  round->Wait(absl::Seconds(60), [&] { ended.Notify(); });
  ended.WaitForNotification();
  CheckResult(*round, model);
  Require(rounds.registry.Delete(kDefaultTenant, "r").ok(), "the round is there");
  return 0;
}
