#include <toml++/toml.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "service/options.h"

namespace sparseagg::service {
namespace {

// Returns: the optimal string alignment distance (Damerau 1964). Cost: the product of the lengths.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1);  // of a[:i - 2], where `last` is of a[:i - 1] and `row` of a[:i]
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestFlag(const CLI::App& app, absl::string_view name, bool in_file) {
  constexpr size_t kLongestName = 64;  // of all flags; the distance of a longer text takes long
  std::string nearest;
  if (name.size() > kLongestName) return nearest;
  size_t least = name.size() / 3 + 1;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || (in_file && !option->get_configurable())) continue;
    const std::string& flag = option->get_lnames().front();
    if (const size_t distance = Distance(name, flag); distance < least) {
      least = distance;
      nearest = flag;
    }
  }
  return nearest;
}

namespace {

// What the value of a flag is in the file.
enum class Form { kTruth, kText, kNumberOrText };

Form FormOf(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return Form::kTruth;
  return absl::StartsWith(option.get_type_name(), "TEXT") ? Form::kText : Form::kNumberOrText;
}

absl::string_view Name(Form form) {
  constexpr absl::string_view kNames[] = {"true or false", "a string", "a number or a string"};
  return kNames[static_cast<size_t>(form)];
}

// Returns: the value as an argument of a flag; nullopt if it has another form than the flag's. As text, `true` would be
// the name of a directory.
std::optional<std::string> ArgumentOf(const toml::node& value, Form form) {
  if (const auto* truth = value.as_boolean()) {
    return form == Form::kTruth ? std::optional<std::string>(truth->get() ? "true" : "false") : std::nullopt;
  }
  if (form == Form::kTruth) return std::nullopt;
  if (const auto* text = value.as_string()) return text->get();
  if (form == Form::kText) return std::nullopt;
  if (const auto* number = value.as_integer()) return absl::StrCat(number->get());
  if (const auto* number = value.as_floating_point()) return absl::StrCat(number->get());
  return std::nullopt;
}

bool IsInEnvironment(const CLI::Option& option) {
  const char* value = std::getenv(option.get_envname().c_str());
  return value != nullptr && *value != '\0';
}

// Returns: the number of the first line that begins with no name in ASCII; 0: there is none.
// Workaround: toml++ 3.3 ends the process by assertions about the names in some of these lines. Remove with: a version
// that reports them.
uint32_t FindLineWithoutName(absl::string_view text) {
  uint32_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    if (absl::ConsumePrefix(&line, "[")) {
      line = absl::StripLeadingAsciiWhitespace(line);
      absl::ConsumePrefix(&line, "[");  // of a list of tables
      line = absl::StripLeadingAsciiWhitespace(line);
    }
    const absl::string_view name = line.substr(0, line.find_first_of("=]#"));
    const bool begins_well = !line.empty() && (absl::ascii_isalnum(line[0]) || absl::StrContains("_-\"']", line[0]));
    if (!begins_well || !std::all_of(name.begin(), name.end(), absl::ascii_isascii)) return number;
  }
  return 0;
}

}  // namespace

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  const auto fail = [this](const std::string& problem, const toml::source_region& where, const std::string& cure = "") {
    throw CLI::ConfigError(
        absl::StrCat(problem, " in ", app_.get_config_ptr()->as<std::string>(), ", line ", where.begin.line, cure));
  };
  const std::string text(std::istreambuf_iterator<char>(input), {});
  if (const uint32_t line = FindLineWithoutName(text); line != 0) {
    fail("a line without the name of a flag", {.begin = {line, 1}, .end = {line, 1}, .path = {}});
  }
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail(std::string(error.description()), error.source());
  }
  std::vector<CLI::ConfigItem> settings;
  for (const auto& [key, value] : table) {
    const std::string name(key.str());
    const CLI::Option* option = app_.get_option_no_throw("--" + name);
    if (option == nullptr || !option->get_configurable()) {
      const std::string nearest = NearestFlag(app_, name, /*in_file=*/true);
      fail(absl::StrCat("unknown flag '", name, "'"), key.source(),
           nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"));
    }
    const Form form = FormOf(*option);
    const std::optional<std::string> argument = ArgumentOf(value, form);
    if (!argument.has_value()) fail(absl::StrCat("'", name, "' must be ", Name(form)), value.source());
    // Paths would end there.
    if (absl::StrContains(*argument, '\0')) fail(absl::StrCat("'", name, "' has a character \\u0000"), value.source());
    if (IsInEnvironment(*option)) continue;
    CLI::ConfigItem& setting = settings.emplace_back();
    setting.name = name;
    setting.inputs = {*argument};
  }
  return settings;
}

}  // namespace sparseagg::service
