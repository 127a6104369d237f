// Options of privacy: what is refused, and why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "host/spec/clip.h"
#include "host/spec/privacy.h"
#include "tests/host/privacy/private_specs.h"

namespace sparseagg {
namespace {

using testing::GaussianKeys;
using ::testing::HasSubstr;
using testing::PrivateTensor;

// A round that privacy takes, to be changed in one place.
struct Round {
  std::vector<TensorSpec> specs = {PrivateTensor()};
  ClipSpec clip = {.l2 = 1.0, .linf = {}, .max_keys = 10, .on_clip = {}};
  std::vector<ClipSpec> own = {{}};
  PrivacySpec privacy = GaussianKeys(KeySelection::kWeightedGaussian, 1.0, 1.0, 1e-6);

  absl::Status Resolve() {
    const absl::Status clips = ResolveClips(clip, own, absl::MakeSpan(specs));
    return clips.ok() ? ResolvePrivacy(privacy, absl::MakeSpan(specs)) : clips;
  }
};

TEST(ResolvePrivacy, GoodRound_SetsTheOptionsOfEachTensor) {
  Round round;
  round.specs.push_back(PrivateTensor("dense"));
  round.specs.back().layout = Layout::kDense;
  round.specs.push_back(PrivateTensor("other"));
  round.own.resize(3);
  ASSERT_TRUE(round.Resolve().ok());
  EXPECT_EQ(round.specs[0].privacy->keys, KeySelection::kWeightedGaussian);
  EXPECT_EQ(round.specs[0].privacy->key_delta, 5e-7);  // half each
  EXPECT_EQ(round.specs[1].privacy->keys, KeySelection::kPublic);
  EXPECT_EQ(round.specs[2].privacy->key_noise_multiplier, 1.0);
}

struct Refusal {
  const char* name;
  std::function<void(Round&)> change;
  std::string text;
};

class ResolvePrivacyRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(ResolvePrivacyRefuses, ByName) {
  Round round;
  GetParam().change(round);
  const absl::Status status = round.Resolve();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().text));
}

AggregationSpec& Of(Round& round) { return round.specs[0].aggregation; }

