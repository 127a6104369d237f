#include "cuda/merge/slab_merge.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "cuda/merge/batch.h"
#include "cuda/merge/merger.h"
#include "cuda/merge/slab_plan.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"

namespace sparseagg::cuda {
namespace {

// Slabs on their way or on the device when one is merged: enough for the link to be busy while the host waits.
constexpr size_t kSentAhead = 2;

// A slab on its way to the device.
struct SentSlab {
  DeviceRows base;
  Batch batch;
};

absl::StatusOr<SentSlab> Send(Session& session, const TensorShape& shape, const HostRows* base, const SlabPlan& plan,
                              size_t slab) {
  SentSlab sent;
  if (base != nullptr) {
    const SlabPlan::RowRange range = plan.RowsOf(slab);
    ASSIGN_OR_RETURN(sent.base, SendRows(session, shape, *base, range.first, range.count));
  }
  ASSIGN_OR_RETURN(sent.batch, SendBatch(session, shape, plan.RangesOf(slab)));
  return sent;
}

std::optional<SlabPlan> Plan(Session& session, const TensorSpec& spec, const TensorShape& shape, int shrink,
                             const std::vector<const HostRows*>& bases,
                             const std::vector<const ValidatedUpdate*>& updates) {
  // The host finds the cuts, and cannot read keys that are on the device; these need no way in either.
  const bool can_cut = std::all_of(updates.begin(), updates.end(), [](const ValidatedUpdate* update) {
    return update->unique() && !update->on_device();
  });
  if (session.tuning().slab_bytes == 0 || !can_cut || bases.size() > 1 ||
      spec.aggregation.result_layout != ResultLayout::kSparse)
    return std::nullopt;
  SlabPlan::Limits limits;
  limits.slab_bytes = session.tuning().slab_bytes;
  limits.min_run = session.tuning().min_slab_run;
  // A slab is merged while the next ones and the result of the one before are on the device, too.
  limits.max_entries = Merger(session, shape, shrink).Room() / 3;
  return SlabPlan::Make(session.threads(), shape, bases.empty() ? nullptr : bases.front(), updates, limits);
}

}  // namespace

absl::StatusOr<std::optional<Finished>> MergeInSlabs(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                                     int shrink, double total_weight,
                                                     const std::vector<const HostRows*>& bases,
                                                     const std::vector<const ValidatedUpdate*>& updates) {
  const std::optional<SlabPlan> plan = Plan(session, spec, shape, shrink, bases, updates);
  if (!plan.has_value()) return std::nullopt;
  const HostRows* const base = bases.empty() ? nullptr : bases.front();
  uint64_t max_rows = base == nullptr ? 0 : base->num_rows;
  for (const ValidatedUpdate* update : updates) max_rows += update->num_keys();
  if (spec.num_rows != 0) max_rows = std::min(max_rows, spec.num_rows);

  Finished finished;
  finished.result = cpu::MakeSparse(spec, max_rows);
  const absl::Cleanup forget = [&session] { session.results().Forget(); };  // before the result goes
  uint64_t num_rows = 0;
  Merger merger(session, shape, shrink);
  uint64_t sent_before = session.results().num_sent();
  std::deque<SentSlab> ahead;
  size_t num_sent = 0;
  // Sends slabs until so many of them have been sent.
  const auto send_until = [&](size_t count) -> absl::Status {
    for (; num_sent < std::min(count, plan->num_slabs()); ++num_sent) {
      ASSIGN_OR_RETURN(SentSlab sent, Send(session, shape, base, *plan, num_sent));
      ahead.push_back(std::move(sent));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(send_until(kSentAhead));
  for (size_t slab = 0; slab < plan->num_slabs(); ++slab) {
    SentSlab now = std::move(ahead.front());
    ahead.pop_front();
    // What the host does while the device works.
    const auto meanwhile = [&]() -> absl::Status {
      RETURN_IF_ERROR(send_until(slab + 1 + kSentAhead));
      // The rows of the slab before the one before. Those of the one before may still be under way.
      return session.results().Receive(std::exchange(sent_before, session.results().num_sent()));
    };
    RETURN_IF_ERROR(session.device().Wait(Lane::kCompute, now.batch.sent));
    for (DeviceBuffer& column : now.base.columns) column.HandTo(Lane::kCompute);
    DeviceRows rows;
    if (now.batch.num_tuples > 0) {
      ASSIGN_OR_RETURN(rows, merger.MergeBatch(now.base, now.batch, meanwhile));
    } else {
      rows = std::move(now.base);
      RETURN_IF_ERROR(meanwhile());
    }
    now = {};
    RETURN_IF_ERROR(AppendRows(session, spec, shape, total_weight, rows, finished, num_rows));
    if (!finished.failure.ok()) break;
  }
  // After a failure of the round too, since the buffers are to be free.
  RETURN_IF_ERROR(session.results().Drain());
  cpu::CutSparse(spec, num_rows, finished.result);
  return finished;
}

}  // namespace sparseagg::cuda
