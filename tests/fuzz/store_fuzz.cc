// Data directories that are damaged: a server starts from what is there, or says that it is damaged.
#include <fuzzer/FuzzedDataProvider.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "service/base/log.h"
#include "service/codec/chunk_codec.h"
#include "service/codec/spec_codec.h"
#include "service/restore.h"
#include "service/rounds/upload.h"
#include "service/store/store.h"
#include "service/tasks/task_registry.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/rounds.h"
#include "tests/service/support/temporary_directory.h"
#include "tests/service/support/wire.h"

namespace sparseagg::service {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;  // content by path in the directory

absl::Status Restore(Store& store, Rounds& rounds) {
  const auto tasks = std::make_shared<TaskRegistry>(rounds.server.ForTasks(&rounds.registry));
  const absl::Status restored =
      RestoreRounds(store, rounds.registry, rounds.streams, rounds.models, rounds.server.limits);
  return restored.ok() ? tasks->Restore() : restored;
}

absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& path) {
  return Store::Open({path, Durability::kAsync, uint64_t{256} << 20});
}

// One that lies in a file beside the database: 120 KB.
v1::UpdateChunk LargeChunk() {
  const std::vector<uint32_t> keys(10'000, 7);
  v1::UpdateChunk chunk;
  chunk.set_last(true);
  v1::TensorSlice* slice = chunk.add_slices();
  slice->set_tensor("w");
  slice->set_key_encoding(v1::KEY_ENCODING_U32);
  slice->set_keys(keys.data(), keys.size() * sizeof(uint32_t));
  slice->set_values(std::string(keys.size() * sizeof(double), '\0'));
  return chunk;
}

// As a commit of upload 2 with this chunk writes it.
SubmissionRecord SubmissionOf(const v1::UpdateChunk& chunk) {
  MemoryBudget budget(0);
  Upload upload(std::make_shared<const RoundConfig>(*DecodeRoundSpec(ThreeTensors(3000), SmallLimits())), &budget);
  Require(upload.Append(*DecodeChunk(chunk)).ok(), "a good chunk");
  return {"s", "", 2, 1, upload.num_tuples(), upload.num_bytes(), upload.Hash()};
}

// Rounds in all states, a submission, an upload under way, and tasks.
Files MakeFiles() {
  const TemporaryDirectory folder;
  {
    auto store = *Open(folder.path());
    std::string spec;
    ThreeTensors(3000).SerializeToString(&spec);
    const std::string bytes = LargeChunk().SerializeAsString();
    const absl::string_view spans[] = {bytes};
    const StateRecord states[] = {{},
                                  {StateRecord::Name::kClosed, "", absl::Now(), {}},
                                  {StateRecord::Name::kFailed, "overflow", absl::Now(), absl::Now()}};
    for (uint64_t round = 1; round <= 3; ++round) {
      Require(store->PutRound(round, {"default", absl::StrCat("r", round), spec, absl::Now()}).ok(), "a write");
      const UploadRecord opened = {"a", "s", "t"};
      Require(store->PutChunk(round, 1, 0, spans, &opened).ok(), "a write");
      Require(store->PutChunk(round, 2, 0, spans, nullptr).ok(), "a write");
      Require(store->PutSubmission(round, "b", SubmissionOf(LargeChunk())).ok(), "a write");
      if (round > 1) Require(store->PutState(round, states[round - 1]).ok(), "a write");
    }
    TaskRecord task;
    task.tenant = "default";
    task.id = "t";
    task.create_time = absl::Now();
    const Store::NumberedTask numbered[] = {{1, &task}};
    Require(store->PutTasks(numbered).ok(), "a write");
  }
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[fs::relative(entry.path(), folder.path())] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

void Damage(FuzzedDataProvider& input, Files& files) {
  const auto chosen =
      std::next(files.begin(), input.ConsumeIntegralInRange<int>(0, static_cast<int>(files.size()) - 1));
  std::string& bytes = chosen->second;
  const size_t at = input.ConsumeIntegralInRange<size_t>(0, bytes.size());
  switch (input.ConsumeIntegralInRange(0, 4)) {
    case 0:
      files.erase(chosen);
      break;
    case 1:
      bytes.resize(at);
      break;
    case 2:
      bytes.insert(at, input.ConsumeRandomLengthString(64));
      break;
    default: {
      const std::string written = input.ConsumeRandomLengthString(64);
      bytes.replace(at, std::min(written.size(), bytes.size() - at), written);
    }
  }
}

}  // namespace
}  // namespace sparseagg::service

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  sparseagg::service::ConfigureLog(sparseagg::service::LogLevel::kOff, sparseagg::service::LogFormat::kText);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparseagg::service;
  static const Files good = MakeFiles();
  Files files = good;
  FuzzedDataProvider input(data, size);
  while (input.remaining_bytes() > 0 && !files.empty()) Damage(input, files);
  const TemporaryDirectory folder;
  for (const auto& [name, bytes] : files) {
    const fs::path path = fs::path(folder.path()) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
  auto store = Open(folder.path());
  absl::Status status = store.status();
  const bool is_good = files == good;
  if (store.ok()) {
    Rounds rounds(store->get());
    status = Restore(**store, rounds);
    // What is restored is served as any other round.
    for (const char* id : {"r1", "r2", "r3"}) {
      const auto round = rounds.registry.Find(kDefaultTenant, id);
      if (status.ok() && round.ok()) (*round)->Close().IgnoreError();
    }
  }
  Require(status.ok() || !is_good, "a start from what is not damaged", status.ToString());
  Require(status.ok() || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status) ||
              absl::IsUnavailable(status) || absl::IsResourceExhausted(status),
          "a start, or the reason against it", status.ToString());
  return 0;
}
