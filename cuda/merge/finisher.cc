#include "cuda/merge/finisher.h"

#include <memory>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "cuda/kernels/finish.h"
#include "host/accumulation.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"
#include "host/cpu/finish/assemble.h"
#include "host/spec/spec.h"

namespace sparseagg::cuda {
namespace {

Divisor DivisorOf(Op op) {
  if (op == Op::kMean) return Divisor::kTotal;
  return op == Op::kCoordinateMean ? Divisor::kKeyWeight : Divisor::kNone;
}

uint64_t FillBits(const TensorSpec& spec) {
  const DType dtype = ResultDType(spec);
  const double fill = spec.aggregation.fill;
  if (IsFloat(dtype)) return RoundTo(dtype, fill);
  return IsModular(dtype) ? static_cast<uint64_t>(fill) : static_cast<uint64_t>(static_cast<int64_t>(fill));
}

class Finisher {
 public:
  Finisher(Session& session, const TensorSpec& spec, const TensorShape& shape, double total_weight, DeviceRows rows)
      : session_(session),
        device_(session.device()),
        spec_(spec),
        shape_(shape),
        folded_(std::move(rows)),
        rows_(RoundingOf(spec, shape, total_weight)) {
    rows_.rounded = folded_.rounded;
    rows_.num_rows = folded_.num_rows;
    rows_.d_keys = folded_[RowColumn::kKeys].get();
    rows_.accs = AccsOf(folded_);
    rows_.d_counts = folded_[RowColumn::kCounts].as<uint32_t>();
    rows_.d_weights = folded_[RowColumn::kWeights].get();
  }

  absl::StatusOr<Finished> Run() {
    RETURN_IF_ERROR(Judge());
    if (!finished_.failure.ok()) return std::move(finished_);
    ASSIGN_OR_RETURN(finished_.result, Assemble());
    return std::move(finished_);
  }

  absl::StatusOr<FinishedOnDevice> RunOnDevice() {
    RETURN_IF_ERROR(Judge());
    FinishedOnDevice finished;
    finished.failure = finished_.failure;
    if (!finished.failure.ok()) return finished;
    const bool dense = IsDenseResult(spec_, placement_.count);
    finished.layout = dense ? Layout::kDense : Layout::kSparse;
    finished.num_keys = dense ? spec_.num_rows : placement_.count;
    ASSIGN_OR_RETURN(finished.columns, dense ? LayOutDense() : LayOutSparse());
    RETURN_IF_ERROR(device_.AwaitLane(Lane::kCompute));
    return finished;
  }

  absl::Status AppendTo(Finished& finished, uint64_t& num_rows) {
    RETURN_IF_ERROR(Judge());
    finished.failure = finished_.failure;
    if (!finished.failure.ok()) return absl::OkStatus();
    ASSIGN_OR_RETURN(ResultColumns columns, LayOutSparse());
    RETURN_IF_ERROR(SendColumns(columns, finished.result, num_rows));
    num_rows += placement_.count;
    return absl::OkStatus();
  }

 private:
  bool PrunesZeros() const { return spec_.aggregation.prune_zeros && shape_.columns > 0; }

  // Finds errors that fail the round, and the rows to keep.
  absl::Status Judge() {
    if (rows_.num_rows == 0) return absl::OkStatus();
    if (rows_.divisor == Divisor::kTotal && rows_.total_weight == 0.0) {
      finished_.failure = ZeroWeightError(spec_);
      return device_.AwaitLane(Lane::kCompute);  // the caller frees updates and bases, which may still be copied
    }
    const bool may_lack_mean = rows_.divisor == Divisor::kKeyWeight && rows_.weights != WeightKind::kCounts;
    const bool drops = PrunesZeros() || spec_.aggregation.min_contributors > 1;
    if (!drops && !may_lack_mean && !CanOverflow()) {
      placement_.count = rows_.num_rows;
      return absl::OkStatus();
    }
    Findings findings;
    RETURN_IF_ERROR(FlagRows(drops, findings));
    if (findings.no_mean != kNowhere && HasOneDivisor(spec_)) {
      finished_.failure = ZeroWeightError(spec_);
      return absl::OkStatus();
    }
    // Rows without a mean are rare. Flags to keep the others are made where there are any.
    if (!drops && findings.no_mean != kNowhere) RETURN_IF_ERROR(FlagRows(/*drops=*/true, findings));
    if (findings.overflow != kNowhere) return Overflow(findings.overflow);
    return absl::OkStatus();
  }

