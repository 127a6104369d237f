#include "python/engine/keys.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/column.h"

namespace sparseagg::python {
namespace {

template <typename From>
absl::Status Outside(const TensorSpec& spec, From key, size_t position) {
  const std::string end = spec.dimension == 0 ? "18446744073709551616" : absl::StrCat(spec.dimension);
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(spec), ": key ", key, " at position ", position, " is not in [0, ", end, ")"));
}

// Returns: the largest key that both types can hold. It has the form 2^n - 1, so that bits can be tested.
template <typename To, typename From>
constexpr uint64_t LargestKey() {
  if (sizeof(From) > sizeof(To)) return std::numeric_limits<To>::max();
  return static_cast<uint64_t>(std::numeric_limits<From>::max());
}

// Copies `from` to `to` in one pass that compilers vectorise.
// Returns: whether all keys were in [0, LargestKey()].
template <typename To, typename From>
bool CopyInRange(absl::Span<const From> from, To* to) {
  std::make_unsigned_t<From> bits = 0;  // the OR of all keys; a negative key sets the highest bit
  for (size_t i = 0; i < from.size(); ++i) {
    bits |= static_cast<std::make_unsigned_t<From>>(from[i]);
    to[i] = static_cast<To>(from[i]);
  }
  return bits <= LargestKey<To, From>();
}

template <typename To>
struct Copy {
  Column<To> keys;
  std::shared_ptr<const void> owner;  // of the values
};

template <typename To, typename From>
absl::StatusOr<UpdateColumns> CopyAs(const TensorSpec& spec, absl::Span<const From> keys,
                                     const std::shared_ptr<const void>& owner) {
  auto copy = std::make_shared<Copy<To>>();
  copy->keys.resize(keys.size());
  if (!CopyInRange(keys, copy->keys.data())) {
    const auto bad = std::find_if(keys.begin(), keys.end(), [](From key) {
      return static_cast<std::make_unsigned_t<From>>(key) > LargestKey<To, From>();
    });
    // Another thread may have overwritten the bad key between the two passes.
    if (bad == keys.end())
      return absl::InvalidArgumentError(absl::StrCat(Quoted(spec), ": keys changed during the call"));
    return Outside(spec, *bad, bad - keys.begin());
  }
  copy->owner = owner;
  UpdateColumns columns;
  columns.keys = absl::MakeConstSpan(copy->keys.data(), keys.size());
  columns.owner = std::move(copy);
  return columns;
}

}  // namespace

uint64_t NumKeys(const InputKeys& keys) {
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

absl::StatusOr<UpdateColumns> CopyKeys(const TensorSpec& spec, const InputKeys& keys,
                                       const std::shared_ptr<const void>& owner) {
  return std::visit(
      [&](const auto& column) -> absl::StatusOr<UpdateColumns> {
        if constexpr (std::is_same_v<std::decay_t<decltype(column)>, KeyRun>) {
          UpdateColumns columns;
          columns.keys = column;
          columns.owner = owner;
          return columns;
        } else {
          return HasNarrowKeys(spec) ? CopyAs<uint32_t>(spec, column, owner) : CopyAs<uint64_t>(spec, column, owner);
        }
      },
      keys);
}

}  // namespace sparseagg::python
