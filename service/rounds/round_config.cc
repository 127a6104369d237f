#include "service/rounds/round_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sparseagg::service {

absl::StatusOr<size_t> RoundConfig::FindTensor(absl::string_view name) const {
  const auto found = tensor_index.find(name);
  if (found != tensor_index.end()) return found->second;
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown tensor '", name, "'; this round has ",
      absl::StrJoin(tensors, ", ",
                    [](std::string* out, const TensorSpec& spec) { absl::StrAppend(out, "'", spec.name, "'"); })));
}

absl::StatusOr<size_t> RoundConfig::ChooseTensor(absl::string_view name) const {
  if (!name.empty()) return FindTensor(name);
  if (tensors.size() == 1) return 0;
  return absl::InvalidArgumentError(
      absl::StrCat("the round has ", tensors.size(), " tensors; the request must name one"));
}

std::string RoundConfig::LogName() const { return tenant == kDefaultTenant ? id : absl::StrCat(tenant, "/", id); }

bool RoundConfig::KeepsSubmissions() const {
  return keep_submissions || std::any_of(tensors.begin(), tensors.end(), OrderMatters);
}

bool RoundConfig::HasClip() const {
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorSpec& spec) { return spec.clip.has_bound(); });
}

}  // namespace sparseagg::service
