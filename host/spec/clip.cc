#include "host/spec/clip.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/half.h"
#include "host/base/status_macros.h"
#include "host/spec/spec.h"

namespace sparseagg {
namespace {

// Squares of bounds, and of values near them, are normal float64 numbers.
constexpr double kMinBound = 0x1p-500;
constexpr double kMaxBound = 0x1p500;

bool HasFloats(const TensorSpec& spec) { return IsFloat(spec.dtype) && spec.aggregation.op != Op::kUnion; }

absl::Status CheckBound(absl::string_view where, absl::string_view field, double bound) {
  if (bound >= kMinBound && bound <= kMaxBound) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%sclip.%s %g is not in [2^-500, 2^500]", std::string(where), std::string(field), bound));
}

absl::Status CheckRound(const ClipSpec& round) {
  if (round.on_clip.has_value() && !round.has_bound()) {
    return absl::InvalidArgumentError("clip has on_clip and no bound: l2, linf or max_keys");
  }
  if (round.l2.has_value()) RETURN_IF_ERROR(CheckBound("", "l2", *round.l2));
  if (round.linf.has_value()) RETURN_IF_ERROR(CheckBound("", "linf", *round.linf));
  if (round.max_keys == 0) return absl::InvalidArgumentError("clip.max_keys 0: nothing would be left");
  return absl::OkStatus();
}

absl::Status CheckTensor(const ClipSpec& own, const TensorSpec& spec) {
  const auto refuse = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": ", problem));
  };
  if (!own.has_bound()) return absl::OkStatus();
  if (!IsFloat(spec.dtype)) return refuse(absl::StrCat("clip is for floats, not ", Name(spec.dtype)));
  if (!HasFloats(spec)) return refuse("clip is for values, and union has none");
  const std::string where = absl::StrCat(Quoted(spec), ": ");
  if (own.l2.has_value() && *own.l2 != TensorClip::kNone) RETURN_IF_ERROR(CheckBound(where, "l2", *own.l2));
  if (own.linf.has_value() && *own.linf != TensorClip::kNone) RETURN_IF_ERROR(CheckBound(where, "linf", *own.linf));
  if (own.max_keys.has_value() && *own.max_keys != 0 && spec.layout == Layout::kDense) {
    return refuse(absl::StrCat("clip.max_keys ", *own.max_keys, " is for sparse tensors: a dense one has all ",
                               spec.num_rows, " keys"));
  }
  return absl::OkStatus();
}

// Returns: the largest number of the type that is not beyond the bound.
double RoundDown(DType dtype, double bound) {
  const auto in_sixteen_bits = [bound](uint16_t bits, float (*widen)(uint16_t)) {
    return static_cast<double>(widen(widen(bits) > bound ? bits - 1 : bits));
  };
  switch (dtype) {
    case DType::kFloat16:
      return in_sixteen_bits(RoundToFloat16(bound), WidenFloat16);
    case DType::kBFloat16:
      return in_sixteen_bits(RoundToBFloat16(bound), WidenBFloat16);
    case DType::kFloat64:
      return bound;
    default: {
      const auto nearest = static_cast<float>(bound);
      return nearest > bound ? std::nextafter(nearest, 0.0f) : nearest;
    }
  }
}

TensorClip Resolve(const ClipSpec& round, const ClipSpec& own, const TensorSpec& spec) {
  TensorClip clip;
  clip.on_clip = own.on_clip.value_or(round.on_clip.value_or(ClipPolicy::kClip));
  clip.on_l2 = clip.on_clip;
  if (own.l2.has_value()) {
    clip.l2 = *own.l2;
  } else if (round.l2.has_value()) {
    clip.l2 = *round.l2;
    clip.shares_l2 = true;
    clip.on_l2 = round.on_clip.value_or(ClipPolicy::kClip);
  }
  clip.linf = own.linf.value_or(round.linf.value_or(TensorClip::kNone));
  if (clip.linf != TensorClip::kNone) clip.linf = RoundDown(spec.dtype, clip.linf);
  if (spec.layout == Layout::kSparse) clip.max_keys = own.max_keys.value_or(round.max_keys.value_or(0));
  return clip;
}

}  // namespace

absl::Status ResolveClips(const ClipSpec& round, absl::Span<const ClipSpec> tensors, absl::Span<TensorSpec> specs) {
  RETURN_IF_ERROR(CheckRound(round));
  bool uses_l2 = false;
  bool uses_linf = false;
  bool uses_max_keys = false;
  for (size_t t = 0; t < specs.size(); ++t) {
    TensorSpec& spec = specs[t];
    const ClipSpec& own = tensors[t];
    RETURN_IF_ERROR(CheckTensor(own, spec));
    spec.clip = HasFloats(spec) ? Resolve(round, own, spec) : TensorClip();
    const TensorClip& clip = spec.clip;
    if (own.on_clip.has_value() && clip.linf == TensorClip::kNone && clip.max_keys == 0 && !own.l2.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(spec), ": clip.on_clip has no effect: the tensor has no bound of its own"));
    }
    if (clip.linf == 0.0) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(spec), ": clip.linf is below all values of ", Name(spec.dtype), " but 0"));
    }
    if (IsOrderStatistic(spec.aggregation.op) && clip.l2 != TensorClip::kNone && clip.on_l2 == ClipPolicy::kClip) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(spec),
                       ": clip.l2 multiplies values, and order statistics choose among values as they are; "
                       "use on_clip reject, or linf and max_keys"));
    }
    if (clip.has_bound() && spec.aggregation.on_nonfinite == NonfinitePolicy::kPropagate) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(spec), ": clip needs on_nonfinite reject: NaN and Inf have no norm"));
    }
    uses_l2 |= clip.shares_l2;
    uses_linf |= clip.linf != TensorClip::kNone && !own.linf.has_value();
    uses_max_keys |= clip.max_keys != 0 && !own.max_keys.has_value();
  }
  const absl::string_view unused = round.l2.has_value() && !uses_l2               ? "l2"
                                   : round.linf.has_value() && !uses_linf         ? "linf"
                                   : round.max_keys.has_value() && !uses_max_keys ? "max_keys"
                                                                                  : "";
  if (unused.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("clip.", unused, " has no effect: no ",
                                                 unused == "max_keys" ? "sparse " : "", "tensor of floats takes it"));
}

void ClipSummary::Add(const ClipOutcome& outcome, int count) {
  const auto change = static_cast<uint64_t>(count);  // −1 wraps, and so subtracts
  if (outcome.is_clipped()) num_clipped += change;
  if (outcome.linf) num_linf += change;
  if (outcome.max_keys) num_max_keys += change;
  if (!outcome.l2()) return;
  num_l2 += change;
  int exponent = 0;
  std::frexp(outcome.factor, &exponent);  // factor in [2^(exponent − 1), 2^exponent), exponent ≤ 0
  factors[std::min<size_t>(static_cast<size_t>(-exponent), kBuckets - 1)] += change;
}

}  // namespace sparseagg
