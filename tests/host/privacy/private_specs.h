// Specs and submissions of private aggregations.
#ifndef SPARSEAGG_TESTS_HOST_PRIVACY_PRIVATE_SPECS_H_
#define SPARSEAGG_TESTS_HOST_PRIVACY_PRIVATE_SPECS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/spec/clip.h"
#include "host/spec/privacy.h"
#include "host/spec/spec.h"
#include "host/updates/update.h"

namespace sparseagg::testing {

// A sparse tensor of float64 rows as privacy wants it, without bounds and privacy options.
inline TensorSpec PrivateTensor(const std::string& name = "t", uint32_t row_width = 1, uint64_t num_rows = 1000) {
  TensorSpec spec;
  spec.name = name;
  spec.dtype = DType::kFloat64;
  spec.num_rows = num_rows;
  spec.row_width = row_width;
  spec.aggregation.max_submissions = 1000;
  return spec;
}

inline PrivacySpec PublicKeys(double noise_multiplier = 1.0) {
  PrivacySpec privacy;
  privacy.noise_multiplier = noise_multiplier;
  privacy.keys = KeySelection::kPublic;
  return privacy;
}

inline PrivacySpec GaussianKeys(KeySelection keys, double noise_multiplier, double key_noise_multiplier, double delta) {
  PrivacySpec privacy;
  privacy.noise_multiplier = noise_multiplier;
  privacy.keys = keys;
  privacy.key_noise_multiplier = key_noise_multiplier;
  privacy.delta = delta;
  return privacy;
}

// The tensors of a round with bounds and privacy options.
inline std::vector<TensorSpec> Resolved(std::vector<TensorSpec> specs, const PrivacySpec& privacy, double l2 = 1.0,
                                        std::optional<uint64_t> max_keys = std::nullopt) {
  ClipSpec clip;
  clip.l2 = l2;
  clip.max_keys = max_keys;
  for (TensorSpec& spec : specs) spec.privacy.emplace();
  EXPECT_TRUE(ResolveClips(clip, std::vector<ClipSpec>(specs.size()), absl::MakeSpan(specs)).ok());
  const absl::Status status = ResolvePrivacy(privacy, absl::MakeSpan(specs));
  EXPECT_TRUE(status.ok()) << status;
  return specs;
}

// An update of float64 rows with 32-bit keys, which it owns.
inline ValidatedUpdate UpdateOf(const TensorSpec& spec, std::vector<uint32_t> keys, std::vector<double> values,
                                double weight = 1.0) {
  struct Arrays {
    std::vector<uint32_t> keys;
    std::vector<double> values;
  };
  auto arrays = std::make_shared<Arrays>(Arrays{std::move(keys), std::move(values)});
  auto update = ValidatedUpdate::Create(
      spec, {absl::MakeConstSpan(arrays->keys), reinterpret_cast<const std::byte*>(arrays->values.data()), arrays},
      weight);
  EXPECT_TRUE(update.ok()) << update.status();
  return *std::move(update);
}

}  // namespace sparseagg::testing

#endif  // SPARSEAGG_TESTS_HOST_PRIVACY_PRIVATE_SPECS_H_
