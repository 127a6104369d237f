// The extension module sparseagg._engine, for the package's private modules only.
//
// GIL: Python calls every entry with the GIL held, from any thread. Adding, merging, finishing and the counters release
// the GIL while the round works, which may take long. Everything else holds it.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/base/column.h"
#include "host/cpu/cpu_engine.h"
#include "host/cpu/prepare/coarse_order.h"
#include "host/cpu/simd/kernels.h"
#include "python/engine/device_arrays.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"
#include "python/engine/inputs.h"
#include "python/engine/local_round.h"
#include "python/engine/local_runtime.h"
#include "python/engine/messages.h"
#include "python/engine/numpy.h"
#include "python/engine/outputs.h"
namespace sparseagg::python {
namespace {

template <typename Value>
using Column = nb::ndarray<Value, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Returns: `count` of the keys, from `begin` on.
InputKeys Slice(const InputKeys& keys, size_t begin, size_t count) {
  const auto slice = [&](const auto& column) -> InputKeys {
    if constexpr (std::is_same_v<std::decay_t<decltype(column)>, KeyRun>) {
      return KeyRun{column.first + begin, count};
    } else {
      return column.subspan(begin, count);
    }
  };
  return std::visit(slice, keys);
}

// The Python class _engine.Aggregator: a LocalRound with a reader of its submissions. Thread-safe, by the
// GIL and by LocalRound. All members, the destructor too, are called with the GIL held.
class Aggregator {
 public:
  // `spec`: a serialised v1::RoundSpec. `is_stored`: a server has taken the round before.
  Aggregator(const nb::bytes& spec, bool is_stored, const LocalRoundOptions& options)
      : round_(Create(spec, is_stored, options)), reader_(round_->tensors()) {}
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;
  ~Aggregator() {
    round_.reset();  // which releases references
    Released::OfProcess().Drop();
  }

  // Adds one submission. GIL: held while the update is read, released while the submission is added.
  void AddOne(std::string client_id, const nb::object& update, const nb::object& weight, const nb::object& convert) {
    std::vector<Submission> submissions;
    ArrayBorrower borrower(round_->runtime());
    submissions.push_back(reader_.Read(std::move(client_id), update, /*pairs=*/false, convert, borrower));
    if (!weight.is_none()) submissions[0].weight = nb::cast<double>(weight);
    Add(std::move(submissions));
  }

  // Adds one submission for each update. `names`: the client ids, or None for the numbers from `first` on, with 20
  // decimal digits. If an update is refused, here or by `convert`, all updates before it are added and none after it.
  // GIL: held while updates are read, released while each batch is added.
  void AddAll(const nb::object& names, uint64_t first, const nb::list& updates, const nb::object& convert) {
    const auto ids = names.is_none() ? nb::list() : nb::cast<nb::list>(names);
    const bool named = !names.is_none();
    // Converted updates take memory of their own, so at most about a batch of them waits to be added.
    std::vector<Submission> batch;
    ArrayBorrower borrower(round_->runtime());
    uint64_t batch_bytes = 0;
    // `convert` runs the caller's code, which may change the list: so no iterator, and a reference to each update.
    for (size_t i = 0; i < updates.size(); ++i) {
      const nb::object update = updates[i];
      std::string id = named ? nb::cast<std::string>(ids[i]) : absl::StrFormat("%020d", first + i);
      try {
        batch.push_back(reader_.Read(std::move(id), update, /*pairs=*/true, convert, borrower));
      } catch (...) {
        Add(std::move(batch));
        throw;
      }
      batch_bytes += round_->BatchBytesOf(batch.back());
      if (batch_bytes < round_->batch_bytes()) continue;
      Add(std::exchange(batch, {}));
      batch_bytes = 0;
    }
    Add(std::move(batch));
  }

  // Adds whole submissions of the only tensor, of which pages have those with rows. `pages`: tuples of the client ids
  // of a server, their float64 weights or None, whether each counts (bool, or None: all do), the first place in these
  // lists and the one behind the last, the places of those with rows, which ascend, int64 ends of their rows, keys and
  // values. `sorts`: several pages have ids that are not in order. GIL: held while pages are read, released while they
  // are added.
  void AddPages(const nb::list& pages, bool sorts, const nb::object& convert) {
    std::vector<Submission> all;
    for (const nb::handle page : pages) ReadPage(nb::cast<nb::tuple>(page), convert, all);
    const auto by_id = [](const Submission& a, const Submission& b) { return a.client_id < b.client_id; };
    if (sorts) std::sort(all.begin(), all.end(), by_id);
    Add(std::move(all));
  }