  // Looks at all rows, and selects those to keep. `drops`: not all of them may be.
  absl::Status FlagRows(bool drops, Findings& findings) {
    ASSIGN_OR_RETURN(const DeviceBuffer d_findings, session_.Allocate(sizeof(findings)));
    RETURN_IF_ERROR(device_.Fill(d_findings.get(), 0xff, sizeof(findings), Lane::kCompute));  // kNowhere
    DeviceBuffer d_keep;
    if (drops) {
      ASSIGN_OR_RETURN(d_keep, session_.Allocate(rows_.num_rows));
    }
    FlagKeptRows flag;
    flag.rows = rows_;
    flag.min_contributors = spec_.aggregation.min_contributors;
    flag.d_keep = d_keep.as<uint8_t>();
    flag.prunes_zeros = PrunesZeros();
    flag.d_findings = d_findings.as<Findings>();
    RETURN_IF_ERROR(device_.Launch(flag));
    if (CanOverflow() || PrunesZeros()) RETURN_IF_ERROR(device_.Launch(FlagNonzeroRows{flag}));
    RETURN_IF_ERROR(session_.CopyOut(&findings, d_findings.get(), sizeof(findings)));
    if (drops) {
      ASSIGN_OR_RETURN(kept_, session_.Select(d_keep, rows_.num_rows));
      placement_.d_kept = kept_.d_indices.as<uint32_t>();
    }
    placement_.count = drops ? kept_.count : rows_.num_rows;
    return absl::OkStatus();
  }

  bool CanOverflow() const {
    return shape_.columns > 0 && !IsOfFloats(shape_.fold) && shape_.fold != FoldKind::kSumModular;
  }

  absl::Status Overflow(uint64_t value) {
    const uint64_t row = value / shape_.columns;
    FailedRow failed;  // host and device are both little-endian
    const auto* d_keys = static_cast<const std::byte*>(rows_.d_keys);
    RETURN_IF_ERROR(session_.CopyOut(&failed.key, d_keys + row * shape_.key_bytes, shape_.key_bytes));
    if (shape_.counts) RETURN_IF_ERROR(session_.CopyOut(&failed.contributors, rows_.d_counts + row, sizeof(uint32_t)));
    finished_.failure = OverflowError(spec_, failed, value % shape_.columns);
    return absl::OkStatus();
  }

  absl::StatusOr<Result> Assemble() {
    if (!IsDenseResult(spec_, placement_.count)) return AssembleAs(Layout::kSparse);
    absl::StatusOr<Result> dense = AssembleAs(Layout::kDense);
    if (!absl::IsResourceExhausted(dense.status())) return dense;
    placement_.dense = false;
    ASSIGN_OR_RETURN(const Result sparse, AssembleAs(Layout::kSparse));
    return cpu::MakeDense(spec_, sparse);
  }

  absl::StatusOr<Result> AssembleAs(Layout layout) {
    const bool dense = layout == Layout::kDense;
    ASSIGN_OR_RETURN(ResultColumns columns, dense ? LayOutDense() : LayOutSparse());
    ASSIGN_OR_RETURN(Result result, MakeResult(session_, spec_, layout, dense ? spec_.num_rows : placement_.count));
    RETURN_IF_ERROR(SendColumns(columns, result, 0));
    RETURN_IF_ERROR(device_.AwaitLane(Lane::kResult));
    return result;
  }

  absl::StatusOr<ResultColumns> LayOutSparse() {
    if (placement_.count == 0) return ResultColumns();
    const bool has_weights = !spec_.aggregation.return_weights || rows_.weights == WeightKind::kFloat;
    if (rows_.rounded && placement_.d_kept == nullptr && has_weights) return HandOver();
    ASSIGN_OR_RETURN(ResultColumns columns, AllocateColumns(placement_.count));
    ASSIGN_OR_RETURN(columns.d_keys, session_.Allocate(placement_.count * shape_.key_bytes));
    RETURN_IF_ERROR(Write(columns));
    return columns;
  }

  // The rows as they are, of which the result has all.
  ResultColumns HandOver() {
    ResultColumns columns;
    columns.d_keys = std::move(folded_[RowColumn::kKeys]);
    columns.d_values = std::move(folded_[RowColumn::kAccs]);
    if (ReturnsCounts(spec_)) columns.d_counts = std::move(folded_[RowColumn::kCounts]);
    if (spec_.aggregation.return_weights) columns.d_weights = std::move(folded_[RowColumn::kWeights]);
    return columns;
  }

