// Damage to the files of a data directory: the start is refused, or everything that was acknowledged is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sparseagg/v1/models.grpc.pb.h"
#include "tests/service/support/stored_server.h"
#include "tests/service/support/task_client.h"
#include "tests/service/support/wire.h"
#include "tests/support/generators.h"
#include "tests/support/random.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Rng;
using Code = absl::StatusCode;
namespace fs = std::filesystem;

class DamageTest : public StoredServer {
 protected:
  static constexpr uint64_t kTuples = 20'000;  // of a chunk that goes to a file
  static constexpr int kCopies = 60;

  explicit DamageTest(Durability durability = Durability::kSync) : StoredServer(durability) {}

  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  // Rounds in all states, tasks in some, and a model, with chunks of both kinds, over several runs of the server.
  void MakeContent() {
    for (int run = 0; run < 3; ++run) {
      for (const char* state : {"open", "done", "failed", "cancelled"}) {
        v1::RoundSpec spec = SumSpec(2 * kTuples);
        if (std::string(state) == "failed") spec.set_min_submissions(9);
        const auto round = client().Create(spec, absl::StrCat(state, "-", run));
        ASSERT_THAT(round, IsOk());
        for (const char* who : {"a", "b", "c"}) {
          ASSERT_THAT(client().SubmitStream({MakeChunk(round->name(), who, {1, 2}, {1, 2})}), IsOk());
        }
        std::vector<uint32_t> keys(kTuples);
        std::iota(keys.begin(), keys.end(), 0);
        const std::vector<float> values(keys.size(), 4);
        ASSERT_THAT(client().SubmitStream({MakeChunk(round->name(), "large", keys, values)}), IsOk());
        if (std::string(state) == "cancelled") {
          ASSERT_THAT(client().Cancel(round->name(), "enough"), IsOk());
        } else if (std::string(state) != "open") {
          ASSERT_THAT(client().Finish(round->name()), IsOk());
        }
      }
      MakeVersion(run);
      TaskClient tasks(client().channel());
      v1::TaskSpec spec;
      spec.set_payload(std::string(3000, 'x'));
      for (const char* id : {"completed", "leased", "open"}) {
        spec.add_labels(absl::StrCat("run-", run));
        ASSERT_THAT(tasks.Create(absl::StrCat(id, "-", run), spec), IsOk());
        spec.clear_labels();
      }
      const std::vector<std::string> labels = {absl::StrCat("run-", run)};
      for (const char* who : {"x", "y"}) {
        ASSERT_THAT(tasks.Lease(who, absl::ZeroDuration(), absl::Minutes(1), labels), IsOk());
      }
      ASSERT_THAT(tasks.Complete(absl::StrCat("completed-", run), "x", "result"), IsOk());
      if (run == 0) Restart();
      if (run == 1) {
        Kill();
        ASSERT_THAT(Start(), IsOk());
      }
    }
    content_ = Content();
    EXPECT_GT(content_.size(), 1000);
  }

  // Makes a version of the model, which begins with rows of a round.
  void MakeVersion(int run) {
    const auto models = v1::Models::NewStub(client().channel());
    v1::CreateModelRequest create;
    create.set_model_id("m");
    v1::ModelTensor& tensor = *create.mutable_spec()->add_tensors();
    tensor.set_name("v");
    tensor.set_dtype(v1::DTYPE_FLOAT32);
    tensor.set_num_rows(2 * kTuples);
    create.set_initial_round("rounds/done-0");
    v1::ApplyRoundRequest apply;
    apply.set_model("models/m");
    apply.set_round(absl::StrCat("rounds/done-", run));
    apply.set_base_version(static_cast<uint64_t>(run));
    grpc::ClientContext contexts[2];
    v1::Model model;
    v1::ModelVersion version;
    ASSERT_TRUE(models->CreateModel(&contexts[0], create, &model).ok());
    ASSERT_TRUE(models->ApplyRound(&contexts[1], apply, &version).ok());
  }

