#include "host/updates/update.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/float_environment.h"
#include "host/base/status_macros.h"
#include "host/updates/input_checks.h"

namespace sparseagg::internal {
namespace {

// A batch and its copy fit the first cache of every machine.
constexpr size_t kBatchKeys = 2048;

// Returns: the largest key that both types can hold. It has the form 2^n - 1, so that bits can be tested.
template <typename To, typename From>
constexpr uint64_t LargestKey() {
  if (sizeof(From) > sizeof(To)) return std::numeric_limits<To>::max();
  return static_cast<uint64_t>(std::numeric_limits<From>::max());
}

// Copies the keys of one batch, reading each once. Returns: the OR of the keys, in which a negative key sets the
// highest bit.
template <typename To, typename From>
uint64_t CopyBatch(absl::Span<const From> from, To* to) {
  if constexpr (sizeof(From) > sizeof(To)) {
    return NarrowKeys(from.data(), from.size(), to);
  } else {
    std::make_unsigned_t<From> bits = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      const From key = from[i];
      bits |= static_cast<std::make_unsigned_t<From>>(key);
      to[i] = static_cast<To>(key);
    }
    return bits;
  }
}

template <typename To, typename From>
absl::Status NotInType(const InputLocation& location, uint64_t position, absl::Span<const From> batch) {
  const TensorSpec& spec = *location.spec;
  for (const From key : batch) {
    if (static_cast<std::make_unsigned_t<From>>(key) > LargestKey<To, From>()) {
      // Without num_rows, every unsigned key fits.
      const std::string problem =
          spec.num_rows == 0 ? "is negative; keys are unsigned, and signed 64-bit ids keep their bits as uint64: "
                               "keys.view(np.uint64)"
                             : absl::StrCat("is not in [0, ", spec.num_rows, ")");
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(spec), ": key ", key, " at position ", position, " ", problem));
    }
    ++position;
  }
  // Another thread has overwritten the bad key since it was copied.
  return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": keys changed during the call"));
}

struct Owners {
  std::shared_ptr<KeyArena> keys;
  std::shared_ptr<const void> values;
};

template <typename To, typename From>
absl::StatusOr<UpdateColumns> CopyAs(const InputLocation& location, absl::Span<const From> keys,
                                     std::shared_ptr<const void>&& owner, std::shared_ptr<KeyArena>&& arena,
                                     KeyOrder& order) {
  const size_t size = keys.size() * sizeof(To);
  std::byte* memory = arena == nullptr ? nullptr : arena->Take(size);
  if (memory == nullptr) {
    arena = std::make_shared<KeyArena>(size);
    memory = arena->Take(size);
  }
  To* const copy = reinterpret_cast<To*>(memory);
  for (size_t at = 0; at < keys.size(); at += kBatchKeys) {
    const absl::Span<const From> batch = keys.subspan(at, kBatchKeys);
    To* const out = copy + at;
    if (CopyBatch(batch, out) > LargestKey<To, From>()) return NotInType<To>(location, at, batch);
    const auto* const bytes = reinterpret_cast<const char*>(out);
    RETURN_IF_ERROR(CheckKeys(location, at, bytes, batch.size(), sizeof(To), order));
  }
  UpdateColumns columns;
  columns.keys = absl::MakeConstSpan(copy, keys.size());
  columns.value_owner = owner;
  columns.owner = std::make_shared<Owners>(Owners{std::move(arena), std::move(owner)});
  return columns;
}

}  // namespace

absl::StatusOr<UpdateColumns> CopyKeys(const InputLocation& location, const InputKeys& keys,
                                       std::shared_ptr<const void> owner, std::shared_ptr<KeyArena> arena,
                                       KeyOrder& order) {
  return std::visit(
      [&](const auto& column) -> absl::StatusOr<UpdateColumns> {
        if constexpr (std::is_same_v<std::decay_t<decltype(column)>, KeyRun>) {
          RETURN_IF_ERROR(CheckKeyRun(location, column.first, column.count, order));
          UpdateColumns columns;
          columns.keys = column;
          columns.owner = std::move(owner);
          return columns;
        } else if (HasNarrowKeys(*location.spec)) {
          return CopyAs<uint32_t>(location, column, std::move(owner), std::move(arena), order);
        } else {
          return CopyAs<uint64_t>(location, column, std::move(owner), std::move(arena), order);
        }
      },
      keys);
}

}  // namespace sparseagg::internal

