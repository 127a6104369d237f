#include "host/model/row_block.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "host/base/saturating.h"
#include "host/base/status_macros.h"

namespace sparseagg {
namespace {

struct Header {
  uint8_t kind, dtype, key_bytes, zero;
  uint32_t tensor;
  uint64_t num_rows, first_key;
};
constexpr size_t kHeaderBytes = sizeof(Header);
static_assert(kHeaderBytes == 24);
constexpr char kZeros[8] = {};

size_t Padding(size_t bytes) { return (8 - bytes % 8) % 8; }

absl::Status Damaged(absl::string_view problem) {
  return absl::DataLossError(absl::StrCat("a block of rows of a model ", problem));
}

}  // namespace

absl::StatusOr<RowBlock> RowBlock::Parse(absl::string_view bytes, const ModelSpec& spec) {
  if (bytes.size() < kHeaderBytes) return Damaged(absl::StrCat("has ", bytes.size(), " bytes"));
  RowBlock block;
  Header header;
  std::memcpy(&header, bytes.data(), kHeaderBytes);
  if (header.kind < 1 || header.kind > 3 || header.dtype > static_cast<uint8_t>(DType::kUInt64) ||
      header.tensor >= spec.tensors.size() || (header.key_bytes != 0 && header.key_bytes != 8)) {
    return Damaged("has an unknown header");
  }
  block.kind = static_cast<Kind>(header.kind);
  block.dtype = static_cast<DType>(header.dtype);
  block.key_bytes = header.key_bytes;
  block.tensor = header.tensor;
  block.num_rows = header.num_rows;
  block.first_key = header.first_key;
  const ModelTensorSpec& tensor = spec.tensors[block.tensor];
  if (block.kind == Kind::kRows && block.dtype != tensor.dtype) return Damaged("has another dtype than its tensor");

  std::vector<std::pair<absl::string_view*, uint64_t>> columns = {
      {&block.keys, block.key_bytes}, {&block.touched, block.kind == Kind::kDelta ? 0 : sizeof(uint32_t)}};
  if (block.kind == Kind::kDelta) columns.emplace_back(&block.planes[0], SizeOf(block.dtype) * tensor.row_width);
  for (size_t i = 0; block.kind == Kind::kRows && i < tensor.NumPlanes(); ++i) {
    columns.emplace_back(&block.planes[i], tensor.PlaneBytes(i));
  }
  absl::string_view rest = bytes.substr(kHeaderBytes);
  for (const auto& [column, row_bytes] : columns) {
    const uint64_t size = SaturatingMultiply(block.num_rows, row_bytes);
    if (size > rest.size() || rest.size() - size < Padding(size)) return Damaged("is shorter than its header says");
    *column = rest.substr(0, size);
    rest.remove_prefix(size + Padding(size));
  }
  if (!rest.empty()) return Damaged("is longer than its header says");
  return block;
}

absl::Status RowBlock::Write(absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)> take) const {
  const Header header = {
      static_cast<uint8_t>(kind), static_cast<uint8_t>(dtype), key_bytes, 0, tensor, num_rows, first_key};
  std::vector<absl::string_view> spans = {{reinterpret_cast<const char*>(&header), kHeaderBytes}};
  for (const absl::string_view column : {keys, touched, planes[0], planes[1], planes[2]}) {
    if (column.empty()) continue;
    spans.push_back(column);
    if (Padding(column.size()) != 0) spans.emplace_back(kZeros, Padding(column.size()));
  }
  return take(spans);
}

uint64_t NumPresent(const Result& rows) {
  if (rows.layout == Layout::kSparse || rows.counts.empty()) return rows.num_keys;
  return rows.num_keys - static_cast<uint64_t>(std::count(rows.counts.begin(), rows.counts.end(), 0u));
}

