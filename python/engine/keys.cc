#include "python/engine/keys.h"

#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "host/base/column.h"

namespace sparseagg::python {
namespace {

// Position of the first key below 0 or above `largest`, or `size`.
template <typename From>
size_t FindOutside(absl::Span<const From> keys, uint64_t largest) {
  using Unsigned = std::make_unsigned_t<From>;
  // One pass that the compiler vectorises; where the first one stands is looked for only if there is one. Negative
  // keys are the largest unsigned ones.
  bool outside = false;
  for (const From key : keys) outside |= static_cast<Unsigned>(key) > largest;
  if (!outside) return keys.size();
  size_t at = 0;
  while (at < keys.size() && static_cast<Unsigned>(keys[at]) <= largest) ++at;
  return at;
}

template <typename From>
absl::Status Outside(const TensorSpec& spec, absl::Span<const From> keys, size_t at) {
  const std::string end = spec.dimension == 0 ? "18446744073709551616" : absl::StrCat(spec.dimension);
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(spec), ": key ", keys[at], " at position ", at, " is not in [0, ", end, ")"));
}

template <typename To>
struct Copy {
  Column<To> keys;
  std::shared_ptr<const void> owner;  // of the values
};

template <typename To, typename From>
absl::StatusOr<UpdateColumns> Convert(const TensorSpec& spec, absl::Span<const From> keys,
                                      const std::shared_ptr<const void>& owner) {
  UpdateColumns columns;
  if constexpr (std::is_signed_v<From> || sizeof(From) > sizeof(To)) {
    const uint64_t largest = std::is_signed_v<From> && sizeof(From) <= sizeof(To)
                                 ? uint64_t{std::numeric_limits<std::make_unsigned_t<From>>::max() / 2}
                                 : uint64_t{std::numeric_limits<To>::max()};
    const size_t at = FindOutside(keys, largest);
    if (at < keys.size()) return Outside(spec, keys, at);
  }
  if constexpr (sizeof(From) == sizeof(To)) {
    columns.keys = absl::MakeConstSpan(reinterpret_cast<const To*>(keys.data()), keys.size());
    columns.owner = owner;
  } else {
    auto copy = std::make_shared<Copy<To>>();
    copy->keys.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) copy->keys[i] = static_cast<To>(keys[i]);
    copy->owner = owner;
    columns.keys = absl::MakeConstSpan(copy->keys.data(), keys.size());
    columns.owner = std::move(copy);
  }
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

absl::StatusOr<UpdateColumns> ToEngineKeys(const TensorSpec& spec, const InputKeys& keys,
                                           const std::shared_ptr<const void>& owner) {
  return std::visit(
      [&](const auto& column) -> absl::StatusOr<UpdateColumns> {
        if constexpr (std::is_same_v<std::decay_t<decltype(column)>, KeyRun>) {
          UpdateColumns columns;
          columns.keys = column;
          columns.owner = owner;
          return columns;
        } else {
          return HasNarrowKeys(spec) ? Convert<uint32_t>(spec, column, owner) : Convert<uint64_t>(spec, column, owner);
        }
      },
      keys);
}

}  // namespace sparseagg::python
