#include "host/spec/privacy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"

namespace sparseagg {
namespace {

// W·C and 2^s·W·C are normal float64 numbers, and so is every product on the way to a term.
constexpr double kMinNorm = 0x1p-500;
constexpr double kMaxNorm = 0x1p500;

absl::Status CheckRange(absl::string_view field, double value, double low, double high, absl::string_view range) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("privacy.%s %g is not in %s", std::string(field), value, std::string(range)));
}

// Checks that an option is given if, and only if, it is of the selection.
absl::Status CheckGiven(absl::string_view field, bool given, bool needed, KeySelection keys) {
  if (given == needed) return absl::OkStatus();
  return absl::InvalidArgumentError(needed ? absl::StrCat("privacy.keys ", Name(keys), " needs privacy.", field)
                                           : absl::StrCat("privacy.", field, " has no effect on keys ", Name(keys)));
}

absl::Status CheckRound(const PrivacySpec& round) {
  RETURN_IF_ERROR(CheckRange("noise_multiplier", round.noise_multiplier, 0x1p-10, 0x1p10, "[2^-10, 2^10]"));
  const bool selects = round.keys != KeySelection::kPublic;
  RETURN_IF_ERROR(CheckGiven("key_noise_multiplier", round.key_noise_multiplier.has_value(), selects, round.keys));
  RETURN_IF_ERROR(CheckGiven("delta", round.delta.has_value(), selects, round.keys));
  if (selects && !round.public_keys.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("privacy.public_keys has no effect on keys ", Name(round.keys)));
  }
  if (round.key_noise_multiplier.has_value()) {
    RETURN_IF_ERROR(CheckRange("key_noise_multiplier", *round.key_noise_multiplier, 0x1p-10, kMaxKeyNoiseMultiplier,
                               "[2^-10, 32]"));
  }
  if (!selects) return absl::OkStatus();
  return CheckRange("delta", *round.delta, kMinKeyDelta, kMaxKeyDelta, "[2^-40, 0.5]");
}

// Checks the options that say what is summed.
absl::Status CheckSum(const TensorSpec& spec, const PrivacySpec& round) {
  const AggregationSpec& a = spec.aggregation;
  const auto refuse = [&](auto... text) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": ", text...));
  };
  if (!IsFloat(spec.dtype)) {
    return refuse("privacy is for tensors of floats, not ", Name(spec.dtype), ": exact sums beside it would tell all");
  }
  const bool noisy_mean = a.op == Op::kCoordinateMean && round.keys == KeySelection::kCountGaussian;
  if (a.op != Op::kSum && a.op != Op::kMean && !noisy_mean) {
    return refuse("privacy takes the ops sum and mean, and coordinate_mean with keys count_gaussian, not ", Name(a.op));
  }
  if (noisy_mean && spec.layout == Layout::kDense) {
    return refuse("coordinate_mean divides by noisy counts, which a dense tensor has none of; use mean");
  }
  if (a.op == Op::kMean && a.mean_divisor != MeanDivisor::kFixed) {
    return refuse("privacy needs mean_divisor fixed: the weights and the number of submissions are exact");
  }
  if (noisy_mean && a.weighting == Weighting::kByWeight) {
    return refuse("privacy has no noisy weights: coordinate_mean needs uniform weighting");
  }
  if (a.numerics != Numerics::kCanonical) return refuse("privacy takes no numerics: its sums are exact integers");
  if (a.max_submissions == 0 || a.max_submissions > (uint64_t{1} << 32)) {
    return refuse("privacy needs max_submissions, 1 to 2^32, for which the exact sums have room; it is ",
                  a.max_submissions);
  }
  return absl::OkStatus();
}

// Checks the options that say what is returned, and the bounds.
absl::Status CheckResult(const TensorSpec& spec, const PrivacySpec& round) {
  const AggregationSpec& a = spec.aggregation;
  const auto refuse = [&](auto... text) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": ", text...));
  };
  const bool has_noisy_counts = round.keys == KeySelection::kCountGaussian && spec.layout == Layout::kSparse;
  if (a.return_counts && !has_noisy_counts) {
    return refuse(
        "privacy refuses return_counts: counts are exact; sparse tensors with keys count_gaussian have noisy "
        "ones");
  }
  if (a.return_weights) return refuse("privacy refuses return_weights: weights are exact");
  if (a.return_moments) return refuse("privacy refuses return_moments: squares are exact");
  if (a.prune_zeros) return refuse("privacy refuses prune_zeros: the keys would depend on values");
  if (a.on_empty == EmptyPolicy::kKeep) {
    return refuse("privacy refuses on_empty keep: the result would tell whether there were submissions");
  }
  if (spec.clip.l2 == TensorClip::kNone) return refuse("privacy needs clip.l2 of the round, which bounds a submission");
  if (!spec.clip.shares_l2) {
    return refuse("privacy takes one clip.l2 of the round, for all tensors together, and none of a tensor");
  }
  if (spec.layout == Layout::kDense || round.keys == KeySelection::kPublic) {
    if (a.min_contributors > 1) {
      return refuse("min_contributors has no effect: the result has all public keys");
    }
    return absl::OkStatus();
  }
  if (spec.clip.max_keys == 0) {
    return refuse("privacy.keys ", Name(round.keys),
                  " needs clip.max_keys: the noise is for submissions of so many keys");
  }
  if (round.keys == KeySelection::kCountGaussian &&
      std::sqrt(static_cast<double>(spec.clip.max_keys)) * *round.key_noise_multiplier >= 0x1p15) {
    return refuse("privacy.keys count_gaussian is for √max_keys · key_noise_multiplier up to 2^15");
  }
  return absl::OkStatus();
}

