#include "service/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OptionsTest : public ::testing::Test {
 protected:
  ~OptionsTest() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
    for (const std::string& path : written_) unlink(path.c_str());
  }
  void SetEnv(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  std::string WriteConfig(const std::string& text) {
    const std::string path = ::testing::TempDir() + "/options_test." + std::to_string(getpid()) + ".toml";
    std::ofstream(path) << text;
    written_.push_back(path);
    return path;
  }
  static std::variant<Options, ExitWith> Parse(std::vector<std::string> args) {
    args.insert(args.begin(), "sparseagg-server");
    std::vector<const char*> argv;
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    return ParseOptions(static_cast<int>(argv.size()), argv.data());
  }
  static Options ParseOk(const std::vector<std::string>& args) {
    auto parsed = Parse(args);
    if (const auto* leave = std::get_if<ExitWith>(&parsed)) {
      ADD_FAILURE() << leave->text;
      return {};
    }
    return std::get<Options>(parsed);
  }
  static ExitWith ParseFails(const std::vector<std::string>& args) {
    auto parsed = Parse(args);
    EXPECT_TRUE(std::holds_alternative<ExitWith>(parsed));
    return std::holds_alternative<ExitWith>(parsed) ? std::get<ExitWith>(parsed) : ExitWith{};
  }

  std::vector<std::string> set_;
  std::vector<std::string> written_;
};

TEST_F(OptionsTest, FlagEnvironmentAndFile_FlagGoesFirstThenEnvironment) {
  const std::string path = WriteConfig(
      "max-uploads = 1\nmax-tensors = 1\nmax-row-width = 1\nlog-level = \"error\"\nupload-timeout = \"1s\"\n");
  SetEnv("SPARSEAGG_MAX_UPLOADS", "2");
  SetEnv("SPARSEAGG_MAX_TENSORS", "2");
  SetEnv("SPARSEAGG_LOG_LEVEL", "debug");
  const Options options = ParseOk({"--config", path, "--max-uploads", "3"});
  EXPECT_EQ(options.server.limits.max_uploads, 3);    // in all three
  EXPECT_EQ(options.server.limits.max_tensors, 2);    // in environment and file
  EXPECT_EQ(options.server.limits.max_row_width, 1);  // in the file alone
  EXPECT_EQ(options.log_level, LogLevel::kDebug);
  EXPECT_EQ(options.server.limits.upload_timeout, absl::Seconds(1));
}

TEST_F(OptionsTest, HttpAddress_IsOptionalUnlessItIsGiven) {
  const Options options = ParseOk({});
  EXPECT_EQ(options.server.http.address, "127.0.0.1:8003");
  EXPECT_TRUE(options.server.http_optional);
  EXPECT_FALSE(ParseOk({"--http-address", "127.0.0.1:8003"}).server.http_optional);
  EXPECT_EQ(ParseOk({"--http-address", "none"}).server.http.address, "");
}

TEST_F(OptionsTest, MetricsAddressNone_IsNoAddress_WhereverItIsSaid) {
  const auto address = [](const std::vector<std::string>& args) { return ParseOk(args).server.metrics_address; };
  EXPECT_EQ(address({}), "127.0.0.1:8002");
  EXPECT_EQ(address({"--metrics-address", "none"}), "");
  EXPECT_EQ(address({"--metrics-address", ""}), "");
  const std::string path = WriteConfig("metrics-address = \"none\"\n");
  EXPECT_EQ(address({"--config", path}), "");
  SetEnv("SPARSEAGG_METRICS_ADDRESS", "127.0.0.1:1");
  EXPECT_EQ(address({"--config", path}), "127.0.0.1:1");
  SetEnv("SPARSEAGG_METRICS_ADDRESS", "none");
  EXPECT_EQ(address({}), "");
}

TEST_F(OptionsTest, ConfigInTheEnvironment_IsRead) {
  SetEnv("SPARSEAGG_CONFIG", WriteConfig("insecure = true\ngrpc-address = \"0.0.0.0:1\"\n"));
  const Options options = ParseOk({});
  EXPECT_TRUE(options.server.insecure);
  EXPECT_EQ(options.server.grpc_address, "0.0.0.0:1");
}

TEST_F(OptionsTest, ConfigThatIsNotThere_IsAnError) {
  EXPECT_NE(ParseFails({"--config", "/does/not/exist.toml"}).code, 0);
  SetEnv("SPARSEAGG_CONFIG", "/does/not/exist.toml");
  EXPECT_NE(ParseFails({}).code, 0);
}