namespace sparseagg {

namespace {

template <typename Keys>
uint64_t CountKeys(const Keys& keys) {
  return std::visit(
      [](const auto& column) -> uint64_t {
        if constexpr (std::is_same_v<std::decay_t<decltype(column)>, KeyRun>) {
          return column.count;
        } else {
          return column.size();
        }
      },
      keys);
}

}  // namespace

uint64_t NumKeys(const KeyColumn& keys) { return CountKeys(keys); }
uint64_t NumKeys(const InputKeys& keys) { return CountKeys(keys); }

uint64_t KeyAt(const KeyColumn& keys, uint64_t index) {
  if (const auto* run = std::get_if<KeyRun>(&keys)) return run->first + index;
  if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&keys)) return (*narrow)[index];
  return std::get<absl::Span<const uint64_t>>(keys)[index];
}

std::optional<KeyBounds> LookOver(const TensorSpec& spec, absl::Span<const uint64_t> keys) {
  constexpr size_t kSome = 256;  // finds keys in no order, or with many repeats, almost always
  if (keys.empty()) return std::nullopt;
  const uint64_t smallest = keys.front();
  const uint64_t largest = keys.back();
  if (smallest > largest || largest >= spec.num_rows) return std::nullopt;
  const auto some = keys.first(std::min(kSome, keys.size()));
  if (std::adjacent_find(some.begin(), some.end(), std::greater_equal<>()) != some.end()) return std::nullopt;
  return KeyBounds{static_cast<uint32_t>(smallest), static_cast<uint32_t>(largest)};
}

absl::Status CheckWeightHasEffect(absl::Span<const TensorSpec> tensors, std::optional<double> weight) {
  if (!weight.has_value() || *weight == 1.0 || !std::isfinite(*weight) || *weight < 0.0) return absl::OkStatus();
  const auto is_weighted = [](const TensorSpec& spec) { return spec.aggregation.weighting == Weighting::kByWeight; };
  if (std::any_of(tensors.begin(), tensors.end(), is_weighted)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("weight ", *weight, " has no effect: no tensor is weighted by_weight"));
}

absl::Status ValidateWeight(const TensorSpec& spec, double weight) {
  const DefaultFloatEnvironment environment;
  const auto invalid = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": weight ", weight, " ", problem));
  };
  if (!std::isfinite(weight)) return invalid("is not finite");
  if (weight < 0.0) return invalid("is negative");
  if (spec.aggregation.weighting != Weighting::kByWeight) return absl::OkStatus();
  if (weight > kMaxWeight) return invalid("is beyond 2^960: sums of weights must stay finite");
  if (spec.privacy.has_value() && weight > spec.privacy->weight_bound) {
    return invalid(absl::StrCat("is beyond privacy.weight_bound ", spec.privacy->weight_bound));
  }
  if (IsSignedInteger(spec.dtype) && (weight != std::rint(weight) || weight >= 0x1p53)) {
    return invalid("is not an integer below 2^53, which integer tensors need under by_weight");
  }
  return absl::OkStatus();
}

double WeightInUse(const TensorSpec& spec, double weight) {
  return spec.aggregation.weighting == Weighting::kByWeight ? std::fabs(weight) : 1.0;
}

absl::StatusOr<ValidatedUpdate> ValidatedUpdate::Create(const TensorSpec& spec, UpdateColumns columns, double weight) {
  RETURN_IF_ERROR(ValidateWeight(spec, weight));
  const internal::InputLocation location{&spec, std::nullopt};
  const uint64_t count = NumKeys(columns.keys);
  internal::KeyOrder order;
  const auto check = [&](const auto& keys) {
    const auto* const bytes = reinterpret_cast<const char*>(keys.data());
    return internal::CheckKeys(location, 0, bytes, count, sizeof(keys[0]), order);
  };
  if (const auto* run = std::get_if<KeyRun>(&columns.keys)) {
    RETURN_IF_ERROR(internal::CheckKeyRun(location, run->first, run->count, order));
  } else if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&columns.keys)) {
    if (!HasNarrowKeys(spec)) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": keys have 32 bits, but num_rows needs 64"));
    }
    RETURN_IF_ERROR(check(*narrow));
  } else {
    if (HasNarrowKeys(spec)) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": keys have 64 bits, but num_rows needs 32"));
    }
    RETURN_IF_ERROR(check(std::get<absl::Span<const uint64_t>>(columns.keys)));
  }
  return CreateFromCheckedKeys(spec, std::move(columns), order, weight);
}

