// The extension module sparseagg._engine, for the package's private modules only.
//
// GIL: Python calls every entry with the GIL held, from any thread. Adding, merging, finishing and the counters release
// the GIL while the round works, which may take long. Everything else holds it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
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
#include "python/engine/device_outputs.h"
#include "python/engine/errors.h"
#include "python/engine/gil.h"
#include "python/engine/inputs.h"
#include "python/engine/local_round.h"
#include "python/engine/local_runtime.h"
#include "python/engine/memory_rounds.h"
#include "python/engine/messages.h"
#include "python/engine/outputs.h"
#include "python/engine/wire_keys.h"

namespace sparseagg::python {
namespace {

namespace py = pybind11;

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
  Aggregator(const py::bytes& spec, bool is_stored, const LocalRoundOptions& options)
      : round_(Create(spec, is_stored, options)), reader_(round_->tensors()) {}
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;
  ~Aggregator() {
    round_.reset();  // which releases references
    Released::OfProcess().Drop();
  }

  // Adds one submission. GIL: held while the update is read, released while the submission is added.
  void AddOne(std::string client_id, const py::object& update, const py::object& weight, const py::object& convert) {
    std::vector<Submission> submissions;
    submissions.push_back(reader_.Read(std::move(client_id), update, /*pairs=*/false, convert));
    if (!weight.is_none()) submissions[0].weight = weight.cast<double>();
    Add(std::move(submissions));
  }

