// Models over gRPC: what is refused, what a retry gets, waits, streams that drive them, and what a restart keeps.
#include <grpcpp/channel.h>

#include <atomic>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sparseagg/v1/models.grpc.pb.h"
#include "tests/service/support/stored_server.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

class ModelsTest : public StoredServer {
 protected:
  ModelsTest() : StoredServer(Durability::kSync) {
    options_.limits.max_memory_per_tenant = uint64_t{1} << 30;
    Restart();
  }

  template <typename Answer, typename Request>
  using Stub = grpc::Status (v1::Models::Stub::*)(grpc::ClientContext*, const Request&, Answer*);
  template <typename Answer, typename Request>
  absl::StatusOr<Answer> Call(Stub<Answer, Request> method, const Request& request) {
    const auto stub = v1::Models::NewStub(client().channel());
    grpc::ClientContext context;
    Answer answer;
    const grpc::Status status = ((*stub).*method)(&context, request, &answer);
    if (!status.ok()) return FromGrpc(status);
    return answer;
  }

  // One tensor "v" of 100 rows of float32, SGD with learning rate 1, zeros at first.
  static v1::CreateModelRequest Request(const std::string& id = "m") {
    v1::CreateModelRequest request;
    request.set_model_id(id);
    v1::ModelTensor& tensor = *request.mutable_spec()->add_tensors();
    tensor.set_name("v");
    tensor.set_dtype(v1::DTYPE_FLOAT32);
    tensor.set_num_rows(100);
    return request;
  }
  absl::StatusOr<v1::Model> CreateModel(const v1::CreateModelRequest& request = Request()) {
    return Call(&v1::Models::Stub::CreateModel, request);
  }
  absl::StatusOr<v1::Model> Get(std::optional<uint64_t> after = std::nullopt, const std::string& id = "m") {
    v1::GetModelRequest request;
    request.set_model("models/" + id);
    if (after.has_value()) request.set_after_version(*after);
    return Call(&v1::Models::Stub::GetModel, request);
  }
  absl::StatusOr<v1::ModelVersion> Apply(const std::string& round, uint64_t base,
                                         std::optional<double> rate = std::nullopt, const std::string& id = "m") {
    v1::ApplyRoundRequest request;
    request.set_model("models/" + id);
    request.set_round(round);
    request.set_base_version(base);
    if (rate.has_value()) request.set_learning_rate(*rate);
    return Call(&v1::Models::Stub::ApplyRound, request);
  }
  absl::StatusOr<google::protobuf::Empty> DeleteModel() {
    v1::DeleteModelRequest request;
    request.set_model("models/m");
    return Call(&v1::Models::Stub::DeleteModel, request);
  }
  static v1::ReadRowsRequest ReadOf(const std::vector<uint32_t>& keys) {
    v1::ReadRowsRequest request;
    request.set_model("models/m");
    request.mutable_keys()->set_key_encoding(v1::KEY_ENCODING_U32);
    request.mutable_keys()->set_keys(std::string(reinterpret_cast<const char*>(keys.data()), 4 * keys.size()));
    return request;
  }
  absl::StatusOr<v1::RowsPage> Read(const v1::ReadRowsRequest& request) {
    return Call(&v1::Models::Stub::ReadRows, request);
  }
  // The values of the page of a request.
  std::vector<float> Values(const v1::ReadRowsRequest& request) {
    const auto page = Read(request);
    EXPECT_THAT(page, IsOk());
    if (!page.ok()) return {};
    return Unpacked<float>(page->slice().values());
  }
  std::vector<float> ValuesAt(uint64_t version, const std::vector<uint32_t>& keys) {
    v1::ReadRowsRequest request = ReadOf(keys);
    request.set_version(version);
    return Values(request);
  }

  // A round "rounds/ID" that is done, with one key.
  std::string Round(const std::string& id, uint32_t key, float value, uint64_t num_rows = 100) {
    const std::string name = Create(SumSpec(num_rows), id);
    EXPECT_THAT(client().SubmitUnary({MakeChunk(name, "a", {key}, {value})}), IsOk());
    EXPECT_THAT(client().Finish(name), IsOk());
    return name;
  }