absl::Status CheckPublicKeys(const TensorSpec& spec, const std::vector<uint64_t>* keys) {
  const auto refuse = [&](auto... text) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": ", text...));
  };
  if (keys == nullptr) {
    if (spec.num_rows != 0) return absl::OkStatus();
    return refuse("privacy.keys public needs privacy.public_keys of a tensor of hashed keys");
  }
  if (spec.layout == Layout::kDense)
    return refuse("privacy.public_keys is for sparse tensors: a dense one has all keys");
  if (keys->empty()) return refuse("privacy.public_keys is empty");
  for (size_t i = 0; i < keys->size(); ++i) {
    if (i > 0 && (*keys)[i] <= (*keys)[i - 1]) {
      return refuse("privacy.public_keys do not ascend: ", (*keys)[i], " after ", (*keys)[i - 1]);
    }
    if (spec.num_rows != 0 && (*keys)[i] >= spec.num_rows) {
      return refuse("key ", (*keys)[i], " of privacy.public_keys is not below num_rows ", spec.num_rows);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view Name(KeySelection keys) {
  constexpr absl::string_view kNames[] = {"public", "weighted_gaussian", "count_gaussian"};
  return kNames[static_cast<size_t>(keys)];
}

absl::Status ResolvePrivacy(const PrivacySpec& round, absl::Span<TensorSpec> specs) {
  RETURN_IF_ERROR(CheckRound(round));
  size_t num_selecting = 0;
  size_t num_listed = 0;
  const bool weighted = !specs.empty() && specs.front().aggregation.weighting == Weighting::kByWeight;
  if (weighted != round.weight_bound.has_value()) {
    return absl::InvalidArgumentError(weighted ? "privacy needs weight_bound with the weighting by_weight"
                                               : "privacy.weight_bound is for the weighting by_weight");
  }
  const double weight_bound = round.weight_bound.value_or(1.0);
  for (const TensorSpec& spec : specs) {
    RETURN_IF_ERROR(CheckSum(spec, round));
    RETURN_IF_ERROR(CheckResult(spec, round));
    const bool selects = spec.layout == Layout::kSparse && round.keys != KeySelection::kPublic;
    num_selecting += selects ? 1 : 0;
    if (!selects) {
      const auto listed = round.public_keys.find(spec.name);
      num_listed += listed == round.public_keys.end() ? 0 : 1;
      RETURN_IF_ERROR(CheckPublicKeys(spec, listed == round.public_keys.end() ? nullptr : &listed->second));
    }
    if (weighted != (spec.aggregation.weighting == Weighting::kByWeight)) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": privacy takes one weighting for all tensors"));
    }
    const double norm = weight_bound * spec.clip.l2;
    if (!(norm >= kMinNorm && norm <= kMaxNorm)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: privacy needs weight_bound · clip.l2 in [2^-500, 2^500], not %g", Quoted(spec), norm));
    }
  }
  if (num_listed != round.public_keys.size()) {
    return absl::InvalidArgumentError("privacy.public_keys names a tensor that the round does not have");
  }
  if (round.keys != KeySelection::kPublic && num_selecting == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("privacy.keys ", Name(round.keys), " has no effect: no tensor is sparse; use public"));
  }
  for (TensorSpec& spec : specs) {
    TensorPrivacy privacy;
    privacy.noise_multiplier = round.noise_multiplier;
    privacy.weight_bound = weight_bound;
    privacy.l2 = spec.clip.l2;
    if (spec.layout == Layout::kSparse) privacy.keys = round.keys;
    if (privacy.keys != KeySelection::kPublic) {
      privacy.key_noise_multiplier = *round.key_noise_multiplier;
      privacy.key_delta = *round.delta / static_cast<double>(num_selecting);
    } else if (const auto listed = round.public_keys.find(spec.name); listed != round.public_keys.end()) {
      privacy.public_keys = std::make_shared<const std::vector<uint64_t>>(listed->second);
    }
    spec.privacy = std::move(privacy);
  }
  return absl::OkStatus();
}

}  // namespace sparseagg
