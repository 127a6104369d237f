#include "cuda/merge/checker.h"

#include <limits>
#include <utility>

#include "cuda/merge/batch.h"
#include "cuda/merge/sorter.h"
#include "host/base/status_macros.h"

namespace sparseagg::cuda {

bool NeedsRangeCheck(const TensorSpec& spec, const ValidatedUpdate& update) {
  const Op op = spec.aggregation.op;
  if (op == Op::kUnion || update.num_keys() == 0) return false;
  if (UsesFixedPoint(spec)) return true;
  if (!IsSignedInteger(spec.dtype)) return false;
  const bool is_weighted = op != Op::kMin && op != Op::kMax && op != Op::kMedian && op != Op::kQuantile;
  return !update.unique() || (update.weight() != 1.0 && is_weighted);
}

absl::StatusOr<bool> FailsRangeCheck(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                     const ValidatedUpdate& update) {
  ASSIGN_OR_RETURN(Batch batch, SendBatch(session, shape, {{&update, 0, update.num_keys()}}));
  RETURN_IF_ERROR(ReceiveBatch(session, batch));
  SortedKeys sorted;
  CheckTerms check;
  if (update.unique()) {
    check.segments.count = batch.num_tuples;
    check.segments.num_entries = batch.num_tuples;
  } else {
    ASSIGN_OR_RETURN(Sorter sorter, Sorter::Start(session, std::move(batch.d_keys), batch.num_tuples, shape.key_bytes,
                                                  shape.key_bits));
    ASSIGN_OR_RETURN(sorted, std::move(sorter).Finish(session));
    check.segments = sorted.segments();
  }
  const bool clips = spec.aggregation.on_bound == BoundPolicy::kClip;
  const Source source = shape.MakeSource(update);
  check.kind = UsesFixedPoint(spec) ? CheckKind::kBound : CheckKind::kInteger;
  check.columns = shape.columns;
  check.d_values = batch.d_values.get();
  check.type = shape.type;
  check.factor = source.factor;
  check.weight = source.weight;
  check.integer_weight = source.integer_weight;
  check.bound = clips ? std::numeric_limits<double>::infinity() : spec.aggregation.value_bound;
  ASSIGN_OR_RETURN(const DeviceBuffer d_refused, session.Allocate(sizeof(uint32_t)));
  check.d_refused = d_refused.as<uint32_t>();
  RETURN_IF_ERROR(session.device().Fill(d_refused.get(), 0, sizeof(uint32_t), Lane::kCompute));
  RETURN_IF_ERROR(session.device().Launch(check));
  uint32_t refused = 0;
  RETURN_IF_ERROR(session.CopyOut(&refused, d_refused.get(), sizeof(refused)));
  return refused != 0;
}

}  // namespace sparseagg::cuda