  // A stream "s" of versions of one commit.
  void CreateStream(absl::Duration ttl = absl::Hours(1)) {
    v1::CreateStreamRequest request;
    request.set_stream_id("s");
    *request.mutable_spec()->mutable_round() = SumSpec(100);
    request.mutable_spec()->mutable_round()->mutable_result_ttl()->set_seconds(absl::ToInt64Seconds(ttl));
    request.mutable_spec()->set_buffer(1);
    request.mutable_spec()->mutable_staleness_weights()->Add(1.0);
    request.mutable_spec()->mutable_staleness_weights()->Add(1.0);
    grpc::ClientContext context;
    v1::Stream stream;
    EXPECT_THAT(FromGrpc(client().stub().CreateStream(&context, request, &stream)), IsOk());
  }
  void Commit(const std::string& submission, uint64_t base, uint32_t key, float value) {
    v1::UpdateChunk chunk = MakeChunk("streams/s", "a", {key}, {value});
    chunk.set_submission_id(submission);
    chunk.set_base_version(base);
    EXPECT_THAT(client().SubmitUnary({chunk}), IsOk());
  }
  static v1::CreateModelRequest OfStream() {
    v1::CreateModelRequest request = Request();
    request.mutable_spec()->set_stream("streams/s");
    return request;
  }
};

TEST_F(ModelsTest, Apply_MakesVersionsThatCanBeReadWhileTheyAreKept) {
  ASSERT_THAT(CreateModel(), IsOk());
  for (uint64_t i = 0; i < 4; ++i) {
    const auto made = Apply(Round("r" + std::to_string(i), 7, 1.0F), i);
    ASSERT_THAT(made, IsOk());
    EXPECT_EQ(made->version(), i + 1);
    EXPECT_EQ(made->num_rows(), 1U);
  }
  EXPECT_THAT(ValuesAt(2, {7}), ElementsAre(2.0F));
  EXPECT_THAT(ValuesAt(4, {7}), ElementsAre(4.0F));
  v1::ReadRowsRequest old = ReadOf({7});
  old.set_version(1);
  EXPECT_THAT(Read(old),
              Fails(Code::kFailedPrecondition, HasSubstr("version 1 is not kept any more; the oldest version is 2")));
  old.set_version(9);
  EXPECT_THAT(Read(old), Fails(Code::kInvalidArgument, HasSubstr("version 9 does not exist yet; the newest is 4")));
  v1::ReadRowsRequest untouched = ReadOf({7, 8});
  EXPECT_EQ(Read(untouched)->untouched(), std::string("\x02"));
  untouched.set_with_initial(true);
  EXPECT_THAT(Values(untouched), ElementsAre(4.0F, 0.0F));
  const auto model = Get();
  EXPECT_EQ(model->version(), 4U);
  EXPECT_EQ(model->versions(model->versions_size() - 1).round(), "rounds/r3");
}

TEST_F(ModelsTest, Apply_OfTheSameBaseAgain_IsTheSameVersionOrRefused) {
  ASSERT_THAT(CreateModel(), IsOk());
  const std::string a = Round("a", 7, 1.0F);
  const std::string b = Round("b", 7, 10.0F);
  const auto first = Apply(a, 0);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(client().Delete(a), IsOk());
  EXPECT_EQ(Apply(a, 0)->SerializeAsString(), first->SerializeAsString());
  EXPECT_THAT(Apply(b, 0),
              Fails(Code::kFailedPrecondition, HasSubstr("version 1 was made of rounds/a, not of rounds/b")));
  EXPECT_THAT(Apply(b, 5), Fails(Code::kInvalidArgument, HasSubstr("version 5 does not exist yet; the newest is 1")));
  EXPECT_THAT(Apply("rounds/gone", 1), Fails(Code::kNotFound, HasSubstr("rounds/gone")));
  EXPECT_THAT(Apply("", 1), Fails(Code::kInvalidArgument, HasSubstr("nothing to apply")));
  EXPECT_THAT(Apply("", 1, -1.0), Fails(Code::kInvalidArgument, HasSubstr("learning_rate -1")));
  const auto rate = Apply("", 1, 0.5);
  ASSERT_THAT(rate, IsOk());
  EXPECT_EQ(rate->num_rows(), 0U);
  ASSERT_THAT(Apply(b, 2), IsOk());
  EXPECT_THAT(ValuesAt(3, {7}), ElementsAre(6.0F));
}

