// DeviceAccumulator: the way to the CPU engine, and the memory that it takes.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "cuda/device_accumulator.h"
#include "host/accumulation.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {
namespace {

const ValidatedUpdate* UpdateOf(const PreparedUpdate* prepared) {
  return prepared == nullptr ? nullptr : &static_cast<const DevicePrepared*>(prepared)->update();
}

}  // namespace

void DeviceAccumulator::CountHandOver(const DevicePrepared& pending) {
  device_bytes_ += pending.device_bytes();
  growth_bytes_ = SaturatingAdd(growth_bytes_, GrowthBytesOf(&pending));
  prepare_bytes_ = std::max(prepare_bytes_, checks_->PrepareBytes(pending.update()));
}

bool DeviceAccumulator::NeedsRangeCheck(const TensorSpec& spec, const ValidatedUpdate& update) {
  const Op op = spec.aggregation.op;
  const double weight = MultipliesByWeight(op) ? update.weight() : 1.0;
  if (op == Op::kUnion || !IsSignedInteger(spec.dtype) || update.num_keys() == 0) return false;
  if (update.unique() && weight == 1.0) return false;
  // So many values of 31 bits and a sign cannot add up to 63.
  return spec.dtype == DType::kInt64 || static_cast<double>(update.num_keys()) * std::max(weight, 1.0) >= 0x1p32;
}

uint64_t DeviceAccumulator::PrepareBytes(const ValidatedUpdate& update) const {
  return NeedsRangeCheck(spec_, update) ? checks_->PrepareBytes(update) : 0;
}

uint64_t DeviceAccumulator::GrowthBytesOf(const PreparedUpdate* prepared) const {
  if (prepared == nullptr || prepared->is_partial()) return 0;
  const ValidatedUpdate& update = *UpdateOf(prepared);
  if (update.unique()) return static_cast<const DevicePrepared*>(prepared)->device_bytes();
  const uint64_t folded =
      SaturatingMultiply(update.num_keys(), shape_.key_bytes + uint64_t{shape_.columns} * sizeof(double));
  return folded - std::min<uint64_t>(folded, prepared->memory_bytes());
}

uint64_t DeviceAccumulator::MaxRowsWith(const PreparedUpdate* next) const {
  uint64_t rows = pending_size_.num_keys();
  for (const UnfinishedRows& base : bases_) rows = SaturatingAdd(rows, base.num_rows);
  if (next != nullptr) {
    rows = SaturatingAdd(rows, next->is_partial() ? static_cast<const PartialUpdate*>(next)->rows().num_rows
                                                  : UpdateOf(next)->num_keys());
  }
  return spec_.num_rows == 0 ? rows : std::min(rows, spec_.num_rows);
}

// The CPU engine takes the updates one after another. Their growth adds up; the memory to prepare an update is needed
// for one update at a time.
uint64_t DeviceAccumulator::HandOverBytes(const PreparedUpdate* next) const {
  const uint64_t prepare_bytes = next == nullptr || next->is_partial()
                                     ? prepare_bytes_
                                     : std::max(prepare_bytes_, checks_->PrepareBytes(*UpdateOf(next)));
  const uint64_t bytes = SaturatingAdd(prepare_bytes, SaturatingAdd(growth_bytes_, GrowthBytesOf(next)));
  if (OrderMatters(spec_)) return bytes;
  // The rows merged so far, and the rows that the next merge makes of them.
  return SaturatingAdd(bytes, SaturatingMultiply(MaxRowsWith(next), 2 * shape_.RowBytes()));
}

// FoldBytes and FinishBytes return enough for the work on the device and, if the device fails, for handing everything
// over to the CPU engine, which then does that work.
uint64_t DeviceAccumulator::FoldBytes(const PreparedUpdate* next) const {
  const uint64_t row_bytes = SaturatingMultiply(MaxRowsWith(next), shape_.RowBytes());
  const uint64_t bytes = SaturatingAdd(row_bytes, HandOverBytes(next));
  return on_cpu_ ? SaturatingAdd(bytes, cpu_->FoldBytes(nullptr)) : bytes;
}

uint64_t DeviceAccumulator::FinishBytes(const PreparedUpdate* next) const {
  // Parts of several devices are joined.
  const uint64_t result_bytes =
      SaturatingMultiply(ResultBytes(spec_, MaxRowsWith(next)), engine_.num_devices() > 1 ? 2 : 1);
  const uint64_t bytes = SaturatingAdd(result_bytes, HandOverBytes(next));
  return on_cpu_ ? SaturatingAdd(bytes, cpu_->FinishBytes(nullptr)) : bytes;
}

absl::Status DeviceAccumulator::HandOverBase() {
  auto rows = std::make_shared<UnfinishedRows>();
  if (!bases_.empty()) *rows = std::move(bases_.back());
  absl::Cleanup put_back = [&] {
    if (!bases_.empty()) bases_.back() = std::move(*rows);
  };
  RETURN_IF_ERROR(cpu_->Add(std::make_unique<PartialUpdate>(rows, weights_, partials_)));
  std::move(put_back).Cancel();
  if (!bases_.empty()) bases_.pop_back();
  weights_ = {};
  partials_ = {};
  return absl::OkStatus();
}

absl::Status DeviceAccumulator::GoToCpu() {
  base_copies_.reset();
  if (!on_cpu_) {
    weights_.resize(weights_.size() - pending_.size());  // the others go with their updates
    on_cpu_ = true;
  }
  while (!bases_.empty() || !weights_.empty()) RETURN_IF_ERROR(HandOverBase());
  while (!pending_.empty()) {
    const uint64_t num_before = cpu_->num_submissions();
    const absl::Status status = AddToCpu(pending_.front()->update());
    // An Add that fails may have counted the update. If so, the update must not be added again; if not, it must stay.
    if (cpu_->num_submissions() > num_before) DropFirstPending();
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

void DeviceAccumulator::DropFirstPending() {
  pending_size_.Remove(pending_.front()->memory_bytes(), pending_.front()->update().num_keys());
  pending_.pop_front();
  // Until then they stay upper bounds.
  if (pending_.empty()) device_bytes_ = growth_bytes_ = prepare_bytes_ = 0;
}

absl::Status DeviceAccumulator::AddToCpu(const ValidatedUpdate& update) {
  ASSIGN_OR_RETURN(std::unique_ptr<PreparedUpdate> prepared, PrepareOnCpu(*cpu_, update));
  return cpu_->Add(std::move(prepared));
}

absl::StatusOr<std::unique_ptr<PreparedUpdate>> DeviceAccumulator::PrepareOnCpu(const Accumulator& cpu,
                                                                                const ValidatedUpdate& update) const {
  if (!update.on_device()) return cpu.Prepare(update);
  const InputKeys keys = std::visit([](const auto& own) { return InputKeys(own); }, update.keys());
  ASSIGN_OR_RETURN(ValidatedUpdate copy, engine_.CopyToHost(spec_, keys, update.values(), update.weight()));
  return cpu.Prepare(std::move(copy));
}

}  // namespace sparseagg::cuda
