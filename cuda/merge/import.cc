#include "cuda/merge/import.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "cuda/kernels/import.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

template <typename Key>
constexpr Number NumberOf() {
  if constexpr (sizeof(Key) == sizeof(uint32_t)) return std::is_signed_v<Key> ? Number::kInt32 : Number::kUInt32;
  return std::is_signed_v<Key> ? Number::kInt64 : Number::kUInt64;
}

// Returns: false if the update must be refused, whatever its arrays hold.
bool HasRightForm(const TensorSpec& spec, const InputKeys& keys, const std::byte* values) {
  const auto* run = std::get_if<KeyRun>(&keys);
  if (spec.layout == Layout::kDense && (run == nullptr || run->first != 0 || run->count != spec.num_rows)) return false;
  if (run != nullptr && run->count > 0) {
    const uint64_t last = run->first + (run->count - 1);
    if (last < run->first || (spec.num_rows != 0 && last >= spec.num_rows)) return false;
  }
  return values != nullptr || spec.aggregation.op == Op::kUnion || NumKeys(keys) == 0;
}

}  // namespace

absl::StatusOr<ImportedKeys> ImportColumns(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                           const InputKeys& keys, const std::byte* values) {
  ImportedKeys imported;
  imported.refused = !HasRightForm(spec, keys, values);
  const uint64_t count = NumKeys(keys);
  if (imported.refused || count == 0) return imported;
  Device& device = session.device();
  ASSIGN_OR_RETURN(DeviceBuffer d_findings, session.memory().Allocate(sizeof(ImportFindings), Lane::kCopy));
  RETURN_IF_ERROR(device.Fill(d_findings.get(), 0, d_findings.bytes(), Lane::kCopy));
  if (!std::holds_alternative<KeyRun>(keys)) {
    ASSIGN_OR_RETURN(imported.d_keys, session.memory().Allocate(count * shape.key_bytes, Lane::kCopy));
  }
  const auto import_keys = [&](const auto& span) -> absl::Status {
    using Keys = std::decay_t<decltype(span)>;
    if constexpr (std::is_same_v<Keys, KeyRun>) {
      return absl::OkStatus();
    } else {
      ImportKeys call;
      call.d_from = span.data();
      call.type = NumberOf<typename Keys::value_type>();
      call.count = count;
      call.max_key = spec.num_rows - 1;  // 2^64 − 1 without a limit
      call.d_to = imported.d_keys.get();
      call.key_bytes = shape.key_bytes;
      call.d_findings = d_findings.as<ImportFindings>();
      return device.LaunchOn(call, Lane::kCopy);
    }
  };
  RETURN_IF_ERROR(std::visit(import_keys, keys));
  const bool takes_all = !IsFloat(spec.dtype) || spec.aggregation.on_nonfinite == NonfinitePolicy::kPropagate;
  if (values != nullptr && !takes_all) {
    const CheckFinite call = {values, ToNumber(spec.dtype), count * spec.row_width, d_findings.as<ImportFindings>()};
    RETURN_IF_ERROR(device.LaunchOn(call, Lane::kCopy));
  }
  RETURN_IF_ERROR(session.JoinCopies());
  d_findings.HandTo(Lane::kCompute);
  ImportFindings findings;
  RETURN_IF_ERROR(session.CopyOut(&findings, d_findings.get(), sizeof(findings)));
  imported.refused = findings.bad_key != 0 || findings.bad_value != 0;
  imported.sorted = findings.descends == 0;
  imported.unique = findings.repeats == 0;
  return imported;
}

absl::StatusOr<HostArrays> CopyToHost(Session& session, const TensorSpec& spec, const InputKeys& keys,
                                      const std::byte* values) {
  struct Arrays {
    Column<std::byte> keys;
    Column<std::byte> values;
  };
  auto arrays = std::make_shared<Arrays>();
  HostArrays copied;
  RETURN_IF_ERROR(session.JoinCopies());
  const auto copy_keys = [&](const auto& span) -> absl::Status {
    using Keys = std::decay_t<decltype(span)>;
    copied.keys = span;
    if constexpr (!std::is_same_v<Keys, KeyRun>) {
      using Key = typename Keys::value_type;
      arrays->keys.resize(span.size() * sizeof(Key));
      copied.keys = Keys(reinterpret_cast<const Key*>(arrays->keys.data()), span.size());
      RETURN_IF_ERROR(session.CopyOut(arrays->keys.data(), span.data(), arrays->keys.size()));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(std::visit(copy_keys, keys));
  if (values != nullptr) {
    const size_t bytes = HasRightForm(spec, keys, values) ? NumKeys(keys) * spec.row_width * SizeOf(spec.dtype) : 0;
    arrays->values.resize(std::max<size_t>(bytes, 1));  // so that there are values
    RETURN_IF_ERROR(session.CopyOut(arrays->values.data(), values, bytes));
    copied.values = arrays->values.data();
  }
  copied.owner = std::move(arrays);
  return copied;
}

}  // namespace sparseagg::cuda