TEST_F(ModelsTest, Apply_OfTwoRoundsToOneBase_OneWins) {
  ASSERT_THAT(CreateModel(), IsOk());
  for (uint64_t base = 0; base < 10; ++base) {
    const std::string names[] = {Round("a" + std::to_string(base), 7, 1.0F),
                                 Round("b" + std::to_string(base), 7, 1.0F)};
    absl::StatusOr<v1::ModelVersion> made[2];
    OnThreads(2, [&](int i) { made[i] = Apply(names[i], base); });
    const int winner = made[0].ok() ? 0 : 1;
    ASSERT_THAT(made[winner], IsOk());
    EXPECT_THAT(made[1 - winner], Fails(Code::kFailedPrecondition, HasSubstr("was made of " + names[winner])));
  }
  EXPECT_THAT(ValuesAt(10, {7}), ElementsAre(10.0F));
}

TEST_F(ModelsTest, Reads_WhileVersionsAreMade_AreOfOneVersion) {
  ASSERT_THAT(CreateModel(), IsOk());
  std::vector<uint32_t> keys(100);
  std::iota(keys.begin(), keys.end(), 0U);
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) {
    names.push_back(Create(SumSpec(100), "r" + std::to_string(i)));
    ASSERT_THAT(client().SubmitUnary({MakeChunk(names.back(), "a", keys, std::vector<float>(100, 1.0F))}), IsOk());
    ASSERT_THAT(client().Finish(names.back()), IsOk());
  }
  std::atomic<bool> is_done = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!is_done) {
        v1::ReadRowsRequest read = ReadOf(keys);
        read.set_with_initial(true);
        const auto page = Read(read);
        ASSERT_THAT(page, IsOk());
        const std::vector<float> wanted(100, static_cast<float>(page->version()));
        EXPECT_EQ(Unpacked<float>(page->slice().values()), wanted);
      }
    });
  }
  for (uint64_t base = 0; base < names.size(); ++base) EXPECT_THAT(Apply(names[base], base), IsOk());
  is_done = true;
  for (std::thread& reader : readers) reader.join();
}

TEST_F(ModelsTest, Restart_KeepsEveryVersionThatWasAcknowledged) {
  v1::CreateModelRequest request = Request();
  request.mutable_spec()->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_FEDADAM);
  ASSERT_THAT(CreateModel(request), IsOk());
  v1::CreateModelRequest reference = request;  // which no restart disturbs
  reference.set_model_id("reference");
  std::vector<std::vector<float>> found;
  for (uint64_t i = 0; i < 6; ++i) {
    const std::string round =
        Round("r" + std::to_string(i), static_cast<uint32_t>(i % 2), 1.0F + static_cast<float>(i));
    ASSERT_THAT(Apply(round, i, i == 3 ? std::optional(0.25) : std::nullopt), IsOk());
    found.push_back(ValuesAt(i + 1, {0, 1}));
    if (i % 2 == 0) continue;
    Kill();
    MustStart();
    EXPECT_EQ(Get()->version(), i + 1);
    EXPECT_EQ(ValuesAt(i + 1, {0, 1}), found.back());
    EXPECT_EQ(Apply(round, i)->version(), i + 1);
  }
  ASSERT_THAT(CreateModel(reference), IsOk());
  for (uint64_t i = 0; i < 6; ++i) {
    const auto rate = i == 3 ? std::optional(0.25) : std::nullopt;
    ASSERT_THAT(Apply("rounds/r" + std::to_string(i), i, rate, "reference"), IsOk());
    v1::ReadRowsRequest read = ReadOf({0, 1});
    read.set_model("models/reference");
    EXPECT_EQ(Values(read), found[i]) << "version " << i + 1;
  }
  EXPECT_THAT(CreateModel(request), IsOk());
  ASSERT_THAT(DeleteModel(), IsOk());
  Restart();
  EXPECT_THAT(Get(), HasCode(Code::kNotFound));
  EXPECT_THAT(Get(std::nullopt, "reference"), IsOk());
}

