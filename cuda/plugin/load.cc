#include "cuda/plugin/load.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cuda/plugin/plugin.h"
#include "host/base/column.h"
#include "host/base/status_macros.h"
#include "host/cpu/simd/kernels.h"

namespace sparseagg::cuda {
namespace {

namespace fs = std::filesystem;

// Returns: an absolute path. dlopen would search system folders for a name without a slash.
absl::StatusOr<std::string> FindPlugin(const std::string& path) {
  const std::vector<std::string> candidates = path.empty() ? CudaPluginPaths() : std::vector<std::string>{path};
  std::error_code ignored;
  for (const std::string& candidate : candidates) {
    if (fs::exists(candidate, ignored)) return fs::absolute(candidate, ignored).string();
  }
  return absl::UnavailableError(absl::StrCat("there is no CUDA plug-in: no file ", absl::StrJoin(candidates, ", ")));
}

absl::StatusOr<PluginEntry> OpenPlugin(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("the CUDA plug-in cannot be loaded: ", dlerror()));
  void* const entry = dlsym(library, kPluginEntry);
  if (entry == nullptr) {
    return absl::UnavailableError(absl::StrCat(path, " is no CUDA plug-in: it has no function ", kPluginEntry));
  }
  return reinterpret_cast<PluginEntry>(entry);
}

}  // namespace

std::vector<std::string> CudaPluginPaths() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return {};
  std::vector<std::string> paths;
  for (const char* relative : {".", "../lib", "../../sparseagg_cuda13"}) {
    paths.push_back((folder / relative / kPluginFile).lexically_normal().string());
  }
  return paths;
}

absl::StatusOr<std::unique_ptr<Engine>> LoadCudaEngine(const std::string& path, CudaEngineOptions options) {
  ASSIGN_OR_RETURN(const std::string found, FindPlugin(path));
  ASSIGN_OR_RETURN(const PluginEntry entry, OpenPlugin(found));
  // The library must not see an exception of `on_fallback`. A report that throws is dropped.
  if (options.on_fallback) {
    options.on_fallback = [callback = std::move(options.on_fallback)](const absl::Status& reason) {
      static_cast<void>(sparseagg::ToStatus([&] {
        callback(reason);
        return absl::OkStatus();
      }));
    };
  }
  const PluginRequest request{std::move(options), internal::ColumnStore(), cpu::CurrentSimdTarget()};
  PluginAnswer answer;
  if (const char* identity = entry(kPluginIdentity, &request, &answer); std::strcmp(identity, kPluginIdentity) != 0) {
    return absl::UnavailableError(absl::StrCat("the CUDA plug-in ", found, " belongs to sparseagg ", identity,
                                               ", this program to ", kPluginIdentity,
                                               ": install both from the same release"));
  }
  return answer;
}

}  // namespace sparseagg::cuda