  // Adds one submission for each update. `names`: the client ids, or None for the numbers from `first` on, with 20
  // decimal digits. If an update is refused, here or by `convert`, all updates before it are added and none after it.
  // GIL: held while updates are read, released while each batch is added.
  void AddAll(const py::object& names, uint64_t first, const py::list& updates, const py::object& convert) {
    const auto ids = names.is_none() ? py::list() : names.cast<py::list>();
    const bool named = !names.is_none();
    // Converted updates take memory of their own, so at most about a batch of them waits to be added.
    std::vector<Submission> batch;
    uint64_t batch_bytes = 0;
    // `convert` runs the caller's code, which may change the list: so no iterator, and a reference to each update.
    for (size_t i = 0; i < updates.size(); ++i) {
      const py::object update = updates[i];
      std::string id = named ? ids[i].cast<std::string>() : absl::StrFormat("%020d", first + i);
      try {
        batch.push_back(reader_.Read(std::move(id), update, /*pairs=*/true, convert));
      } catch (const abi::__forced_unwind&) {  // the thread ends, since Python does
        throw;
      } catch (...) {
        Add(std::move(batch));
        throw;
      }
      batch_bytes += round_->BytesOf(batch.back());
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
  void AddPages(const py::list& pages, bool sorts, const py::object& convert) {
    std::vector<Submission> all;
    for (const py::handle page : pages) ReadPage(page.cast<py::tuple>(), convert, all);
    const auto by_id = [](const Submission& a, const Submission& b) { return a.client_id < b.client_id; };
    if (sorts) std::sort(all.begin(), all.end(), by_id);
    Add(std::move(all));
  }

  // Borrows an array in the device's memory, for `convert`. GIL: as of DeviceArray::Borrow.
  std::unique_ptr<DeviceArray> Borrow(const py::object& array) const {
    return DeviceArray::Borrow(array, round_->runtime());
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
  void AddPartial(const std::string& client_id, const std::vector<py::buffer>& blocks, uint64_t first, uint64_t last) {
    std::vector<py::buffer_info> views;
    std::vector<absl::string_view> bytes;
    for (const py::buffer& block : blocks) {
      views.push_back(block.request());
      const py::buffer_info& view = views.back();
      bytes.emplace_back(static_cast<const char*>(view.ptr), static_cast<size_t>(view.size * view.itemsize));
    }
    const absl::Status status = WithoutGil([&] { return round_->AddPartial(client_id, bytes, first, last); });
    ThrowIfError(status);
  }

  // Returns: a block of unfinished rows, and the first key behind it or None. GIL: released while the round merges.
  std::pair<py::bytes, std::optional<uint64_t>> ExportPartial(size_t tensor, uint64_t first, uint64_t last,
                                                              uint64_t max_bytes) {
    const auto block = WithoutGil([&] { return round_->ExportPartial(tensor, first, last, max_bytes); });
    Released::OfProcess().Drop();
    ThrowIfError(block.status());
    return {py::bytes(block->bytes), block->next};
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
  py::object Finish(const std::vector<size_t>& finite) {
    bool is_finite = true;
    absl::StatusOr<std::vector<Result>> results = WithoutGil([&] {
      auto merged = round_->Finish();
      for (const size_t tensor : finite) is_finite = is_finite && merged.ok() && round_->IsFinite(merged->at(tensor));
      return merged;
    });
    Released::OfProcess().Drop();
    if (absl::IsAborted(results.status())) return py::none();
    ThrowIfError(results.status());
    if (!is_finite) return py::none();
    py::list out;
    for (Result& result : *results) out.append(ToPython(std::make_shared<const Result>(std::move(result))));
    return out;
  }

  // The same, with the results in the device's memory. Errors: also those of LocalRound::FinishOnDevice.
  py::list FinishOnDevice() {
    const absl::StatusOr<std::vector<DeviceResult>> results = WithoutGil([&] { return round_->FinishOnDevice(); });
    Released::OfProcess().Drop();
    ThrowIfError(results.status());
    py::list out;
    for (const DeviceResult& result : *results) {
      out.append(ToPython(result, round_->runtime().device_stream()->device, round_->runtime()));
    }
    return out;
  }

  // Its getters may block; see Waiting.
  const LocalRound& round() const { return *round_; }

 private:
  static std::unique_ptr<LocalRound> Create(const py::bytes& spec, bool is_stored, const LocalRoundOptions& options) {
    service::RoundConfig config =
        ParseRoundSpec(spec, is_stored ? service::SpecSource::kStore : service::SpecSource::kClient);
    const RoundLimits limits{config.max_submissions, config.max_tuples_per_submission, config.max_bytes_per_submission,
                             config.min_submissions};
    return ValueOrThrow(LocalRound::Create(std::move(config.tensors), limits, options));
  }

  void ReadPage(const py::tuple& page, const py::object& convert, std::vector<Submission>& all) const {
    constexpr int kPlain = py::array::c_style | py::array::forcecast;
    using Numbers = py::array_t<int64_t, kPlain>;
    const auto ids = page[0].cast<py::list>();
    const auto weights = page[1].cast<std::optional<py::array_t<double, kPlain>>>();
    const auto counts = page[2].cast<std::optional<py::array_t<bool, kPlain>>>();
    const auto first = page[3].cast<size_t>();
    const auto end = page[4].cast<size_t>();
    const auto places = page[5].cast<Numbers>();
    const auto ends = page[6].cast<Numbers>();
    const auto num_listed = static_cast<py::ssize_t>(ids.size());
    Submission whole;
    if (ends.size() > 0) whole = reader_.Read("", py::make_tuple(page[7], page[8]), /*pairs=*/false, convert);
    const InputTensor columns = whole.tensors.empty() ? InputTensor{} : whole.tensors[0];
    const auto num_rows = static_cast<int64_t>(NumKeys(columns.keys));
    if (first > end || end > ids.size() || places.size() != ends.size() || whole.tensors.size() > 1 ||
        (weights.has_value() && weights->size() != num_listed) ||
        (counts.has_value() && counts->size() != num_listed)) {
      throw py::value_error("not the columns of a page");
    }
    const size_t row_bytes = SizeOf(round_->tensors()[0].dtype) * round_->tensors()[0].row_width;
    all.reserve(all.size() + (end - first));
    int64_t begin = 0;          // of the rows of the next submission that has some
    py::ssize_t with_rows = 0;  // submissions before it
    for (size_t place = first; place < end; ++place) {
      const bool has_rows = with_rows < places.size() && places.data()[with_rows] == static_cast<int64_t>(place);
      const int64_t row = begin;
      if (has_rows) begin = ends.data()[with_rows++];
      if (begin < row || begin > num_rows) throw py::value_error("not the ends of a page's rows");
      if (counts.has_value() && !counts->data()[place]) continue;
      Submission& one = all.emplace_back();
      one.client_id = ids[place].cast<std::string>();
      if (weights.has_value()) one.weight = weights->data()[place];
      if (!has_rows) continue;
      one.owner = whole.owner;
      one.key_owner = whole.key_owner;
      InputTensor& part = one.tensors.emplace_back(columns);
      part.keys = Slice(columns.keys, static_cast<size_t>(row), static_cast<size_t>(begin - row));
      if (part.values != nullptr) part.values += static_cast<size_t>(row) * row_bytes;
    }
    if (with_rows != places.size() || begin != num_rows) throw py::value_error("rows of no submission of the page");
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
void CheckSpec(const py::bytes& spec) {
  auto message = ParseMessage<v1::RoundSpec>(spec);
  // The spec may be of a stream, whose buffer is the limit.
  if (message.max_submissions() == 0) message.set_max_submissions(std::max<uint64_t>(message.min_submissions(), 1));
  ThrowIfError(service::DecodeRoundSpec(message, NoLimits()).status());
}

void Define(py::module_& module) {
  static py::object& error = *new py::object(py::exception<StatusException>(module, "EngineError"));
  py::register_exception_translator([](std::exception_ptr pointer) {  // NOLINT(performance-unnecessary-value-param)
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusException& e) {
      const auto code = static_cast<int>(e.status.code());
      PyErr_SetObject(error.ptr(), py::make_tuple(code, std::string(e.status.message())).ptr());
    }
  });
  // Loads NumPy's functions now: pybind11 releases the GIL for that, in the way of which gil.h warns.
  py::dtype::of<float>();
  // force_simd, describe, check_spec, encode_keys and decode_keys hold the GIL throughout.
  // force_simd must not run while another thread merges; the package calls it once, when it loads this module.
  module.def(
      "force_simd", [](const std::string& target) { ThrowIfError(cpu::ForceSimdTarget(target)); }, py::arg("target"));
  module.def("describe", [] {
    const auto engine = CreateCpuEngine();
    return absl::StrCat(engine->name(), " (", engine->description(), ")");
  });
  module.def("check_spec", &CheckSpec, py::arg("spec"));
  // Loading takes seconds where there is a GPU.
  module.def(
      "load_cuda", [](const std::string& path) { return ValueOrThrow(WithoutGil([&] { return LoadCuda(path); })); },
      py::arg("path"));
  module.def("release_memory", [] {
    ReleaseFreedColumns();
    WithoutGil([] {
      ReleaseDeviceMemory();
      return 0;
    });
  });
  DefineDeviceArray(module);
  DefineDeviceColumn(module);
  py::class_<Aggregator>(module, "Aggregator")
      .def(py::init([](const py::bytes& spec, bool is_stored, int threads, uint64_t memory_limit, bool device,
                       const py::bytes& noise_key, const py::bytes& release_id) {
             return std::make_unique<Aggregator>(
                 spec, is_stored, LocalRoundOptions{threads, memory_limit, device, noise_key, release_id});
           }),
           py::arg("spec"), py::arg("is_stored"), py::arg("threads"), py::arg("memory_limit"), py::arg("device"),
           py::arg("noise_key"), py::arg("release_id"))
      .def("add_one", &Aggregator::AddOne, py::arg("client_id"), py::arg("update"), py::arg("weight"),
           py::arg("convert"))
      .def("add_all", &Aggregator::AddAll, py::arg("names"), py::arg("first"), py::arg("updates"), py::arg("convert"))
      .def("add_pages", &Aggregator::AddPages, py::arg("pages"), py::arg("sorts"), py::arg("convert"))
      .def("borrow", &Aggregator::Borrow, py::arg("array"))
      .def("defer_merges", &Aggregator::DeferMerges, py::arg("leaves_keys"))
      .def("merge", &Aggregator::Merge, py::arg("other"))
      .def("add_partial", &Aggregator::AddPartial, py::arg("client_id"), py::arg("blocks"), py::arg("first"),
           py::arg("last"))
      .def("export_partial", &Aggregator::ExportPartial, py::arg("tensor"), py::arg("first"), py::arg("last"),
           py::arg("max_bytes"))
      .def("withdraw", &Aggregator::Withdraw, py::arg("client_id"))
      .def("finish", &Aggregator::Finish, py::arg("finite"))
      .def("finish_on_device", &Aggregator::FinishOnDevice)
      .def_property_readonly("engine", [](const Aggregator& a) { return a.round().engine_name(); })
      .def_property_readonly("device_stream", [](const Aggregator& a) { return StreamOf(a.round().runtime()); })
      .def_property_readonly("release_id", [](const Aggregator& a) { return py::bytes(a.round().release_id()); })
      .def_property_readonly("num_submissions", Waiting(&LocalRound::num_submissions))
      .def_property_readonly("num_tuples", Waiting(&LocalRound::num_tuples))
      .def_property_readonly("num_bytes", Waiting(&LocalRound::num_bytes))
      .def_property_readonly("memory_bytes", Waiting(&LocalRound::memory_bytes))
      .def_property_readonly("clip",
                             [](const Aggregator& a) { return ToPython(WithoutGil([&] { return a.round().clip(); })); })
      .def_property_readonly("times", [](const Aggregator& a) {
        const Times times = WithoutGil([&] { return a.round().times(); });
        return std::make_tuple(times.prepare, times.add, times.finish);
      });
  module.def("coarse_bits", &cpu::CoarseBits, py::arg("num_rows"));
  DefineMemoryRounds(module);
  DefineWireKeys(module);
}

}  // namespace
}  // namespace sparseagg::python

PYBIND11_MODULE(_engine, module) { sparseagg::python::Define(module); }