  // Sends the columns to the rows of the result from `first` on.
  absl::Status SendColumns(ResultColumns& columns, Result& result, uint64_t first) {
    std::vector<CopyPiece> unpinned;
    const auto send = [&](auto& to, uint64_t begin, DeviceBuffer& from) -> absl::Status {
      if (from.bytes() == 0) return absl::OkStatus();  // the result has no such column
      from.HandTo(Lane::kResult);
      if (to.is_lent()) return device_.CopyOut(to.data() + begin, from.get(), from.bytes(), Lane::kResult);
      unpinned.push_back({to.data() + begin, from.get(), from.bytes()});
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(session_.Join(Lane::kResult, Lane::kCompute));
    RETURN_IF_ERROR(std::visit([&](auto& keys) { return send(keys, first, columns.d_keys); }, result.keys));
    RETURN_IF_ERROR(send(result.values, first * result.row_bytes(), columns.d_values));
    RETURN_IF_ERROR(send(result.counts, first, columns.d_counts));
    RETURN_IF_ERROR(send(result.weights, first, columns.d_weights));
    return session_.staging().CopyOut(unpinned);
  }

  absl::StatusOr<ResultColumns> LayOutDense() {
    placement_.dense = true;
    ASSIGN_OR_RETURN(ResultColumns columns, AllocateColumns(spec_.num_rows));
    if (columns.d_values.get() != nullptr) {  // a union has none, and its `fill` need not fit an integer
      FillValues fill;
      fill.d_values = columns.d_values.get();
      fill.count = spec_.num_rows * shape_.columns;
      fill.type = rows_.type;
      fill.bits = FillBits(spec_);
      RETURN_IF_ERROR(device_.Launch(fill));
    }
    for (const DeviceBuffer* column : {&columns.d_counts, &columns.d_weights}) {
      if (column->bytes() > 0) RETURN_IF_ERROR(device_.Fill(column->get(), 0, column->bytes(), Lane::kCompute));
    }
    RETURN_IF_ERROR(Write(columns));
    return columns;
  }

  // A dense result has `num_rows` rows, which may be any 64-bit number, so sizes saturate.
  absl::StatusOr<ResultColumns> AllocateColumns(uint64_t num_rows) {
    const auto allocate = [&](uint64_t row_bytes) {
      return session_.Allocate(SaturatingMultiply(num_rows, row_bytes));
    };
    ResultColumns columns;
    ASSIGN_OR_RETURN(columns.d_values, allocate(uint64_t{shape_.columns} * SizeOf(rows_.type)));
    if (ReturnsCounts(spec_)) {
      ASSIGN_OR_RETURN(columns.d_counts, allocate(sizeof(uint32_t)));
    }
    if (spec_.aggregation.return_weights) {
      ASSIGN_OR_RETURN(columns.d_weights, allocate(sizeof(double)));
    }
    return columns;
  }

  absl::Status Write(const ResultColumns& columns) {
    WriteResult write;
    write.rows = rows_;
    write.placement = placement_;
    write.d_keys = columns.d_keys.get();
    write.d_values = columns.d_values.get();
    write.d_counts = columns.d_counts.as<uint32_t>();
    write.d_weights = columns.d_weights.as<double>();
    return device_.Launch(write);
  }

  Session& session_;
  Device& device_;
  const TensorSpec& spec_;
  const TensorShape& shape_;
  DeviceRows folded_;
  FoldedRows rows_;  // the same for the kernels
  Finished finished_;
  Session::Selection kept_;
  Placement placement_;
};

}  // namespace

absl::StatusOr<Result> MakeResult(Session& session, const TensorSpec& spec, Layout layout, uint64_t num_rows) {
  Result result = EmptyResult(spec);
  result.layout = layout;
  result.num_keys = num_rows;
  const auto make = [&](auto& column, uint64_t count) -> absl::Status {
    using T = typename std::decay_t<decltype(column)>::value_type;
    ASSIGN_OR_RETURN(const auto memory, session.pinned().Take(SaturatingMultiply(count, sizeof(T))));
    if (memory != nullptr) column = Column<T>(reinterpret_cast<T*>(memory.get()), count, memory);
    column.resize(count);
    return absl::OkStatus();
  };
  const uint64_t num_keys = layout == Layout::kSparse ? num_rows : 0;
  RETURN_IF_ERROR(std::visit([&](auto& keys) { return make(keys, num_keys); }, result.keys));
  RETURN_IF_ERROR(make(result.values, SaturatingMultiply(num_rows, result.row_bytes())));
  RETURN_IF_ERROR(make(result.counts, ReturnsCounts(spec) ? num_rows : 0));
  RETURN_IF_ERROR(make(result.weights, spec.aggregation.return_weights ? num_rows : 0));
  return result;
}

FoldedRows RoundingOf(const TensorSpec& spec, const TensorShape& shape, double total_weight) {
  FoldedRows rounding;
  rounding.rounded = shape.columns == 0 || IsOfFloats(shape.fold);
  rounding.columns = shape.columns;
  rounding.key_bytes = shape.key_bytes;
  rounding.fold = shape.fold;
  rounding.type = ResultDType(spec);
  rounding.divisor = DivisorOf(spec.aggregation.op);
  rounding.weights = shape.key_weights;
  rounding.total_weight = total_weight;
  return rounding;
}

absl::StatusOr<Finished> FinishRows(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                    double total_weight, DeviceRows rows) {
  return Finisher(session, spec, shape, total_weight, std::move(rows)).Run();
}

absl::StatusOr<FinishedOnDevice> FinishRowsOnDevice(Session& session, const TensorSpec& spec, const TensorShape& shape,
                                                    double total_weight, DeviceRows rows) {
  return Finisher(session, spec, shape, total_weight, std::move(rows)).RunOnDevice();
}

absl::Status AppendRows(Session& session, const TensorSpec& spec, const TensorShape& shape, double total_weight,
                        DeviceRows rows, Finished& finished, uint64_t& num_rows) {
  return Finisher(session, spec, shape, total_weight, std::move(rows)).AppendTo(finished, num_rows);
}

}  // namespace sparseagg::cuda
