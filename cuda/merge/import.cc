#include "cuda/merge/import.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "cuda/merge/batch.h"
#include "cuda/merge/tensor_shape.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

// Each update's keys begin where an allocation of their own could.
constexpr size_t kAlignment = 256;

size_t KeyRoom(const ImportTask& task) {
  return (task.count * task.key_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

DType KeyTypeOf(const InputKeys& keys) {
  return std::visit(
      [](const auto& span) {
        using Keys = std::decay_t<decltype(span)>;
        if constexpr (!std::is_same_v<Keys, KeyRun>) {
          using Key = typename Keys::value_type;
          if (sizeof(Key) == sizeof(uint32_t)) return std::is_signed_v<Key> ? DType::kInt32 : DType::kUInt32;
          if (std::is_signed_v<Key>) return DType::kInt64;
        }
        return DType::kUInt64;
      },
      keys);
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

absl::StatusOr<ImportedUpdates> ImportColumns(Session& session, absl::Span<const DeviceUpdate> updates) {
  ImportedUpdates imported;
  imported.updates.resize(updates.size());
  std::vector<ImportTask> tasks;
  ImportUpdates call;
  size_t key_bytes = 0;
  const auto add = [&](ImportTask task) {
    if (task.count == 0) return;
    task.first_part = call.num_parts;
    call.num_parts += task.num_parts();
    key_bytes += KeyRoom(task);
    tasks.push_back(task);
  };
  for (uint32_t i = 0; i < updates.size(); ++i) {
    const auto& [spec, keys, values, owner, weight, streams] = updates[i];
    if (!HasRightForm(*spec, keys, values)) {
      imported.updates[i].found = kBadForm;
      continue;
    }
    const void* const d_keys = KeyArray(keys);
    if (d_keys != nullptr) {
      const uint64_t max_key = spec->num_rows - 1;  // 2^64 − 1 without a limit
      add({d_keys, KeyTypeOf(keys), NumKeys(keys), 0, i, static_cast<uint32_t>(KeyBytes(*spec)), max_key});
    }
    const bool takes_all = !IsFloat(spec->dtype) || spec->aggregation.on_nonfinite == NonfinitePolicy::kPropagate;
    if (values != nullptr && !takes_all) add({values, spec->dtype, NumKeys(keys) * spec->row_width, 0, i});
  }
  if (tasks.empty()) return imported;
  ASSIGN_OR_RETURN(imported.d_keys, session.memory().Allocate(key_bytes, Lane::kCopy));
  auto* d_next = imported.d_keys.as<std::byte>();
  for (ImportTask& task : tasks) {
    if (task.key_bytes == 0) continue;
    imported.updates[task.update].d_keys = task.d_to = d_next;
    d_next += KeyRoom(task);
  }
  std::vector<uint32_t> found(updates.size(), 0);
  const size_t task_bytes = tasks.size() * sizeof(ImportTask);
  const size_t found_bytes = found.size() * sizeof(uint32_t);
  ASSIGN_OR_RETURN(DeviceBuffer d_table, session.memory().Allocate(task_bytes + found_bytes, Lane::kCopy));
  call.d_tasks = d_table.as<ImportTask>();
  call.num_tasks = static_cast<uint32_t>(tasks.size());
  call.d_found = reinterpret_cast<uint32_t*>(d_table.as<std::byte>() + task_bytes);
  RETURN_IF_ERROR(session.staging().Stage(d_table.get(), 0, tasks.data(), task_bytes));
  RETURN_IF_ERROR(session.staging().Stage(d_table.get(), task_bytes, found.data(), found_bytes));
  RETURN_IF_ERROR(session.staging().Flush());
  RETURN_IF_ERROR(session.device().LaunchOn(call, Lane::kCopy));
  RETURN_IF_ERROR(session.Join(Lane::kCompute, Lane::kCopy));
  d_table.HandTo(Lane::kCompute);
  RETURN_IF_ERROR(session.CopyOut(found.data(), call.d_found, found_bytes));
  for (size_t i = 0; i < updates.size(); ++i) imported.updates[i].found |= found[i];
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
  RETURN_IF_ERROR(session.Join(Lane::kCompute, Lane::kCopy));
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