TEST_F(OptionsTest, File_Toml_IsRead) {
  const Options options = ParseOk({"--config", WriteConfig("# of this machine\r\n"
                                                           "\n"
                                                           "max-open-rounds = 1_000  # many\n"
                                                           "  max-wait=1.5\n"
                                                           "simd = 'a # b'\n"
                                                           "max-row-width = 0x10\n"
                                                           "log-level = \"\\u0065rror\"\n"
                                                           "grpc-address = \"[::1]:1\" # \"x\"\n"
                                                           "insecure = false\n"
                                                           "memory-limit = \"1GiB\"")});
  EXPECT_EQ(options.server.limits.max_open_rounds, 1000);
  EXPECT_EQ(options.server.limits.max_wait, absl::Milliseconds(1500));
  EXPECT_EQ(options.simd, "a # b");
  EXPECT_EQ(options.server.limits.max_row_width, 16);
  EXPECT_EQ(options.log_level, LogLevel::kError);
  EXPECT_EQ(options.server.grpc_address, "[::1]:1");
  EXPECT_FALSE(options.server.insecure);
  EXPECT_EQ(options.server.limits.memory_limit_bytes, 1 << 30);
}

TEST_F(OptionsTest, File_LinesThatAreNotToml_AreErrorsThatSayWhere) {
  for (const char* line :
       {"max-open-rounds = 1__0", "memory-limit = 1GiB", "simd = \"AVX2", "insecure", "simd =", "= 3"}) {
    const std::string path = WriteConfig(std::string("# one line before\n") + line + "\n");
    const ExitWith leave = ParseFails({"--config", path});
    EXPECT_NE(leave.code, 0) << line;
    EXPECT_THAT(leave.text, HasSubstr("in " + path + ", line 2")) << line;
  }
}

TEST_F(OptionsTest, File_TextWithZero_IsAnError) {
  const std::string path = WriteConfig("data-dir = \"a\\u0000b\"\n");
  const ExitWith leave = ParseFails({"--config", path});
  EXPECT_THAT(leave.text, HasSubstr("'data-dir' has a character \\u0000 in " + path + ", line 1"));
}

TEST_F(OptionsTest, File_OtherValues_AreErrorsThatNameTheFlag) {
  const std::tuple<const char*, std::vector<const char*>, const char*> flags[] = {
      {"max-open-rounds", {"[3]", "[3, 4]", "{ a = 3 }", "2026-11-22", "true"}, "a number or a string"},
      {"max-wait", {"false", "12:00:00"}, "a number or a string"},
      {"threads", {"true"}, "a number or a string"},
      // As text, true would be the name of a directory, and 0 an issuer.
      {"data-dir", {"true", "5", "1.5", "['/d']"}, "a string"},
      {"jwt-issuer", {"0", "false"}, "a string"},
      {"log-level", {"1"}, "a string"},
      {"insecure", {"0", "1", "2", "1.5", "'yes'", "\"false\"", "''"}, "true or false"}};
  for (const auto& [flag, values, form] : flags) {
    for (const char* value : values) {
      const std::string path = WriteConfig(absl::StrCat("# one line before\n", flag, " = ", value, "\n"));
      const ExitWith leave = ParseFails({"--config", path});
      EXPECT_NE(leave.code, 0) << value;
      EXPECT_THAT(leave.text, HasSubstr(absl::StrCat("'", flag, "' must be ", form, " in ", path, ", line 2")))
          << value;
    }
  }
}

// As of a script's variable that is not set: the server would start without credentials, or forget its data.
TEST_F(OptionsTest, EmptyValue_OfACredentialOrAFile_IsAnErrorThatNamesTheFlag) {
  for (const std::string flag :
       {"tokens-file", "jwt-key", "jwt-algorithm", "jwt-issuer", "jwt-audience", "tls-certificate", "tls-key",
        "tls-client-ca", "dev-tls", "data-dir", "owners-file", "config"}) {
    for (const std::vector<std::string>& args : {std::vector<std::string>{"--" + flag, ""},
                                                 {"--" + flag + "="},
                                                 {"--config", WriteConfig(flag + " = ''\n")}}) {
      if (flag == "config" && args[0] == "--config" && !args[1].empty()) continue;
      const ExitWith leave = ParseFails(args);
      EXPECT_NE(leave.code, 0) << flag;
      EXPECT_THAT(leave.text, HasSubstr("--" + flag)) << args[0];
    }
  }
  SetEnv("SPARSEAGG_TOKENS_FILE", "");  // as if it were not set
  EXPECT_EQ(ParseOk({}).server.tokens_file, "");
  EXPECT_EQ(ParseOk({"--simd", "", "--http-origins", ""}).simd, "");
}

