// How the sort path divides segments among threads, warps and larger blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/device_engine.h"
#include "tests/support/driver.h"
#include "tests/support/generators.h"
#include "tests/support/host_device.h"
#include "tests/support/host_executor.h"
#include "tests/support/reference.h"
#include "tests/support/run_kernel.h"

namespace sparseagg::testing {
namespace {

// The lengths of the segments that a merge lists, ascending.
struct Listed {
  std::vector<uint32_t> medium;
  std::vector<uint32_t> longs;
};

std::vector<uint32_t> LengthsOf(const cuda::SegmentList& list, const cuda::Segments& segments) {
  std::vector<uint32_t> lengths;
  for (uint32_t i = 0; i < (list.max_count == 0 ? 0 : *list.d_count); ++i) {
    const uint32_t segment = list.d_segments[i];
    lengths.push_back(segments.End(segment) - segments.Begin(segment));
  }
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

// Merges one submission for each entry of the longest segment, so that key i gets lengths[i] entries. Checks the result
// and that both kernels divide the segments in the same way.
Listed MergeSegments(const std::vector<uint32_t>& lengths, uint32_t row_width, Numerics numerics) {
  TensorSpec spec;
  spec.name = "t";
  spec.num_rows = 100;
  spec.row_width = row_width;
  spec.aggregation.op = Op::kCoordinateMean;
  spec.aggregation.weighting = Weighting::kByWeight;
  spec.aggregation.numerics = numerics;
  spec.aggregation.value_bound = 0x1p20;
  spec.aggregation.weight_bound = 8.0;
  spec.aggregation.return_counts = true;
  spec.aggregation.max_submissions = *std::max_element(lengths.begin(), lengths.end());
  std::vector<RawSubmission> submissions;
  Rng rng(TestSeed(91));
  for (uint32_t client = 0; client < spec.aggregation.max_submissions; ++client) {
    RawTensor raw;
    for (size_t key = 0; key < lengths.size(); ++key) {
      if (client < lengths[key]) raw.keys.push_back(key);
    }
    raw.values = RandomValues(rng, spec.dtype, raw.keys.size() * row_width, ValueStyle::kUnit);
    submissions.push_back({absl::StrCat("client ", client), 1.0 + client % 3, {std::move(raw)}});
  }

  std::vector<Listed> listed;
  cuda::HostDeviceOptions device;
  device.run_kernel = [&](const cuda::KernelCall& call) {
    cuda::HostExecutor executor(/*seed=*/7);
    cuda::RunKernel(call, executor);
    const auto record = [&](const cuda::SegmentClasses& classes, const cuda::Segments& segments) {
      listed.push_back({LengthsOf(classes.medium, segments), LengthsOf(classes.longs, segments)});
    };
    if (const auto* fold = std::get_if<cuda::FoldValues>(&call)) record(fold->classes, fold->segments);
    if (const auto* count = std::get_if<cuda::Contributors>(&call)) record(count->classes, count->segments);
  };
  cuda::DeviceEngineOptions options;
  options.tuning.min_tile_tuples = 1e300;
  options.tuning.slab_bytes = 0;
  options.cpu.num_threads = 1;
  cuda::DeviceEngine engine(std::make_unique<cuda::HostDevice>(device), options);
  EXPECT_EQ(Disagreement({spec}, Drive(engine, {spec}, submissions), Judge({spec}, submissions)), "");
  EXPECT_EQ(engine.use().num_fallbacks, 0u);
  if (listed.size() != 2) {
    ADD_FAILURE() << listed.size() << " kernels, for values and for contributors";
    return {};
  }
  EXPECT_EQ(listed[0].medium, listed[1].medium);
  EXPECT_EQ(listed[0].longs, listed[1].longs);
  return listed[0];
}

using Lengths = std::vector<uint32_t>;

TEST(SegmentClasses, LengthsAroundTheLimits_EachInItsClass_BitsOfTheReference) {
  for (const Numerics numerics : {Numerics::kCanonical, Numerics::kFixedPoint}) {
    SCOPED_TRACE(absl::StrCat("numerics ", static_cast<int>(numerics)));
    const Listed single = MergeSegments({1, 32, 33, 1024, 1025, 2}, 1, numerics);
    EXPECT_EQ(single.medium, (Lengths{33, 1024}));
    EXPECT_EQ(single.longs, (Lengths{1025}));
    const Listed rows = MergeSegments({256, 32, 1, 257, 33}, 4, numerics);
    EXPECT_EQ(rows.medium, (Lengths{33, 256}));
    EXPECT_EQ(rows.longs, (Lengths{257}));
    const Listed wide = MergeSegments({33, 32, 1, 100}, 64, numerics);
    EXPECT_EQ(wide.medium, Lengths());
    EXPECT_EQ(wide.longs, (Lengths{33, 100}));
  }
}

TEST(SegmentClasses, OnlyShortOnes_NothingIsListed) {
  const Listed listed = MergeSegments({32, 1, 7}, 1, Numerics::kCanonical);
  EXPECT_EQ(listed.medium, Lengths());
  EXPECT_EQ(listed.longs, Lengths());
}

}  // namespace
}  // namespace sparseagg::testing
