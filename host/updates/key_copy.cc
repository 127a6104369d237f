#include "host/updates/key_copy.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
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
