// The way of keys and values from the wire to the device: how often they are copied on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "cuda/device_engine.h"
#include "host/aggregation.h"
#include "host/updates/slice.h"
#include "host/updates/update_builder.h"
#include "tests/support/driver.h"
#include "tests/support/engines.h"
#include "tests/support/faulty_device.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/values.h"

namespace sparseagg::testing {
namespace {

TensorSpec Sum(uint64_t num_rows) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = num_rows;
  return spec;
}

std::vector<RawSubmission> Submissions(const TensorSpec& spec, int num_clients, size_t num_tuples, KeyOrder order) {
  std::vector<RawSubmission> submissions;
  Rng rng(TestSeed(12));
  for (int i = 0; i < num_clients; ++i) {
    RawTensor raw;
    raw.keys = RandomKeys(rng, spec.num_rows, num_tuples, KeyStyle::kUniform, order);
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size(), ValueStyle::kCancelling);
    submissions.push_back({absl::StrCat("client ", i), 1.0, {std::move(raw)}});
  }
  return submissions;
}

// Arrays that their owner has pinned are read where they are; others go through buffers. Each is sent once.
TEST(Feeding, FromTheWireToTheDevice_EachTupleIsSentOnce) {
  const TensorSpec spec = Sum(10'000'000);
  for (const bool pinned : {false, true}) {
    cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.all_pinned = pinned}), {});
    const auto aggregation = *Aggregation::Create(engine, {spec});
    uint64_t wire_bytes = 0;
    for (const RawSubmission& submission : Submissions(spec, 8, 200'000, KeyOrder::kSortedUnique)) {
      auto updates = BuildUpdates({spec}, submission);
      ASSERT_TRUE(updates.ok()) << updates.status();
      wire_bytes += updates->front().num_keys() * 8;
      auto prepared = aggregation->Prepare(*std::move(updates));
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      ASSERT_TRUE(aggregation->Add(submission.client_id, *std::move(prepared)).ok());
    }
    EXPECT_LE(aggregation->memory_bytes(), wire_bytes * 101 / 100);
    ASSERT_TRUE(std::move(*aggregation).Finish().ok());
    const cuda::DeviceUse use = engine.use();
    EXPECT_EQ(use.direct_bytes, pinned ? wire_bytes : 0u);
    EXPECT_EQ(use.staged_bytes, pinned ? 0u : wire_bytes);
    EXPECT_EQ(use.num_fallbacks, 0u);
  }
}

// Pieces large and small, slabs and batches, in any order of the device's work.
TEST(Feeding, PiecesOfPinnedArrays_EqualTheReference) {
  for (uint64_t seed = TestSeed(90), end = seed + 8; seed < end; ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
    const TensorSpec spec = Sum(5'000);
    const auto submissions = Submissions(spec, 6, 3'000, seed % 2 == 0 ? KeyOrder::kSortedUnique : KeyOrder::kShuffled);
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    options.tuning.slab_bytes = 20'000;
    options.tuning.min_copy_bytes = seed % 4 < 2 ? 3'000 : 1'000'000;
    if (seed % 8 < 4) options.tuning.max_resident_share = 0;
    cuda::DeviceEngine engine(
        std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = seed, .all_pinned = true}), options);
    EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
    EXPECT_GT(engine.use().direct_bytes, 0u);
    EXPECT_EQ(engine.use().num_fallbacks, 0u);
  }
}