TEST_F(OptionsTest, File_UnknownFlag_IsAnErrorThatNamesIt) {
  for (const char* flag : {"max-uplaods", "config", "help", "version", "server"}) {
    const bool is_table = absl::string_view(flag) == "server";
    const std::string path = WriteConfig(is_table ? "[server]\nmax-row-width = 1\n" : std::string(flag) + " = 1\n");
    const ExitWith leave = ParseFails({"--config", path});
    EXPECT_NE(leave.code, 0);
    const std::string nearest = absl::string_view(flag) == "max-uplaods" ? "; did you mean 'max-uploads'?\n" : "\n";
    EXPECT_THAT(leave.text, HasSubstr("unknown flag '" + std::string(flag) + "' in " + path + ", line 1" + nearest));
  }
}

TEST_F(OptionsTest, UnknownFlag_IsAnErrorThatNamesTheNearestFlag) {
  const std::tuple<std::vector<std::string>, std::string> cases[] = {
      {{"--metric-address", "127.0.0.1:0"}, "--metric-address; did you mean --metrics-address?"},  // one left out
      {{"--insecure", "--max-upload-s=3"}, "--max-upload-s; did you mean --max-uploads?"},         // one added
      {{"--data_dir", "/d", "--tls-kye", "k"}, "--data_dir; did you mean --data-dir?"},            // one replaced
      {{"--smid", "AVX2"}, "--smid; did you mean --simd?"},                                        // two exchanged
      {{"-threads", "3"}, "-threads; did you mean --threads?"},
      {{"stray", "--verison"}, "--verison; did you mean --version?"},
      {{"--simdsimd"}, "--simdsimd"},  // four of eight
      {{"--no-such-flag=--threads"}, "--no-such-flag"},
      {{"--" + std::string(100'000, 'x')}, "--" + std::string(100'000, 'x')},
  };
  for (const auto& [args, text] : cases) {
    const ExitWith leave = ParseFails(args);
    EXPECT_EQ(leave.code, static_cast<int>(CLI::ExitCodes::ExtrasError)) << args[0];
    EXPECT_EQ(leave.text, "unknown flag " + text + "\nRun with --help for more information.\n");
  }
}

TEST_F(OptionsTest, File_LineWithoutAName_IsAnErrorThatNamesTheLine) {
  for (const char* table : {"[ = [t = 1", "[", "[[", "[[[a]]]]", "  [ =", "[#", "F\xc2\xb9", "[\xc2\xb9]"}) {
    const std::string path = WriteConfig(std::string("max-row-width = 1\n") + table + "\n");
    const ExitWith leave = ParseFails({"--config", path});
    EXPECT_NE(leave.code, 0) << table;
    EXPECT_THAT(leave.text, HasSubstr(path + ", line 2")) << table;
  }
}

TEST_F(OptionsTest, File_FlagTwice_IsAnError) {
  const ExitWith leave = ParseFails({"--config", WriteConfig("max-uploads = 1\nmax-row-width = 1\nmax-uploads = 2\n")});
  EXPECT_NE(leave.code, 0);
  EXPECT_THAT(leave.text, AllOf(HasSubstr("'max-uploads'"), HasSubstr("line 3")));
}

TEST_F(OptionsTest, Bytes_TakeUnitsOf1024) {
  const auto limit = [](const std::string& text) {
    return ParseOk({"--max-bytes-per-submission", text}).server.limits.max_bytes_per_submission;
  };
  EXPECT_EQ(limit("0"), 0);
  EXPECT_EQ(limit("4096"), 4096);
  EXPECT_EQ(limit("512KiB"), 512 << 10);
  EXPECT_EQ(limit("3 MiB"), 3 << 20);
  EXPECT_EQ(limit("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(limit("1TiB"), uint64_t{1} << 40);
}

// Some programs use these units for powers of 1000, others for powers of 1024.
TEST_F(OptionsTest, Bytes_OtherUnits_AreRefused) {
  for (const char* text :
       {"1GB", "1G", "1kb", "5k", "1gib", "1KIB", "1B", "1  GiB", "1GiB ", "GiB", "", "1PiB", "1.5GiB"}) {
    const ExitWith leave = ParseFails({"--max-bytes-per-submission", text});
    EXPECT_NE(leave.code, 0) << text;
    EXPECT_THAT(leave.text, AllOf(HasSubstr("'" + std::string(text) + "'"), HasSubstr("KiB, MiB, GiB or TiB"))) << text;
  }
}

TEST_F(OptionsTest, MemoryLimit_TooSmall_IsRefused) {
  const auto limit = [](const std::string& text) {
    return ParseOk({"--memory-limit", text}).server.limits.memory_limit_bytes;
  };
  EXPECT_EQ(limit("0"), 0);
  EXPECT_EQ(limit("256MiB"), 256 << 20);
  for (const char* text : {"255MiB", "268435455", "1"}) {
    const ExitWith leave = ParseFails({"--memory-limit", text});
    EXPECT_NE(leave.code, 0) << text;
    EXPECT_THAT(leave.text, AllOf(HasSubstr("'" + std::string(text) + "'"), HasSubstr("256MiB"))) << text;
  }
}

TEST_F(OptionsTest, Times_TakeUnits) {
  const auto wait = [](const std::string& text) { return ParseOk({"--max-wait", text}).server.limits.max_wait; };
  EXPECT_EQ(wait("90"), absl::Seconds(90));
  EXPECT_EQ(wait("1.5s"), absl::Milliseconds(1500));
  EXPECT_EQ(wait("250ms"), absl::Milliseconds(250));
  EXPECT_EQ(wait("1h30m"), absl::Minutes(90));
}

TEST_F(OptionsTest, Times_OfZero_AreRefusedWhereTheyWouldEndEverything) {
  for (const char* flag : {"--upload-timeout", "--max-result-ttl"}) {
    for (const char* zero : {"0", "0ms", "1e-20"}) {
      const ExitWith leave = ParseFails({flag, zero});
      EXPECT_NE(leave.code, 0) << flag;
      EXPECT_THAT(leave.text, AllOf(HasSubstr(flag), HasSubstr(zero), HasSubstr("above zero")));
    }
    ParseOk({flag, "1ms"});
  }
  EXPECT_EQ(ParseOk({"--max-wait", "0"}).server.limits.max_wait, absl::ZeroDuration());
}

TEST_F(OptionsTest, Flags_WithoutMeaning_AreErrorsThatSayWhich) {
  const std::vector<std::vector<std::string>> cases = {
      {"--memory-limit", "many"},
      {"--memory-limit", "-1"},
      {"--memory-limit", "99999999TiB"},
      {"--memory-limit", "1.5GiB"},
      {"--max-wait", "soon"},
      {"--max-wait", "-1s"},
      {"--max-wait", "inf"},
      {"--backend", "tpu"},
      {"--threads", "-1"},
      {"--log-format", "xml"},
      {"--max-uploads", "1e3"},
      {"--max-tensors", "-1"},
      {"--no-such-flag"},
      {"--grpc-address"},
      {"stray"},
      {"--memory-limit-bytes", "1"},
  };
  for (const auto& args : cases) {
    const ExitWith leave = ParseFails(args);
    EXPECT_NE(leave.code, 0) << args[0];
    EXPECT_THAT(leave.text, HasSubstr(args[0])) << args[0];
  }
}

TEST_F(OptionsTest, Durability_WithAndWithoutADirectory) {
  EXPECT_EQ(ParseOk({}).server.durability, Durability::kMemory);
  EXPECT_EQ(ParseOk({"--durability", "memory"}).server.durability, Durability::kMemory);
  const Options given = ParseOk({"--data-dir", "/d"});
  EXPECT_EQ(given.server.data_dir, "/d");
  EXPECT_EQ(given.server.durability, Durability::kSync);
  EXPECT_EQ(ParseOk({"--data-dir", "/d", "--durability", "async"}).server.durability, Durability::kAsync);
  EXPECT_EQ(ParseOk({"--data-dir", "/d", "--durability=memory"}).server.durability, Durability::kMemory);
  for (const std::string level : {"sync", "async"}) {
    const ExitWith leave = ParseFails({"--durability", level});
    EXPECT_NE(leave.code, 0);
    EXPECT_THAT(leave.text, AllOf(HasSubstr("--durability"), HasSubstr("--data-dir")));
  }
  const std::string config = WriteConfig("data-dir = '/from/file'\ndurability = 'async'\n");
  EXPECT_EQ(ParseOk({"--config", config}).server.data_dir, "/from/file");
  EXPECT_EQ(ParseOk({"--config", config}).server.durability, Durability::kAsync);
}

TEST_F(OptionsTest, Help_NamesEveryLimitOfTheServer) {
  const std::string help = ParseFails({"--help"}).text;
  const google::protobuf::Descriptor* limits = v1::ServerLimits::descriptor();
  for (int i = 0; i < limits->field_count(); ++i) {
    std::string flag = "--" + limits->field(i)->name();
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (flag == "--memory-limit-bytes") flag = "--memory-limit";  // whose value says the unit
    EXPECT_THAT(help, HasSubstr(flag));
  }
}

}  // namespace
}  // namespace sparseagg::service