absl::Status ForEachPart(const Result& rows, size_t most_rows,
                         absl::FunctionRef<absl::Status(absl::Span<const uint64_t>, const std::byte*)> take) {
  const size_t row_bytes = rows.row_bytes();
  const bool has_holes = NumPresent(rows) != rows.num_keys;
  Column<uint64_t> keys(std::min<uint64_t>(most_rows, rows.num_keys));
  Column<std::byte> values(has_holes ? keys.size() * row_bytes : 0);
  for (uint64_t row = 0; row < rows.num_keys;) {
    const std::byte* from = rows.values.data() + row * row_bytes;
    size_t n = 0;
    for (; n < most_rows && row < rows.num_keys; ++row) {
      if (has_holes) {
        if (rows.counts[row] == 0) continue;
        std::memcpy(values.data() + n * row_bytes, rows.values.data() + row * row_bytes, row_bytes);
      }
      keys[n++] = rows.KeyAt(row);
    }
    if (n > 0) RETURN_IF_ERROR(take({keys.data(), n}, has_holes ? values.data() : from));
  }
  return absl::OkStatus();
}

absl::Status WriteDelta(const ModelDelta& delta,
                        absl::FunctionRef<absl::Status(absl::Span<const absl::string_view>)> take) {
  for (size_t tensor = 0; tensor < delta.size(); ++tensor) {
    if (delta[tensor] == nullptr) continue;
    const Result& rows = *delta[tensor];
    const size_t most_rows =
        std::max<size_t>(1, (RowBlock::kMaxBytes - kHeaderBytes - 16) / (rows.row_bytes() + sizeof(uint64_t)));
    RETURN_IF_ERROR(ForEachPart(rows, most_rows, [&](absl::Span<const uint64_t> keys, const std::byte* values) {
      RowBlock block;
      block.dtype = rows.dtype;
      block.tensor = static_cast<uint32_t>(tensor);
      block.num_rows = keys.size();
      block.planes[0] = {reinterpret_cast<const char*>(values), keys.size() * rows.row_bytes()};
      if (keys.back() - keys.front() == keys.size() - 1) {
        block.key_bytes = 0;
        block.first_key = keys.front();
      } else {
        block.keys = {reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(uint64_t)};
      }
      return block.Write(take);
    }));
  }
  return absl::OkStatus();
}

Column<uint64_t> RowBlock::Keys() const {
  Column<uint64_t> all(num_rows);
  if (key_bytes == 0) {
    std::iota(all.begin(), all.end(), first_key);
  } else if (num_rows > 0) {
    std::memcpy(all.data(), keys.data(), keys.size());
  }
  return all;
}

absl::Status ReadDelta(absl::string_view bytes, const ModelSpec& spec, std::vector<Result>* results) {
  ASSIGN_OR_RETURN(const RowBlock block, RowBlock::Parse(bytes, spec));
  if (block.kind != RowBlock::Kind::kDelta) return Damaged("is not of a log");
  if (results->empty()) {
    for (const ModelTensorSpec& tensor : spec.tensors) {
      Result& result = results->emplace_back();
      result.row_width = tensor.row_width;
      result.num_rows = tensor.num_rows;
      result.keys.emplace<Column<uint64_t>>();
    }
  }
  if (block.num_rows == 0) return absl::OkStatus();
  Result& result = (*results)[block.tensor];
  auto& keys = std::get<Column<uint64_t>>(result.keys);
  if (keys.empty()) result.dtype = block.dtype;
  if (result.dtype != block.dtype) return Damaged("has another dtype than the one before");
  for (const uint64_t key : block.Keys()) {
    if ((!keys.empty() && key <= keys.back()) || (result.num_rows != 0 && key >= result.num_rows)) {
      return Damaged(absl::StrCat("has key ", key, ", which does not ascend or fit the tensor"));
    }
    keys.push_back(key);
  }
  result.num_keys = keys.size();
  result.values.Append(reinterpret_cast<const std::byte*>(block.planes[0].data()), block.planes[0].size());
  return absl::OkStatus();
}

}  // namespace sparseagg