  // Borrows an array in the device's memory, for `convert`. GIL: held.
  std::unique_ptr<DeviceArray> Borrow(const nb::object& array) const {
    return ArrayBorrower(round_->runtime()).Borrow(array);
  }

  // Leaves the merging to Finish: the caller keeps all updates until then. `leaves_keys`: and what can be left of the
  // look at their keys, so that Finish may return None.
  void DeferMerges(bool leaves_keys) {
    round_->DeferMerges();
    if (leaves_keys) reader_.LeaveKeys();
  }

  // Moves the submissions of `other` here. GIL: released while they are merged.
  void Merge(Aggregator& other) {
    const absl::Status status = WithoutGil([&] { return round_->MergeFrom(*other.round_); });
    Released::OfProcess().Drop();
    ThrowIfError(status);
  }

  // Adds a partial. `blocks`: objects with bytes, which must not change meanwhile. GIL: released while they are read.
  void AddPartial(const std::string& client_id, const nb::list& blocks, uint64_t first, uint64_t last) {
    std::deque<LentBytes> lent;
    std::vector<absl::string_view> bytes;
    for (const nb::handle block : blocks) bytes.push_back(lent.emplace_back(block).bytes());
    const absl::Status status = WithoutGil([&] { return round_->AddPartial(client_id, bytes, first, last); });
    ThrowIfError(status);
  }

  // Returns: a block of unfinished rows, and the first key behind it or None. GIL: released while the round merges.
  std::pair<nb::bytes, std::optional<uint64_t>> ExportPartial(size_t tensor, uint64_t first, uint64_t last,
                                                              uint64_t max_bytes) {
    const auto block = WithoutGil([&] { return round_->ExportPartial(tensor, first, last, max_bytes); });
    Released::OfProcess().Drop();
    ThrowIfError(block.status());
    return {ToBytes(block->bytes), block->next};
  }

  // Takes a submission out. Returns: whether there was one. GIL: released while other calls add.
  bool Withdraw(const std::string& client_id) {
    const absl::StatusOr<bool> withdrawn = WithoutGil([&] { return round_->Withdraw(client_id); });
    Released::OfProcess().Drop();
    return ValueOrThrow(withdrawn);
  }

  // Merges everything. GIL: released while the round merges and checks, held while the results become dictionaries.
  // Returns: one dictionary for each tensor; None if the result of a tensor in `finite` (indices) has a value that is
  // NaN or infinite, or if keys that were left to the merge are not in order.
  nb::object Finish(const std::vector<size_t>& finite) {
    bool is_finite = true;
    absl::StatusOr<std::vector<Result>> results = WithoutGil([&] {
      auto merged = round_->Finish();
      for (const size_t tensor : finite) is_finite = is_finite && merged.ok() && round_->IsFinite(merged->at(tensor));
      return merged;
    });
    Released::OfProcess().Drop();
    if (absl::IsAborted(results.status())) return nb::none();
    ThrowIfError(results.status());
    if (!is_finite) return nb::none();
    nb::list out;
    for (Result& result : *results) out.append(ToPython(std::make_shared<const Result>(std::move(result))));
    return out;
  }

  // The same, with the results in the device's memory. Errors: also those of LocalRound::FinishOnDevice.
  nb::list FinishOnDevice() {
    const absl::StatusOr<std::vector<DeviceResult>> results = WithoutGil([&] { return round_->FinishOnDevice(); });
    Released::OfProcess().Drop();
    ThrowIfError(results.status());
    nb::list out;
    for (const DeviceResult& result : *results) {
      out.append(ToPython(result, round_->runtime().engine.device_stream()->device, round_->runtime()));
    }
    return out;
  }

  // Its getters may block; see Waiting.
  const LocalRound& round() const { return *round_; }

 private:
  static std::unique_ptr<LocalRound> Create(const nb::bytes& spec, bool is_stored, const LocalRoundOptions& options) {
    service::RoundConfig config =
        ParseRoundSpec(spec, is_stored ? service::SpecSource::kStore : service::SpecSource::kClient);
    const RoundLimits limits{config.max_submissions, config.max_tuples_per_submission, config.max_bytes_per_submission,
                             config.min_submissions};
    return ValueOrThrow(LocalRound::Create(std::move(config.tensors), limits, options));
  }