INSTANTIATE_TEST_SUITE_P(
    All, ResolvePrivacyRefuses,
    ::testing::Values(
        Refusal{"min", [](Round& r) { Of(r).op = Op::kMin; }, "not min"},
        Refusal{"max", [](Round& r) { Of(r).op = Op::kMax; }, "not max"},
        Refusal{"median", [](Round& r) { Of(r).op = Op::kMedian; r.clip.on_clip = ClipPolicy::kReject; }, "not median"},
        Refusal{"coordinate_mean", [](Round& r) { Of(r).op = Op::kCoordinateMean; },
                "coordinate_mean with keys count_gaussian, not coordinate_mean"},
        Refusal{"mean", [](Round& r) { Of(r).op = Op::kMean; }, "needs mean_divisor fixed"},
        Refusal{"numerics", [](Round& r) { Of(r).numerics = Numerics::kBinned; }, "privacy takes no numerics"},
        Refusal{"no_limit", [](Round& r) { Of(r).max_submissions = 0; }, "needs max_submissions, 1 to 2^32"},
        Refusal{"limit", [](Round& r) { Of(r).max_submissions = (uint64_t{1} << 32) + 1; }, "it is 4294967297"},
        Refusal{"integers", [](Round& r) { r.specs.push_back(PrivateTensor("i")); r.specs[1].dtype = DType::kInt64;
                                           r.own.resize(2); }, "is for tensors of floats, not int64"},
        Refusal{"counts", [](Round& r) { Of(r).return_counts = true; }, "refuses return_counts"},
        Refusal{"weights", [](Round& r) { Of(r).return_weights = true; }, "refuses return_weights"},
        Refusal{"moments", [](Round& r) { Of(r).return_moments = true; }, "refuses return_moments"},
        Refusal{"prune_zeros", [](Round& r) { Of(r).prune_zeros = true; }, "refuses prune_zeros"},
        Refusal{"on_empty", [](Round& r) { Of(r).on_empty = EmptyPolicy::kKeep; }, "refuses on_empty keep"},
        Refusal{"no_weight_bound", [](Round& r) { Of(r).weighting = Weighting::kByWeight; },
                "needs weight_bound with the weighting by_weight"},
        Refusal{"weight_bound", [](Round& r) { r.privacy.weight_bound = 2.0; }, "is for the weighting by_weight"},
        Refusal{"no_l2", [](Round& r) { r.clip.l2.reset(); }, "needs clip.l2"},
        Refusal{"own_l2", [](Round& r) { r.own[0].l2 = 1.0; r.specs.push_back(PrivateTensor("b")); r.own.resize(2); },
                "takes one clip.l2 of the round"},
        Refusal{"no_max_keys", [](Round& r) { r.clip.max_keys.reset(); }, "needs clip.max_keys"},
        Refusal{"norm", [](Round& r) { Of(r).weighting = Weighting::kByWeight; r.privacy.weight_bound = 0x1p600; },
                "weight_bound · clip.l2 in [2^-500, 2^500]"},
        Refusal{"two_weights", [](Round& r) { r.specs.push_back(PrivateTensor("b")); r.own.resize(2);
                                              r.specs[1].aggregation.weighting = Weighting::kByWeight; },
                "one weighting for all tensors"},
        Refusal{"noise_multiplier", [](Round& r) { r.privacy.noise_multiplier = 0.0; }, "noise_multiplier 0 is not in"},
        Refusal{"nan", [](Round& r) { r.privacy.noise_multiplier = NAN; }, "noise_multiplier nan is not in"},
        Refusal{"no_delta", [](Round& r) { r.privacy.delta.reset(); }, "needs privacy.delta"},
        Refusal{"delta", [](Round& r) { r.privacy.delta = 0.7; }, "delta 0.7 is not in"},
        Refusal{"no_key_noise", [](Round& r) { r.privacy.key_noise_multiplier.reset(); },
                "needs privacy.key_noise_multiplier"},
        Refusal{"key_noise", [](Round& r) { r.privacy.key_noise_multiplier = 33.0; },
                "key_noise_multiplier 33 is not in"},
        Refusal{"public_delta", [](Round& r) { r.privacy.keys = KeySelection::kPublic;
                                               r.privacy.key_noise_multiplier.reset(); }, "delta has no effect"},
        Refusal{"count_range", [](Round& r) { r.privacy.keys = KeySelection::kCountGaussian;
                                              r.clip.max_keys = uint64_t{1} << 32; }, "up to 2^15"},
        Refusal{"dense_only", [](Round& r) { r.specs[0].layout = Layout::kDense; r.clip.max_keys.reset(); },
                "no tensor is sparse"},
        Refusal{"public_keys", [](Round& r) { r.privacy.public_keys["t"] = {1}; }, "public_keys has no effect"},
        Refusal{"public_order", [](Round& r) { r.privacy = testing::PublicKeys(); r.privacy.public_keys["t"] = {2, 2}; },
                "do not ascend: 2 after 2"},
        Refusal{"public_range", [](Round& r) { r.privacy = testing::PublicKeys();
                                               r.privacy.public_keys["t"] = {1000}; }, "not below num_rows 1000"},
        Refusal{"public_name", [](Round& r) { r.privacy = testing::PublicKeys(); r.privacy.public_keys["u"] = {1}; },
                "names a tensor that the round does not have"},
        Refusal{"public_hashed", [](Round& r) { r.privacy = testing::PublicKeys(); r.specs[0].num_rows = 0; },
                "needs privacy.public_keys"},
        Refusal{"public_least", [](Round& r) { r.privacy = testing::PublicKeys(); Of(r).min_contributors = 2; },
                "min_contributors has no effect"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace sparseagg