TEST_F(ModelsTest, Create_OfAnInitialRound_HasItsRows) {
  v1::CreateModelRequest request = Request();
  request.set_initial_round("rounds/none");
  EXPECT_THAT(CreateModel(request), Fails(Code::kNotFound, HasSubstr("no round 'none'")));
  request.set_initial_round(Create(SumSpec(100), "open"));
  EXPECT_THAT(CreateModel(request), Fails(Code::kFailedPrecondition, HasSubstr("the round is OPEN")));
  request.set_initial_round(Round("wide", 7, 2.5F, 200));
  EXPECT_THAT(CreateModel(request), Fails(Code::kInvalidArgument, HasSubstr("tensor 'v'")));
  EXPECT_THAT(Get(), HasCode(Code::kNotFound));
  request.set_initial_round(Round("first", 7, 2.5F));
  ASSERT_THAT(CreateModel(request), IsOk());
  EXPECT_THAT(ValuesAt(0, {7}), ElementsAre(2.5F));
  request.clear_initial_round();
  EXPECT_THAT(CreateModel(request), IsOk());  // a retry
  request.mutable_spec()->set_keep_versions(9);
  EXPECT_THAT(CreateModel(request), Fails(Code::kAlreadyExists, HasSubstr("exists already, with another spec")));
  Kill();
  MustStart();
  EXPECT_THAT(ValuesAt(0, {7}), ElementsAre(2.5F));
  EXPECT_EQ(Get()->versions(0).round(), "rounds/first");
}