// What Finish sends of arrays that were not sent before: all from where they are if that is pinned, by few copies and
// kernels, however many arrays and slabs there are.
TEST(Feeding, PinnedArraysOfAnySize_NothingIsStaged) {
  struct Case {
    int num_clients;
    size_t num_tuples;
    size_t slab_bytes;
  };
  for (const Case& c : {Case{2'000, 200, 0}, Case{2'000, 200, 400'000}, Case{2'000, 3, 0}, Case{20, 20'000, 400'000},
                        Case{2, 100'000, 0}}) {
    SCOPED_TRACE(absl::StrCat(c.num_clients, " arrays of ", c.num_tuples, ", slabs of ", c.slab_bytes));
    const TensorSpec spec = Sum(1'000'000);
    const auto submissions = Submissions(spec, c.num_clients, c.num_tuples, KeyOrder::kSortedUnique);
    uint64_t num_bytes = 0;
    for (const RawSubmission& submission : submissions) num_bytes += submission.tensors[0].keys.size() * 8;
    for (const bool pinned : {false, true}) {
      struct FaultyDevice::Record record;
      cuda::DeviceEngineOptions options;
      options.tuning.max_resident_share = 0;
      options.tuning.slab_bytes = c.slab_bytes;
      options.tuning.min_slab_run = 64;
      cuda::DeviceEngine engine(
          std::make_unique<FaultyDevice>(cuda::HostDeviceOptions{.all_pinned = pinned}, FaultPlan{}, &record), options);
      EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
      EXPECT_EQ(engine.use().direct_bytes, pinned ? num_bytes : 0u);
      EXPECT_EQ(engine.use().staged_bytes, pinned ? 0u : num_bytes);
      EXPECT_LE(record.num_copies_in, 100u);
      EXPECT_EQ(engine.use().num_fallbacks, 0u);
    }
  }
}

// Finish finds all large updates on the device, where kernels bring them together, and sends only the small ones.
TEST(Feeding, LargeUpdates_AreSentWhenTheyArrive) {
  const TensorSpec spec = Sum(1'000'000);
  std::vector<RawSubmission> submissions = Submissions(spec, 3, 80'000, KeyOrder::kSortedUnique);
  submissions[1] = Submissions(spec, 2, 1'000, KeyOrder::kSortedUnique)[1];
  struct FaultyDevice::Record record;
  cuda::DeviceEngine engine(std::make_unique<FaultyDevice>(cuda::HostDeviceOptions(), FaultPlan{}, &record), {});
  const auto aggregation = *Aggregation::Create(engine, {spec});
  for (const RawSubmission& submission : submissions) {
    auto updates = BuildUpdates({spec}, submission);
    ASSERT_TRUE(updates.ok()) << updates.status();
    ASSERT_TRUE(aggregation->Add(submission.client_id, *aggregation->Prepare(*std::move(updates))).ok());
  }
  const cuda::DeviceUse before = engine.use();
  EXPECT_EQ(before.num_sent_ahead, 2u);
  EXPECT_EQ(before.num_done, 0u);
  ASSERT_TRUE(std::move(*aggregation).Finish().ok());
  const cuda::DeviceUse use = engine.use();
  const uint64_t small_bytes = submissions[1].tensors[0].keys.size() * 8;
  EXPECT_EQ(use.direct_bytes + use.staged_bytes - before.direct_bytes - before.staged_bytes, small_bytes);
  EXPECT_EQ(record.num_copies_within, 0u);
  EXPECT_EQ(use.num_fallbacks, 0u);
}

// Whoever sends an update does not wait for a merge of others, which may take long, or hang.
TEST(Feeding, UpdatesThatArriveDuringAMerge_StayInHostMemory) {
  const TensorSpec spec = Sum(100'000);
  const auto submissions = Submissions(spec, 3, 20'000, KeyOrder::kSortedUnique);
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), {});
  const auto aggregation = *Aggregation::Create(engine, {spec});
  const auto add = [&](const RawSubmission& submission) {
    ASSERT_TRUE(aggregation->Add(submission.client_id, *aggregation->Prepare(*BuildUpdates({spec}, submission))).ok());
  };
  add(submissions[0]);
  EXPECT_EQ(engine.use().num_sent_ahead, 1u);
  absl::Notification begun, added;
  bool was_added = false;
  std::thread merge([&] {
    const absl::Status status = engine.RunOnDevice([&](cuda::Session&, int) {
      begun.Notify();
      was_added = added.WaitForNotificationWithTimeout(absl::Seconds(60));
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  });
  begun.WaitForNotification();
  add(submissions[1]);
  added.Notify();
  merge.join();
  EXPECT_TRUE(was_added) << "the update has waited for the merge";
  EXPECT_EQ(engine.use().num_sent_ahead, 1u);
  add(submissions[2]);
  EXPECT_EQ(engine.use().num_sent_ahead, 2u);
  const Driven driven = {std::vector<absl::Status>(3), std::move(*aggregation).Finish()};
  EXPECT_EQ(Disagreement({spec}, driven, Judge({spec}, submissions)), "");
}

// An update that is dropped may still be on its way; the memory of its arrays then serves the next one.
TEST(Feeding, UpdatesDroppedOnTheirWay_LeaveNoTrace) {
  const TensorSpec spec = Sum(5'000);
  const auto submissions = Submissions(spec, 5, 1'000, KeyOrder::kShuffled);
  for (uint64_t seed = TestSeed(40), end = seed + 8; seed < end; ++seed) {
    SCOPED_TRACE(absl::StrCat("SPARSEAGG_TEST_SEED=", seed));
    cuda::DeviceEngineOptions options;
    options.tuning = TinyTuning();
    cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = seed}),
                              options);
    const auto other = *Aggregation::Create(engine, {spec});
    for (const RawSubmission& dropped : Submissions(spec, 20, 1'000, KeyOrder::kShuffled)) {
      ASSERT_TRUE(other->Prepare(*BuildUpdates({spec}, dropped)).ok());
    }
    EXPECT_EQ(engine.use().num_sent_ahead, 20u);
    EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
  }
}

// Two submissions that borrow the same arrays, of which one is dropped.
TEST(Feeding, SharedArrays_AreSentOnce) {
  const TensorSpec spec = Sum(5'000);
  const RawSubmission submission = Submissions(spec, 1, 1'000, KeyOrder::kSortedUnique)[0];
  const std::vector<ValidatedUpdate> updates = *BuildUpdates({spec}, submission);
  cuda::DeviceEngineOptions options;
  options.tuning = TinyTuning();
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), options);
  const auto aggregation = *Aggregation::Create(engine, {spec});
  {
    const auto dropped = *aggregation->Prepare(updates);
    ASSERT_TRUE(aggregation->Add("a", *aggregation->Prepare(updates)).ok());
    EXPECT_EQ(engine.use().num_sent_ahead, 1u);
  }
  ASSERT_TRUE(aggregation->Add("b", *aggregation->Prepare(updates)).ok());
  const auto results = std::move(*aggregation).Finish();
  ASSERT_TRUE(results.ok()) << results.status();
  RawSubmission again = submission;
  again.client_id += " again";
  EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, {submission, again}), Judge({spec}, {submission, again})), "");
}

// Updates of different lengths that borrow one array, the shorter one first.
TEST(Feeding, ArraysThatBeginAtOneAddress_AreSentAsFarAsTheyReach) {
  const TensorSpec spec = Sum(5'000);
  const RawSubmission submission = Submissions(spec, 1, 1'000, KeyOrder::kSortedUnique)[0];
  const std::vector<ValidatedUpdate> whole = *BuildUpdates({spec}, submission);
  const auto& keys = std::get<absl::Span<const uint32_t>>(whole[0].keys());
  RawSubmission shorter = submission;
  shorter.client_id = "a";
  shorter.tensors[0].keys.resize(400);
  shorter.tensors[0].values.resize(400 * sizeof(float));
  UpdateColumns columns;
  columns.keys = keys.first(400);
  columns.values = whole[0].values();
  cuda::DeviceEngineOptions options;
  options.tuning = TinyTuning();
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), options);
  const auto aggregation = *Aggregation::Create(engine, {spec});
  ASSERT_TRUE(aggregation->Add("a", *aggregation->Prepare({*ValidatedUpdate::Create(spec, columns, 1.0)})).ok());
  RawSubmission longer = submission;
  longer.client_id = "b";
  ASSERT_TRUE(aggregation->Add("b", *aggregation->Prepare(whole)).ok());
  const Driven driven = {{absl::OkStatus(), absl::OkStatus()}, std::move(*aggregation).Finish()};
  EXPECT_EQ(Disagreement({spec}, driven, Judge({spec}, {shorter, longer})), "");
  EXPECT_EQ(engine.use().num_fallbacks, 0u);
}

// A device whose allocations adjoin, as those of a CUDA memory pool may, and which refuses a copy that spans two of
// them, as CUDA does.
class AdjoiningDevice : public cuda::HostDevice {
 public:
  ~AdjoiningDevice() override { HostDevice::Free(block_, cuda::Lane::kCompute); }
  absl::StatusOr<void*> Allocate(size_t bytes, cuda::Lane lane) override {
    if (block_ == nullptr) block_ = *HostDevice::Allocate(kBytes, lane);
    std::byte* const begin = static_cast<std::byte*>(block_) + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > kBytes) return absl::ResourceExhaustedError("the block is used up");
    ends_[begin] = begin + bytes;
    return begin;
  }
  void Free(void*, cuda::Lane) override {}
  absl::Status CopyIn(void* d_to, const void* from, size_t bytes, cuda::Lane lane) override {
    auto* const begin = static_cast<std::byte*>(d_to);
    const auto allocation = std::prev(ends_.upper_bound(begin));
    if (begin + bytes > allocation->second) return absl::InternalError("a copy beyond its allocation");
    return HostDevice::CopyIn(d_to, from, bytes, lane);
  }

 private:
  static constexpr size_t kBytes = size_t{64} << 20;
  void* block_ = nullptr;
  size_t used_ = 0;
  std::map<std::byte*, std::byte*> ends_;
};

TEST(Feeding, AllocationsThatAdjoin_GetCopiesOfTheirOwn) {
  const TensorSpec spec = Sum(5'000);
  auto submissions = Submissions(spec, 6, 1'024, KeyOrder::kSortedUnique);
  for (RawSubmission& submission : submissions) {  // to whole multiples of 256 bytes, the alignment of allocations
    RawTensor& tensor = submission.tensors[0];
    tensor.keys.resize(tensor.keys.size() / 64 * 64);
    tensor.values.resize(tensor.keys.size() * sizeof(float));
  }
  cuda::DeviceEngineOptions options;
  options.tuning.min_resident_bytes = size_t{1} << 40;
  cuda::DeviceEngine engine(std::make_unique<AdjoiningDevice>(), options);
  EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
  EXPECT_EQ(engine.use().num_fallbacks, 0u);
  EXPECT_TRUE(engine.Probe().ok()) << engine.Probe();
}

// Copies make way for a merge that needs their memory.
TEST(Feeding, CopiesLeaveTooLittleMemory_TheMergeGetsIt) {
  const TensorSpec spec = Sum(5'000);
  const auto submissions = Submissions(spec, 10, 1'000, KeyOrder::kShuffled);
  cuda::DeviceEngineOptions options;
  options.tuning = TinyTuning();
  options.tuning.max_resident_share = 1.0;
  options.memory_budget_bytes = 240'000;  // of 80 000 for the copies
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(cuda::HostDeviceOptions{.torture_seed = 3}), options);
  EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
  EXPECT_GT(engine.use().num_sent_ahead, 0u);
  EXPECT_EQ(engine.use().num_fallbacks, 0u);
  // Each tuple was sent twice.
  EXPECT_GT(engine.use().direct_bytes + engine.use().staged_bytes, 150'000u);
}

TEST(Feeding, SmallRounds_OnTheCpuIfAskedFor) {
  const TensorSpec spec = Sum(1'000);
  cuda::DeviceEngineOptions options;
  options.tuning.min_merge_values = 200;
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(), options);
  for (const size_t num_tuples : {40, 90}) {  // of three clients each
    const auto submissions = Submissions(spec, 3, num_tuples, KeyOrder::kSortedUnique);
    size_t values = 0;
    for (const RawSubmission& submission : submissions) values += submission.tensors[0].keys.size();
    const uint64_t before = engine.use().num_done;
    EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
    EXPECT_EQ(engine.use().num_done > before, values >= 200) << values;
    EXPECT_EQ(engine.use().num_fallbacks, 0u);
  }
}

}  // namespace
}  // namespace sparseagg::testing