absl::StatusOr<ValidatedUpdate> ValidatedUpdate::CreateWithCopiedKeys(const TensorSpec& spec, const InputKeys& keys,
                                                                      const std::byte* values,
                                                                      std::shared_ptr<const void> owner, double weight,
                                                                      std::shared_ptr<KeyArena> arena) {
  RETURN_IF_ERROR(ValidateWeight(spec, weight));
  internal::KeyOrder order;
  ASSIGN_OR_RETURN(UpdateColumns columns,
                   internal::CopyKeys({&spec, std::nullopt}, keys, std::move(owner), std::move(arena), order));
  columns.values = values;
  return CreateFromCheckedKeys(spec, std::move(columns), order, weight);
}

absl::StatusOr<ValidatedUpdate> ValidatedUpdate::CreateWithUncheckedKeys(const TensorSpec& spec,
                                                                         absl::Span<const uint64_t> keys,
                                                                         KeyBounds bounds, const std::byte* values,
                                                                         std::shared_ptr<const void> owner,
                                                                         double weight) {
  RETURN_IF_ERROR(ValidateWeight(spec, weight));
  const internal::KeyOrder seems_strict;
  ASSIGN_OR_RETURN(ValidatedUpdate update,
                   CreateFromCheckedKeys(spec, {keys, values, std::move(owner)}, seems_strict, weight));
  update.unchecked_ = bounds;
  return update;
}

absl::StatusOr<ValidatedUpdate> ValidatedUpdate::CreateFromCheckedKeys(const TensorSpec& spec, UpdateColumns columns,
                                                                       const internal::KeyOrder& order, double weight) {
  const internal::InputLocation location{&spec, std::nullopt};
  const uint64_t count = NumKeys(columns.keys);
  if (spec.layout == Layout::kDense) {
    const auto* run = std::get_if<KeyRun>(&columns.keys);
    if (run == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": layout dense needs all ", spec.num_rows,
                                                     " rows in order, as a run of keys, not a list of ", count));
    }
    if (run->first != 0 || run->count != spec.num_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(spec), ": layout dense needs all ", spec.num_rows, " rows, not ", count));
    }
  }
  if (columns.values != nullptr && !spec.clip.checks_values()) {
    RETURN_IF_ERROR(internal::CheckValues(location, 0, reinterpret_cast<const char*>(columns.values),
                                          count * spec.row_width, [&](uint64_t i) { return KeyAt(columns.keys, i); }));
  } else if (columns.values == nullptr && spec.aggregation.op != Op::kUnion && count > 0) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": ", count, " keys without values"));
  }
  ValidatedUpdate update;
  update.columns_ = std::move(columns);
  if (spec.aggregation.op == Op::kUnion) update.columns_.values = nullptr;
  update.num_keys_ = count;
  update.weight_ = WeightInUse(spec, weight);
  update.sorted_ = order.sorted;
  update.unique_ = order.unique;
  return update;
}

ValidatedUpdate ValidatedUpdate::CreateFromTrusted(UpdateColumns columns, double weight, bool unique) {
  ValidatedUpdate update;
  update.num_keys_ = NumKeys(columns.keys);
  update.columns_ = std::move(columns);
  update.weight_ = weight;
  update.unique_ = unique;
  return update;
}

ValidatedUpdate ValidatedUpdate::WithWeight(double weight) const {
  ValidatedUpdate update = *this;
  update.weight_ = weight;
  return update;
}

ValidatedUpdate ValidatedUpdate::WithFactor(double factor) const {
  ValidatedUpdate update = *this;
  update.factor_ = factor;
  return update;
}

ValidatedUpdate ValidatedUpdate::WithPinned(bool keys, bool values) const {
  ValidatedUpdate update = *this;
  update.columns_.pinned_keys = keys;
  update.columns_.pinned_values = values;
  return update;
}

ValidatedUpdate ValidatedUpdate::OnDevice(UpdateColumns columns, double weight, bool sorted, bool unique) {
  ValidatedUpdate update;
  update.num_keys_ = NumKeys(columns.keys);
  update.columns_ = std::move(columns);
  update.weight_ = weight;
  update.sorted_ = sorted;
  update.unique_ = unique;
  update.on_device_ = true;
  return update;
}

}  // namespace sparseagg