  void ReadPage(const nb::tuple& page, const nb::object& convert, std::vector<Submission>& all) const {
    const auto ids = nb::cast<nb::list>(page[0]);
    const auto weights = nb::cast<std::optional<Column<const double>>>(page[1]);
    const auto counts = nb::cast<std::optional<Column<const bool>>>(page[2]);
    const auto first = nb::cast<size_t>(page[3]);
    const auto end = nb::cast<size_t>(page[4]);
    const auto places = nb::cast<Column<const int64_t>>(page[5]);
    const auto ends = nb::cast<Column<const int64_t>>(page[6]);
    Submission whole;
    ArrayBorrower borrower(round_->runtime());
    if (ends.size() > 0) whole = reader_.Read("", nb::make_tuple(page[7], page[8]), /*pairs=*/false, convert, borrower);
    const InputTensor columns = whole.tensors.empty() ? InputTensor{} : whole.tensors[0];
    const auto num_rows = static_cast<int64_t>(NumKeys(columns.keys));
    if (first > end || end > ids.size() || places.size() != ends.size() || whole.tensors.size() > 1 ||
        (weights.has_value() && weights->size() != ids.size()) ||
        (counts.has_value() && counts->size() != ids.size())) {
      throw nb::value_error("not the columns of a page");
    }
    const size_t row_bytes = SizeOf(round_->tensors()[0].dtype) * round_->tensors()[0].row_width;
    all.reserve(all.size() + (end - first));
    int64_t begin = 0;     // of the rows of the next submission that has some
    size_t with_rows = 0;  // submissions before it
    for (size_t place = first; place < end; ++place) {
      const bool has_rows = with_rows < places.size() && places.data()[with_rows] == static_cast<int64_t>(place);
      const int64_t row = begin;
      if (has_rows) begin = ends.data()[with_rows++];
      if (begin < row || begin > num_rows) throw nb::value_error("not the ends of a page's rows");
      if (counts.has_value() && !counts->data()[place]) continue;
      Submission& one = all.emplace_back();
      one.client_id = nb::cast<std::string>(ids[place]);
      if (weights.has_value()) one.weight = weights->data()[place];
      if (!has_rows) continue;
      one.owner = whole.owner;
      one.key_owner = whole.key_owner;
      InputTensor& part = one.tensors.emplace_back(columns);
      part.keys = Slice(columns.keys, static_cast<size_t>(row), static_cast<size_t>(begin - row));
      if (part.values != nullptr) part.values += static_cast<size_t>(row) * row_bytes;
    }
    if (with_rows != places.size() || begin != num_rows) throw nb::value_error("rows of no submission of the page");
  }

  void Add(std::vector<Submission> submissions) {
    const absl::Status status = WithoutGil([&] { return round_->Add(std::move(submissions)); });
    Released::OfProcess().Drop();
    ThrowIfError(status);
  }