  // Versions and rows of the model.
  std::string ModelContent() {
    const auto models = v1::Models::NewStub(client().channel());
    v1::GetModelRequest get;
    get.set_model("models/m");
    grpc::ClientContext context;
    v1::Model model;
    EXPECT_TRUE(models->GetModel(&context, get, &model).ok());
    std::string text;
    for (const v1::ModelVersion& version : model.versions()) text += version.DebugString();
    v1::ReadRowsRequest read;
    read.set_model("models/m");
    do {
      grpc::ClientContext of_page;
      v1::RowsPage page;
      EXPECT_TRUE(models->ReadRows(&of_page, read, &page).ok());
      text += page.slice().SerializeAsString();
      read.set_page_token(page.next_page_token());
    } while (!read.page_token().empty());
    return text;
  }

  // All that was acknowledged, as text.
  std::string Content() {
    std::string text;
    v1::ListRoundsRequest request;
    grpc::ClientContext context;
    v1::ListRoundsResponse rounds;
    const grpc::Status listed = client().stub().ListRounds(&context, request, &rounds);
    EXPECT_TRUE(listed.ok()) << listed.error_message();
    for (const v1::Round& round : rounds.rounds()) {
      absl::StrAppend(&text, round.name(), " ", v1::RoundState_Name(round.state()), " ", round.state_reason(), "\n");
      v1::ListSubmissionsRequest of_round;
      of_round.set_round(round.name());
      const auto submissions = client().Submissions(of_round);
      EXPECT_THAT(submissions, IsOk());
      if (submissions.ok()) text += submissions->DebugString();
      if (round.state() != v1::ROUND_STATE_DONE) continue;
      text += client().ResultBytes(round.name());
    }
    text += ModelContent();
    const auto tasks = TaskClient(client().channel()).List();
    EXPECT_THAT(tasks, IsOk());
    if (tasks.ok()) text += tasks->DebugString();
    return text;
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(options_.data_dir)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  std::string LargestLog() const {
    std::string largest;
    for (const std::string& path : Files()) {
      if (absl::EndsWith(path, ".log") && (largest.empty() || fs::file_size(path) > fs::file_size(largest))) {
        largest = path;
      }
    }
    return largest;
  }

  std::string Manifest() const {
    for (const std::string& path : Files()) {
      if (absl::StrContains(path, "/MANIFEST-")) return path;
    }
    return "";
  }

  // Returns: what was done to which file.
  std::string Damage(const std::vector<std::string>& files, Rng& rng) {
    const std::string& path = files[rng.Below(files.size())];
    std::string bytes = Bytes(path);
    const size_t size = bytes.size();
    const uint64_t kind = rng.Below(5);
    if (kind == 0) {
      fs::remove(path);
      return absl::StrCat("deleted ", path);
    }
    if (kind == 1) {
      const std::string& other = files[rng.Below(files.size())];
      const std::string its_bytes = Bytes(other);
      Write(path, its_bytes);
      Write(other, bytes);
      return absl::StrCat("swapped ", path, " and ", other);
    }
    if (size == 0) {
      Write(path, "x");
      return absl::StrCat("a byte into the empty ", path);
    }
    const size_t at = rng.Below(size);
    if (kind == 2) {
      Write(path, bytes.substr(0, at));
      return absl::StrCat("cut ", path, " from ", size, " to ", at);
    }
    if (kind == 3) {
      const size_t length = 1 + rng.Below(size - at);
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at), length, '\0');
      Write(path, bytes);
      return absl::StrCat(length, " zeros at ", at, " of ", path);
    }
    const uint64_t bit = rng.Below(8);
    bytes[at] = static_cast<char>(bytes[at] ^ 1 << bit);
    Write(path, bytes);
    return absl::StrCat("bit ", bit, " at ", at, " of ", path);
  }

  // Damages one file in each of many copies of the directory. Returns: how many starts were refused.
  int DamageCopies(uint64_t seed, int number) {
    const std::string whole = options_.data_dir;
    int num_refused = 0;
    for (int i = 0; i < number; ++i) {
      Rng rng(seed + static_cast<uint64_t>(i));
      options_.data_dir = folder_ / "copy";
      fs::copy(whole, options_.data_dir, fs::copy_options::recursive);
      const std::string damage = Damage(Files(), rng);
      SCOPED_TRACE(absl::StrCat("seed ", seed + static_cast<uint64_t>(i), ": ", damage));
      const absl::Status started = Start();
      if (started.ok()) {
        EXPECT_EQ(Content(), content_);
        Stop();
      } else {
        ++num_refused;
        // It is refused again, and not emptied by the first start.
        EXPECT_FALSE(Start().ok()) << started;
      }
      fs::remove_all(options_.data_dir);
      if (::testing::Test::HasFailure()) break;
    }
    options_.data_dir = whole;
    return num_refused;
  }

  std::string content_;
};