TEST_F(ModelsTest, BadInput_IsRefusedAndChangesNothing) {
  v1::CreateModelRequest bad = Request();
  bad.mutable_spec()->mutable_tensors(0)->mutable_optimizer()->set_momentum(0.5);
  EXPECT_THAT(CreateModel(bad), Fails(Code::kInvalidArgument, AllOf(HasSubstr("tensor 'v'"), HasSubstr("momentum"))));
  bad = Request();
  bad.mutable_spec()->mutable_optimizer()->set_learning_rate(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(CreateModel(bad), Fails(Code::kInvalidArgument, HasSubstr("learning_rate")));
  bad = Request();
  bad.mutable_spec()->mutable_tensors(0)->set_row_width(1 << 20);
  EXPECT_THAT(CreateModel(bad), Fails(Code::kResourceExhausted, HasSubstr("max_row_width")));
  bad = Request();
  bad.mutable_spec()->mutable_tensors(0)->clear_dtype();
  EXPECT_THAT(CreateModel(bad), Fails(Code::kInvalidArgument, HasSubstr("dtype is missing")));
  bad = Request();
  bad.mutable_spec()->clear_tensors();
  EXPECT_THAT(CreateModel(bad), HasCode(Code::kInvalidArgument));
  bad = Request();
  bad.mutable_spec()->set_stream("streams/none");
  EXPECT_THAT(CreateModel(bad), HasCode(Code::kNotFound));
  EXPECT_THAT(Get(), Fails(Code::kNotFound, HasSubstr("no model 'm'")));

  ASSERT_THAT(CreateModel(), IsOk());
  ASSERT_THAT(Apply(Round("r", 7, 1.0F), 0), IsOk());
  const std::string before = Get()->SerializeAsString();
  EXPECT_THAT(Read(ReadOf({7, 100})), Fails(Code::kInvalidArgument, HasSubstr("tensor 'v': key 100")));
  v1::ReadRowsRequest read = ReadOf({7});
  read.set_tensor("w");
  EXPECT_THAT(Read(read), Fails(Code::kInvalidArgument, HasSubstr("'w'")));
  read = ReadOf(std::vector<uint32_t>(16385));
  EXPECT_THAT(Read(read), Fails(Code::kResourceExhausted, HasSubstr("a read of 16385 keys; at most 16384")));
  read = ReadOf(std::vector<uint32_t>(900'000));
  EXPECT_THAT(Read(read), HasCode(Code::kResourceExhausted));
  read = ReadOf({7});
  read.mutable_keys()->mutable_keys()->pop_back();
  EXPECT_THAT(Read(read), HasCode(Code::kInvalidArgument));
  read.mutable_keys()->set_key_encoding(v1::KEY_ENCODING_UNSPECIFIED);
  EXPECT_THAT(Read(read), Fails(Code::kInvalidArgument, HasSubstr("known are U32")));
  read = ReadOf({7});
  read.set_since(2);
  EXPECT_THAT(Read(read), HasCode(Code::kInvalidArgument));
  read.Clear();
  read.set_model("models/m");
  read.set_page_token("0-0-0-all-1-x");
  EXPECT_THAT(Read(read), Fails(Code::kInvalidArgument, HasSubstr("page_token")));
  read.set_model("rounds/m");
  EXPECT_THAT(Read(read), Fails(Code::kInvalidArgument, HasSubstr("model names are models/ID")));
  // Steps.
  EXPECT_THAT(Apply(Round("wide", 7, 1.0F, 200), 1), Fails(Code::kInvalidArgument, HasSubstr("tensor 'v'")));
  EXPECT_THAT(Apply(Create(SumSpec(100), "open"), 1), Fails(Code::kFailedPrecondition, HasSubstr("OPEN")));
  v1::RoundSpec of_cluster = SumSpec(100);
  of_cluster.mutable_cluster()->add_servers()->set_address("a:1");
  of_cluster.mutable_cluster()->add_servers()->set_address("a:2");
  EXPECT_THAT(Apply(Create(of_cluster, "cluster"), 1), Fails(Code::kUnimplemented, HasSubstr("round 'cluster'")));
  EXPECT_EQ(Get()->SerializeAsString(), before);
  ASSERT_THAT(Apply(Round("large", 3, std::numeric_limits<float>::max()), 1), IsOk());
  EXPECT_THAT(Apply(Round("larger", 3, std::numeric_limits<float>::max()), 2),
              Fails(Code::kOutOfRange, AllOf(HasSubstr("tensor 'v'"), HasSubstr("key 3"))));
  EXPECT_EQ(Get()->version(), 2U);
  EXPECT_THAT(ValuesAt(1, {7}), ElementsAre(1.0F));
}

TEST_F(ModelsTest, Reads_AreRestrictedByThePolicy) {
  v1::CreateModelRequest request = Request();
  request.mutable_spec()->set_reads(v1::READS_POLICY_BLOCKS);
  request.mutable_spec()->mutable_tensors(0)->set_num_rows(40'000);
  ASSERT_THAT(CreateModel(request), IsOk());
  EXPECT_THAT(Read(ReadOf({7})),
              Fails(Code::kFailedPrecondition, HasSubstr("the model allows reads of whole blocks of 16384 keys only")));
  v1::ReadRowsRequest read;
  read.set_model("models/m");
  read.mutable_keys()->set_key_encoding(v1::KEY_ENCODING_IMPLICIT);
  read.mutable_keys()->set_first_key(16384);
  read.mutable_keys()->set_num_keys(16384);
  EXPECT_THAT(Read(read), IsOk());
  read.mutable_keys()->set_num_keys(16383);
  EXPECT_THAT(Read(read), HasCode(Code::kFailedPrecondition));
  read.mutable_keys()->set_first_key(32768);
  read.mutable_keys()->set_num_keys(40'000 - 32768);
  EXPECT_THAT(Read(read), IsOk());
  read.clear_keys();
  EXPECT_THAT(Read(read), IsOk());
  read.mutable_range()->set_begin(1);
  EXPECT_THAT(Read(read), HasCode(Code::kFailedPrecondition));
}

TEST_F(ModelsTest, ReadOfARange_PagesAreOfOneVersion) {
  ASSERT_THAT(CreateModel(), IsOk());
  const std::string name = Create(SumSpec(100), "r");
  ASSERT_THAT(client().SubmitUnary({MakeChunk(name, "a", {1, 5, 9, 50}, {1.0F, 2.0F, 3.0F, 4.0F})}), IsOk());
  ASSERT_THAT(client().Finish(name), IsOk());
  ASSERT_THAT(Apply(name, 0), IsOk());
  v1::ReadRowsRequest read;
  read.set_model("models/m");
  read.set_max_page_bytes(24);  // two rows
  const auto first = Read(read);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->slice().num_keys(), 2U);
  ASSERT_THAT(Apply(Round("later", 9, 1.0F), 1), IsOk());
  read.set_page_token(first->next_page_token());
  EXPECT_THAT(Values(read), ElementsAre(3.0F, 4.0F));
  EXPECT_EQ(Read(read)->version(), 1U);
  EXPECT_THAT(Read(read)->next_page_token(), IsEmpty());
  read.mutable_range()->set_end(60);
  EXPECT_THAT(Read(read), Fails(Code::kInvalidArgument, HasSubstr("another read")));
  read.clear_range();
  read.set_version(2);
  EXPECT_THAT(Read(read), Fails(Code::kInvalidArgument, HasSubstr("another read")));
}

TEST_F(ModelsTest, Get_WaitsForTheNextVersionOrTheEnd) {
  ASSERT_THAT(CreateModel(), IsOk());
  const std::string round = Round("r", 7, 1.0F);
  absl::StatusOr<v1::Model> next;
  std::thread waiter([&] { next = Get(0); });
  EXPECT_THAT(Apply(round, 0), IsOk());
  waiter.join();
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(next->version(), 1U);
  waiter = std::thread([&] { next = Get(1); });
  EXPECT_THAT(DeleteModel(), IsOk());
  waiter.join();
  EXPECT_THAT(next, HasCode(Code::kNotFound));
  ASSERT_THAT(CreateModel(), IsOk());
  waiter = std::thread([&] { next = Get(0); });
  server().Drain();
  waiter.join();
  EXPECT_THAT(next, Fails(Code::kUnavailable, HasSubstr("shutting down")));
}

TEST_F(ModelsTest, Memory_CountsForTheTenant) {
  ASSERT_THAT(CreateModel(), IsOk());
  MemoryBudget& budget = server().context().tenants.Of(kDefaultTenant).budget;
  const std::string round = Round("r", 7, 1.0F);
  const uint64_t before = budget.reserved();
  ASSERT_THAT(Apply(round, 0), IsOk());
  EXPECT_GT(budget.reserved(), before);
  EXPECT_EQ(budget.reserved() - before, Get()->memory_bytes());
}

TEST_F(ModelsTest, Stream_DrivesTheModelVersionByVersion) {
  CreateStream();
  ASSERT_THAT(CreateModel(OfStream()), IsOk());
  for (uint64_t i = 0; i < 3; ++i) {
    Commit(std::to_string(i), i, 7, 1.0F);
    const auto model = Get(i);
    ASSERT_THAT(model, IsOk());
    EXPECT_EQ(model->version(), i + 1);
    EXPECT_EQ(model->versions(model->versions_size() - 1).round(), "rounds/s.v" + std::to_string(i + 1));
  }
  EXPECT_THAT(ValuesAt(3, {7}), ElementsAre(3.0F));
  EXPECT_THAT(Apply("rounds/s.v1", 3),
              Fails(Code::kFailedPrecondition, HasSubstr("the model's versions are made by streams/s")));
  v1::CreateModelRequest second = OfStream();
  second.set_model_id("second");
  EXPECT_THAT(CreateModel(second), Fails(Code::kFailedPrecondition, HasSubstr("drives the model 'm' already")));
  EXPECT_THAT(Get(std::nullopt, "second"), HasCode(Code::kNotFound));
  // A step that overflows makes an empty version, so that the numbers stay the same.
  Commit("x", 3, 9, std::numeric_limits<float>::max());
  Commit("y", 3, 9, std::numeric_limits<float>::max());
  ASSERT_THAT(Get(3), IsOk());
  const auto model = Get(4);
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ(model->version(), 5U);
  EXPECT_THAT(model->versions(model->versions_size() - 1).empty_reason(), HasSubstr("key 9"));
  Kill();
  MustStart();
  EXPECT_EQ(Get()->version(), 5U);
  Commit("z", 5, 7, 1.0F);
  ASSERT_THAT(Get(5), IsOk());
  EXPECT_THAT(ValuesAt(6, {7}), ElementsAre(4.0F));
  // The stream goes on without the model.
  ASSERT_THAT(DeleteModel(), IsOk());
  Commit("zz", 6, 7, 1.0F);
}

TEST_F(ModelsTest, Stream_FailedVersion_MakesAnEmptyOne) {
  CreateStream();
  ASSERT_THAT(CreateModel(OfStream()), IsOk());
  hooks_.finish = [] { return absl::InternalError("no sum"); };
  Commit("0", 0, 7, 1.0F);
  ASSERT_THAT(Get(0), IsOk());
  hooks_.finish = [] { return absl::OkStatus(); };
  Commit("1", 1, 7, 1.0F);
  ASSERT_THAT(Get(1), IsOk());
  const auto model = Get();
  EXPECT_EQ(model->version(), 2U);
  EXPECT_THAT(model->versions(1).empty_reason(), HasSubstr("no sum"));
  EXPECT_THAT(ValuesAt(2, {7}), ElementsAre(1.0F));
}

TEST_F(ModelsTest, Stream_WithoutMemory_KeepsTheVersionBeyondItsTimeAndTriesAgain) {
  CreateStream(absl::Minutes(1));
  ASSERT_THAT(CreateModel(OfStream()), IsOk());
  const auto stream = server().streams().Find(kDefaultTenant, "s");
  const auto model = server().models().Find(kDefaultTenant, "m");
  ASSERT_THAT(stream, IsOk());
  ASSERT_THAT(model, IsOk());
  MemoryBudget& budget = server().context().tenants.Of(kDefaultTenant).budget;
  const uint64_t all = budget.limit();
  hooks_.finish = [&] {
    budget.Reserve(all);
    return absl::OkStatus();
  };
  Commit("0", 0, 7, 1.0F);
  while ((*model)->waiting_reason().empty()) std::this_thread::yield();
  EXPECT_THAT(Get()->waiting_reason(), HasSubstr("a version of the model needs"));
  EXPECT_EQ((*stream)->LatestVersion(), 0U);
  Advance(absl::Minutes(2));
  clock_.AwaitDue(server().context().timer);
  EXPECT_THAT(client().Get("rounds/s.v1"), IsOk());
  budget.Release(all);
  Advance(absl::Seconds(2));
  ASSERT_THAT(Get(0), IsOk());
  EXPECT_THAT(ValuesAt(1, {7}), ElementsAre(1.0F));
  while ((*stream)->LatestVersion() != 1U) std::this_thread::yield();
  while (client().Get("rounds/s.v1").ok()) std::this_thread::yield();  // it expires now
  EXPECT_THAT(Get()->waiting_reason(), IsEmpty());
}

TEST_F(ModelsTest, Stream_RestartWithAVersionThatIsNotApplied_AppliesIt) {
  CreateStream(absl::Minutes(1));
  ASSERT_THAT(CreateModel(OfStream()), IsOk());
  // Merged by the restart after version 1, which would expire meanwhile if nobody kept it.
  for (int i = 0; i < 20; ++i) Round("later-" + std::to_string(i), 7, 1.0F);
  MemoryBudget& budget = server().context().tenants.Of(kDefaultTenant).budget;
  hooks_.finish = [&] {
    budget.Reserve(budget.limit());
    return absl::OkStatus();
  };
  Commit("0", 0, 7, 1.0F);
  while (Get()->waiting_reason().empty()) std::this_thread::yield();
  hooks_.finish = [] { return absl::OkStatus(); };
  Advance(absl::Minutes(2));  // beyond its result_ttl: this run and the next one keep it for the model
  options_.limits.max_memory_per_tenant = 1 << 18;
  Restart();
  while (Get()->waiting_reason().empty()) std::this_thread::yield();
  EXPECT_THAT(client().Get("rounds/s.v1"), IsOk());
  options_.limits.max_memory_per_tenant = 1 << 30;
  Restart();
  ASSERT_THAT(Get(0), IsOk());
  EXPECT_THAT(ValuesAt(1, {7}), ElementsAre(1.0F));
}

TEST_F(ModelsTest, Stream_Deleted_LeavesTheModelAsItIs) {
  CreateStream();
  ASSERT_THAT(CreateModel(OfStream()), IsOk());
  Commit("0", 0, 7, 1.0F);
  ASSERT_THAT(Get(0), IsOk());
  ASSERT_THAT(server().streams().Delete(kDefaultTenant, "s"), IsOk());
  while (Get()->waiting_reason().empty()) std::this_thread::yield();
  EXPECT_THAT(ValuesAt(1, {7}), ElementsAre(1.0F));
  Restart();
  EXPECT_THAT(Get()->waiting_reason(), HasSubstr("no stream 's'"));
  EXPECT_THAT(ValuesAt(1, {7}), ElementsAre(1.0F));
}

}  // namespace
}  // namespace sparseagg::service
