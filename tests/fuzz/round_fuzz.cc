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

// What the round should be. A submission is named by client and submission id; its content is the sums of its keys.
class RoundModel {
 public:
  using Name = std::pair<std::string, std::string>;
  struct Upload {
    std::string tag;
    uint64_t next = 0;
    bool complete = false;
    Sums content;
  };
  struct Submission {
    std::string id, tag;
    Sums content;
  };

  // Returns: whether the chunk is taken.
  bool Put(const Name& name, const std::string& tag, uint64_t sequence, bool last, const Sums& keys) {
    const auto found = uploads.find(name);
    const auto committed = submissions.find(name.first);
    const bool is_open = found != uploads.end() && found->second.tag == tag;
    if (!is_open && committed != submissions.end() && committed->second.id == name.second &&
        committed->second.tag == tag) {
      return true;  // late chunks of what is committed
    }
    if (!is_open && sequence != 0) return false;
    if (!is_open) {
      if (is_closed && committed == submissions.end()) return false;
      uploads[name] = {tag, 0, false, {}};
    }
    Upload& upload = uploads[name];
    if (sequence < upload.next) return true;
    if (upload.complete || sequence > upload.next) return false;
    for (const auto& [key, value] : keys) upload.content[key] += value;
    ++upload.next;
    upload.complete = last;
    return true;
  }

  bool is_closed = false;  // takes no submissions: sealed, or merged
  bool is_merged = false;
  std::map<Name, Upload> uploads;
  std::map<std::string, Submission> submissions;
};

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
  const auto upload = model.uploads.find(name);
  const auto committed = model.submissions.find(name.first);
  if (upload == model.uploads.end() || upload->second.tag != tag) {
    const bool is_repeated =
        committed != model.submissions.end() && committed->second.id == name.second && committed->second.tag == tag;
    Require(!is_repeated || (receipt.ok() && receipt->duplicate), "a repeated commit is a duplicate");
    return;
  }
  if (!upload->second.complete) {
    Require(absl::IsFailedPrecondition(receipt.status()), "the last chunk is missing", receipt.status().ToString());
    return;
  }
  const Sums content = upload->second.content;
  model.uploads.erase(upload);
  if (committed != model.submissions.end()) {
    // Only the same content is the same submission. (Contents of equal sums may still differ as lists of keys.)
    if (receipt.ok()) Require(receipt->duplicate && committed->second.content == content, "the same content");
    if (!receipt.ok()) Require(absl::IsAlreadyExists(receipt.status()), "other content", receipt.status().ToString());
    return;
  }
  Require(receipt.ok() == !model.is_closed, "an open round takes a complete upload", receipt.status().ToString());
  if (receipt.ok()) {
    Require(!receipt->duplicate, "the first of its client");
    model.submissions[name.first] = {name.second, tag, content};
  }
}

// Sends a chunk of a few keys, and checks that the answer is the model's.
void CheckPut(Round& round, RoundModel& model, FuzzedDataProvider& input, const RoundModel::Name& name,
              const std::string& tag) {
  std::vector<uint32_t> keys(input.ConsumeIntegralInRange(0, 5));
  std::vector<int64_t> values(keys.size());
  Sums sums;
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = input.ConsumeIntegralInRange<uint32_t>(0, kNumRows - 1);
    values[i] = input.ConsumeIntegral<int16_t>();
    sums[keys[i]] += values[i];
  }
  Chunk chunk;
  chunk.sequence = input.ConsumeIntegralInRange<uint64_t>(0, 3);
  chunk.last = input.ConsumeBool();
  ChunkSlice slice;
  slice.tensor = "v";
  slice.view.keys = AsBytes(keys);
  slice.view.values = AsBytes(values);
  chunk.slices.push_back(slice);
  const absl::StatusOr<UploadProgress> progress = round.intake().PutChunk(name.first, name.second, chunk, tag);
  const bool is_taken = model.Put(name, tag, chunk.sequence, chunk.last, sums);
  Require(progress.ok() == is_taken, "the model takes the chunk, too", progress.status().ToString());
}

void CheckResult(const Round& round, const RoundModel& model) {
  Sums expected;
  for (const auto& [client, submission] : model.submissions) {
    for (const auto& [key, value] : submission.content) expected[key] += value;
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