class AsyncDamageTest : public DamageTest {
 protected:
  AsyncDamageTest() : DamageTest(Durability::kAsync) {}
};

TEST_F(DamageTest, AnyFileAfterAKill_IsRefusedOrDoesNoHarm) {
  const uint64_t seed = testing::TestSeed(20261126);
  MakeContent();
  Kill();
  const int num_refused = DamageCopies(seed, kCopies);
  std::cout << "seed " << seed << ": " << num_refused << " of " << kCopies << " starts refused\n";
  EXPECT_GT(num_refused, kCopies / 4);
}

TEST_F(AsyncDamageTest, AnyFileAfterAStop_IsRefusedOrDoesNoHarm) {
  const uint64_t seed = testing::TestSeed(20261128);
  MakeContent();
  Stop();
  const int num_refused = DamageCopies(seed, kCopies);
  std::cout << "seed " << seed << ": " << num_refused << " of " << kCopies << " starts refused\n";
  EXPECT_GT(num_refused, kCopies / 4);
}

TEST_F(DamageTest, ChunksOfAModel_AreRefusedIfTheyAreDamaged) {
  MakeContent();
  Kill();
  const std::string path = options_.data_dir + "/chunks/5";  // snapshot and log
  const std::string whole = Bytes(path);
  for (size_t at = 0; at < whole.size(); at += whole.size() / 9) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    Write(path, flipped);
    EXPECT_THAT(Start(), Fails(Code::kDataLoss, AllOf(HasSubstr("cannot restore model 'm'"), HasSubstr("is damaged"))))
        << at << " of " << whole.size();
  }
  fs::remove(path);
  EXPECT_THAT(Start(), Fails(Code::kDataLoss, HasSubstr("cannot restore model 'm'")));
  Write(path, whole);
  ASSERT_THAT(Start(), IsOk());
  EXPECT_EQ(Content(), content_);
}

