#include "cuda/merge/key_parts.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "host/cpu/finish/assemble.h"

namespace sparseagg::cuda {
namespace {

KeyColumn Slice(const KeyColumn& keys, uint64_t first, uint64_t count) {
  if (const auto* run = std::get_if<KeyRun>(&keys)) return KeyRun{run->first + first, count};
  if (const auto* narrow = std::get_if<absl::Span<const uint32_t>>(&keys)) return narrow->subspan(first, count);
  return std::get<absl::Span<const uint64_t>>(keys).subspan(first, count);
}

template <typename T>
void Append(const Column<T>& part, size_t first, Column<T>& whole) {
  if (!part.empty()) std::memcpy(whole.data() + first, part.data(), part.size() * sizeof(T));
}

}  // namespace

std::optional<SlabPlan> PlanParts(HostThreads& threads, const TensorShape& shape,
                                  const std::vector<const ValidatedUpdate*>& updates, size_t max_parts,
                                  const Tuning& tuning) {
  uint64_t num_tuples = 0;
  for (const ValidatedUpdate* update : updates) {
    if (!update->unique() || update->on_device()) return std::nullopt;
    num_tuples += update->num_keys();
  }
  if (tuning.slab_bytes == 0) return std::nullopt;
  const uint64_t wanted = num_tuples * (shape.key_bytes + uint64_t{shape.row_bytes}) / tuning.slab_bytes;
  return SlabPlan::MakeParts(threads, shape, updates, std::min<uint64_t>(max_parts, wanted));
}

std::vector<ValidatedUpdate> SlicesOf(const TensorShape& shape, const std::vector<UpdateRange>& ranges) {
  std::vector<ValidatedUpdate> slices;
  slices.reserve(ranges.size());
  for (const auto& [update, first, count] : ranges) {
    UpdateColumns columns;
    columns.keys = Slice(update->keys(), first, count);
    if (update->values() != nullptr) columns.values = update->values() + first * shape.row_bytes;
    const ValidatedUpdate slice =
        ValidatedUpdate::CreateFromTrusted(std::move(columns), update->weight(), /*unique=*/true);
    slices.push_back(update->factor() == 1.0 ? slice : slice.WithFactor(update->factor()));
  }
  return slices;
}

Finished JoinParts(const TensorSpec& spec, std::vector<Finished> parts) {
  uint64_t num_rows = 0;
  for (Finished& part : parts) {
    if (!part.failure.ok()) return std::move(part);
    num_rows += part.result.num_keys;
  }
  Finished joined;
  joined.result = cpu::MakeSparse(spec, num_rows);
  joined.result.plan = absl::StrCat(parts.size(), " ranges of keys; the first: ", parts.front().result.plan);
  const size_t row_values = spec.row_width;
  uint64_t first = 0;
  for (Finished& part : parts) {
    const Result& from = part.result;
    std::visit([&](auto& keys) { Append(std::get<std::decay_t<decltype(keys)>>(from.keys), first, keys); },
               joined.result.keys);
    Append(from.values, first * from.row_bytes(), joined.result.values);
    Append(from.counts, first, joined.result.counts);
    Append(from.weights, first, joined.result.weights);
    Append(from.moments, first * row_values, joined.result.moments);
    first += from.num_keys;
    part = {};  // its memory
  }
  joined.result = cpu::CutAndLayOut(spec, num_rows, std::move(joined.result));
  return joined;
}

}  // namespace sparseagg::cuda