  std::unique_ptr<LocalRound> round_;
  InputReader reader_;
};

// Returns: a property that releases the GIL during `get`, which may wait until another thread's call of the round ends.
template <typename Value>
auto Waiting(Value (LocalRound::*get)() const) {
  return [get](const Aggregator& aggregator) { return WithoutGil([&] { return (aggregator.round().*get)(); }); };
}

// Throws: StatusException: no round can have the serialised v1::RoundSpec.
void CheckSpec(const nb::bytes& spec) {
  auto message = ParseMessage<v1::RoundSpec>(spec);
  // The spec may be of a stream, whose buffer is the limit.
  if (message.max_submissions() == 0) message.set_max_submissions(std::max<uint64_t>(message.min_submissions(), 1));
  ThrowIfError(service::DecodeRoundSpec(message, NoLimits()).status());
}

void Define(nb::module_& module) {
  // Python's end unwinds threads (gil.h), at which libgcc aborts, where it is linked in, unless it has seen a throw
  // before.
  try {
    throw 0;
  } catch (int) {  // NOLINT(bugprone-empty-catch)
  }
  // At the end of Python, threads that hang in CallPython and modules of the caller's still have objects.
  nb::set_leak_warnings(false);
  PyObject* const error = PyErr_NewException("sparseagg._engine.EngineError", nullptr, nullptr);
  module.attr("EngineError") = nb::steal(error);
  const auto translate = [](const std::exception_ptr& pointer, void* type) {
    try {
      std::rethrow_exception(pointer);
    } catch (const StatusException& e) {
      PyErr_SetObject(static_cast<PyObject*>(type), DescribeError(e.status).ptr());
    }
  };
  nb::register_exception_translator(translate, error);
  numpy::Load();
  // force_simd, describe, check_spec, encode_keys and decode_keys hold the GIL throughout.
  // force_simd must not run while another thread merges; the package calls it once, when it loads this module.
  module.def(
      "force_simd", [](const std::string& target) { ThrowIfError(cpu::ForceSimdTarget(target)); }, nb::arg("target"));
  module.def("describe", [] {
    const auto engine = CreateCpuEngine();
    return absl::StrCat(engine->name(), " (", engine->description(), ")");
  });
  module.def("check_spec", &CheckSpec, nb::arg("spec"));
  // Loading takes seconds where there is a GPU.
  module.def(
      "load_cuda", [](const std::string& path) { return ValueOrThrow(WithoutGil([&] { return LoadCuda(path); })); },
      nb::arg("path"));
  module.def("release_memory", [] {
    ReleaseFreedColumns();
    WithoutGil([] {
      ReleaseDeviceMemory();
      return 0;
    });
  });
  DefineDeviceArray(module);
  DefineDeviceColumn(module);
  nb::class_<Aggregator>(module, "Aggregator")
      .def(
          "__init__",
          [](Aggregator* self, const nb::bytes& spec, bool is_stored, int threads, uint64_t memory_limit, bool device,
             const nb::bytes& noise_key, const nb::bytes& release_id) {
            new (self) Aggregator(
                spec, is_stored,
                {threads, memory_limit, device, std::string(ViewOf(noise_key)), std::string(ViewOf(release_id))});
          },
          nb::arg("spec"), nb::arg("is_stored"), nb::arg("threads"), nb::arg("memory_limit"), nb::arg("device"),
          nb::arg("noise_key"), nb::arg("release_id"))
      .def("add_one", &Aggregator::AddOne, nb::arg("client_id"), nb::arg("update").none(), nb::arg("weight").none(),
           nb::arg("convert"))
      .def("add_all", &Aggregator::AddAll, nb::arg("names").none(), nb::arg("first"), nb::arg("updates"),
           nb::arg("convert"))
      .def("add_pages", &Aggregator::AddPages, nb::arg("pages"), nb::arg("sorts"), nb::arg("convert"))
      .def("borrow", &Aggregator::Borrow, nb::arg("array").none())
      .def("defer_merges", &Aggregator::DeferMerges, nb::arg("leaves_keys"))
      .def("merge", &Aggregator::Merge, nb::arg("other"))
      .def("add_partial", &Aggregator::AddPartial, nb::arg("client_id"), nb::arg("blocks"), nb::arg("first"),
           nb::arg("last"))
      .def("export_partial", &Aggregator::ExportPartial, nb::arg("tensor"), nb::arg("first"), nb::arg("last"),
           nb::arg("max_bytes"))
      .def("withdraw", &Aggregator::Withdraw, nb::arg("client_id"))
      .def("finish", &Aggregator::Finish, nb::arg("finite"))
      .def("finish_on_device", &Aggregator::FinishOnDevice)
      .def_prop_ro("engine", [](const Aggregator& a) { return a.round().engine_name(); })
      .def_prop_ro("device_stream", [](const Aggregator& a) { return StreamOf(a.round().runtime()); })
      .def_prop_ro("release_id", [](const Aggregator& a) { return ToBytes(a.round().release_id()); })
      .def_prop_ro("num_submissions", Waiting(&LocalRound::num_submissions))
      .def_prop_ro("num_tuples", Waiting(&LocalRound::num_tuples))
      .def_prop_ro("num_bytes", Waiting(&LocalRound::num_bytes))
      .def_prop_ro("memory_bytes", Waiting(&LocalRound::memory_bytes))
      .def_prop_ro("clip", [](const Aggregator& a) { return ToPython(WithoutGil([&] { return a.round().clip(); })); })
      .def_prop_ro("times", [](const Aggregator& a) {
        const Times times = WithoutGil([&] { return a.round().times(); });
        return std::make_tuple(times.prepare, times.add, times.finish);
      });
  module.def("coarse_bits", &cpu::CoarseBits, nb::arg("num_rows"));
  DefineMemoryRounds(module);
  DefineModels(module);
  DefineWireKeys(module);
}

}  // namespace
}  // namespace sparseagg::python

NB_MODULE(_engine, module) { sparseagg::python::Define(module); }