TEST_F(DamageTest, Stop_LeavesAnEmptyLog) {
  MakeContent();
  EXPECT_GT(fs::file_size(LargestLog()), 10'000);
  Stop();
  EXPECT_EQ(fs::file_size(LargestLog()), 0);
  ASSERT_THAT(Start(), IsOk());
  EXPECT_EQ(Content(), content_);
}

// Nothing was synced, so that only the records themselves tell.
TEST_F(AsyncDamageTest, BitInTheMiddleOfTheLog_IsRefused) {
  MakeContent();
  Kill();
  const std::string log = LargestLog();
  const std::string whole = Bytes(log);
  for (const double part : {0.1, 0.5, 0.8}) {
    std::string flipped = whole;
    const auto at = static_cast<size_t>(part * static_cast<double>(whole.size()));
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    Write(log, flipped);
    for (int start = 0; start < 2; ++start) {
      EXPECT_THAT(Start(), Fails(Code::kDataLoss, AllOf(HasSubstr(log), HasSubstr("and a whole record behind it"))));
    }
    // The disk is well again.
    Write(log, whole);
  }
  ASSERT_THAT(Start(), IsOk());
  EXPECT_EQ(Content(), content_);
}

TEST_F(AsyncDamageTest, TornEndOfTheLog_IsWhatACrashLeaves) {
  MakeContent();
  Kill();
  const std::string log = LargestLog();
  const std::string whole = Bytes(log);
  const std::string data = options_.data_dir;
  for (const bool is_zeroed : {false, true}) {
    options_.data_dir = folder_ / "copy";
    fs::copy(data, options_.data_dir, fs::copy_options::recursive);
    std::string torn = whole.substr(0, whole.size() - 1000);
    if (is_zeroed) torn.resize(whole.size());
    Write(LargestLog(), torn);
    EXPECT_THAT(Start(), IsOk());
    Stop();
    fs::remove_all(options_.data_dir);
  }
}

TEST_F(DamageTest, TornEndOfTheManifest_IsWhatACrashLeaves) {
  MakeContent();
  Kill();
  const std::string manifest = Manifest();
  // The last record had no time to reach the disk: its header, or a part of it, and zeros.
  const std::string whole = Bytes(manifest);
  Write(manifest, whole + std::string("abcd\x40\x00\x01xyz", 10) + std::string(61, '\0'));
  ASSERT_THAT(Start(), IsOk());
  EXPECT_EQ(Content(), content_);
}

TEST_F(DamageTest, SyncedPartOfTheManifestIsGone_IsRefusedAndLeftAsItIs) {
  MakeContent();
  Kill();
  const std::string manifest = Manifest();
  const std::string whole = Bytes(manifest);
  for (const bool is_zeroed : {false, true}) {
    std::string damaged = whole.substr(0, whole.size() / 2);
    if (is_zeroed) damaged.resize(whole.size());
    Write(manifest, damaged);
    EXPECT_THAT(Start(), HasCode(Code::kDataLoss));
    EXPECT_EQ(Bytes(manifest), damaged);
  }
  Write(manifest, whole);
  ASSERT_THAT(Start(), IsOk());
  EXPECT_EQ(Content(), content_);
}

TEST_F(DamageTest, SyncedPartOfTheLogIsGone_IsRefused) {
  MakeContent();
  Kill();
  const std::string log = LargestLog();
  const std::string whole = Bytes(log);
  for (const size_t size : {size_t{0}, whole.size() / 10, whole.size() / 2}) {
    Write(log, whole.substr(0, size));
    for (int start = 0; start < 2; ++start) {
      EXPECT_THAT(Start(), Fails(Code::kDataLoss, HasSubstr("that were synced"))) << size;
    }
  }
  fs::remove(log);
  EXPECT_THAT(Start(), HasCode(Code::kDataLoss));
  // An operator accepts what is left.
  Write(log, whole.substr(0, whole.size() / 2));
  Write(options_.data_dir + "/SYNCED", "");
  EXPECT_THAT(Start(), IsOk());
}

TEST_F(DamageTest, DatabaseWithoutItsBegin_IsRefused) {
  MakeContent();
  Kill();
  const std::vector<std::vector<std::string>> missing = {{"SYNCED"}, {"db/CURRENT"}, {"db"}, {"SYNCED", "db"}};
  for (const std::vector<std::string>& names : missing) {
    const std::string data = options_.data_dir + "/";
    for (const std::string& name : names) fs::rename(data + name, folder_ / fs::path(name).filename().string());
    EXPECT_THAT(Start(), HasCode(Code::kDataLoss)) << names.back();
    for (const std::string& name : names) {
      fs::remove_all(data + name);
      fs::rename(folder_ / fs::path(name).filename().string(), data + name);
    }
  }
  ASSERT_THAT(Start(), IsOk());
  EXPECT_EQ(Content(), content_);
}

}  // namespace
}  // namespace sparseagg::service
