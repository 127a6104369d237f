// Certificates of a server: on another engine, and after a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cuda/device_engine.h"
#include "service/store/store.h"
#include "tests/service/support/stored_server.h"
#include "tests/service/support/wire.h"
#include "tests/support/host_device.h"

namespace sparseagg::service {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr char kKey[] =  // RFC 8032, 7.1, test 2
    "302e020100300506032b657004220420"
    "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb";

class CertifiedServerTest : public StoredServer {
 protected:
  CertifiedServerTest() : StoredServer(Durability::kSync) {
    options_.certificate_key = folder_ / "certificate.key";
    std::ofstream(options_.certificate_key)
        << "-----BEGIN PRIVATE KEY-----\n"
        << absl::Base64Escape(absl::HexStringToBytes(kKey)) << "\n-----END PRIVATE KEY-----\n";
    Restart();
  }

  // A round of three submissions that overlap, finished.
  std::string RunRound() {
    v1::RoundSpec spec = SumSpec();
    spec.mutable_certificate();
    const std::string name = Create(spec);
    for (const auto& [who, value] : {std::pair("c", 0.1F), std::pair("a", 1e9F), std::pair("b", -1e9F)}) {
      EXPECT_THAT(client().SubmitStream({MakeChunk(name, who, {1, 7, 9}, {value, value, 3})}), IsOk());
    }
    EXPECT_THAT(client().Finish(name), IsOk());
    return name;
  }
  // Returns: the payload of the envelope.
  std::string Statement(const std::string& name) {
    const auto round = server().registry().Find("default", name.substr(name.find('/') + 1));
    EXPECT_THAT(round, IsOk());
    const auto envelope = (*round)->GetCertificate();
    EXPECT_THAT(envelope, IsOk());
    if (!envelope.ok()) return "";
    const std::string head = R"("payload":")";
    const size_t begin = envelope->find(head) + head.size();
    std::string payload;
    EXPECT_TRUE(absl::Base64Unescape(envelope->substr(begin, envelope->find('"', begin) - begin), &payload));
    return payload;
  }
};

TEST_F(CertifiedServerTest, HostDevice_StatesWhatTheCpuDoes) {
  const std::string on_cpu = Statement(RunRound());
  ASSERT_THAT(on_cpu, HasSubstr(R"("numSubmissions":3)"));
  Stop();
  options_.data_dir = folder_ / "other";
  auto engine = std::make_unique<cuda::DeviceEngine>(std::make_unique<cuda::HostDevice>(), cuda::DeviceEngineOptions{});
  const cuda::DeviceEngine& device = *engine;
  auto started = Server::Start(options_, std::move(engine), clock_);
  ASSERT_THAT(started, IsOk());
  server_ = *std::move(started);
  const std::string name = std::string(device.name());
  const std::string on_device = Statement(RunRound());
  EXPECT_GT(device.use().num_done, 0);
  EXPECT_THAT(on_device, HasSubstr(absl::StrCat(R"("engine":")", name)));
  const auto engine_of = [](const std::string& statement) {
    const size_t begin = statement.find(R"("engine":")");
    return statement.substr(begin, statement.find(',', begin) - begin);
  };
  EXPECT_EQ(absl::StrReplaceAll(on_device, {{engine_of(on_device), engine_of(on_cpu)}}), on_cpu);
}

// The disk has a certificate of other submissions or another result than those that the restart finds.
TEST_F(CertifiedServerTest, CertificateOfOtherContent_FailsTheRound) {
  const std::string name = RunRound();
  const std::string before = Statement(name);
  Restart();
  EXPECT_EQ(Statement(name), before);
  Stop();
  {
    const auto store = Store::Open({options_.data_dir, Durability::kSync, 0});
    ASSERT_THAT(store, IsOk());
    const auto rounds = (*store)->ReadRounds();
    ASSERT_THAT(rounds, IsOk());
    StateRecord record = rounds->at(0).state;
    ASSERT_EQ(record.certificate_content.size(), 32);
    record.certificate_content[5] ^= 1;
    const auto ticket = (*store)->PutState(rounds->at(0).number, record);
    ASSERT_THAT(ticket, IsOk());
    ASSERT_THAT((*store)->AwaitDurable(*ticket), IsOk());
  }
  MustStart();
  const auto round = client().Wait(name, absl::Minutes(1));
  ASSERT_THAT(round, IsOk());
  EXPECT_EQ(round->state(), v1::ROUND_STATE_FAILED);
  EXPECT_THAT(round->state_reason(), HasSubstr("DATA_LOSS: the submissions or results differ from those of the "
                                               "certificate that was issued"));
  v1::GetResultRequest request;
  request.set_round(name);
  EXPECT_THAT(client().Pages(request).status(), HasCode(Code::kFailedPrecondition));
}

TEST_F(CertifiedServerTest, Withdrawals_EndWhenTheirLeavesHaveTwoMebibytes) {
  v1::RoundSpec spec = SumSpec();
  spec.mutable_certificate();
  for (int i = 0; i < 200; ++i) {  // whose digests are in each leaf
    v1::TensorSpec& tensor = *spec.add_tensors();
    tensor = spec.tensors(0);
    tensor.set_name(absl::StrCat(std::string(100, 't'), i));
  }
  const std::string name = Create(spec);
  const auto find = [&] { return *server().registry().Find("default", name.substr(name.find('/') + 1)); };
  const auto withdraw = [&]() -> absl::StatusOr<bool> { return find()->Withdraw("a", ""); };
  int num_withdrawn = -1;
  absl::StatusOr<bool> withdrawn = true;
  while (withdrawn.ok()) {
    ASSERT_LT(++num_withdrawn, 1000);
    ASSERT_THAT(client().SubmitStream({MakeChunk(name, "a", {1}, {1})}), IsOk());
    withdrawn = withdraw();
  }
  EXPECT_GT(num_withdrawn, 50);
  const auto is_full = Fails(Code::kResourceExhausted,
                             HasSubstr(absl::StrCat("lists ", num_withdrawn, " withdrawn submissions, whose leaves")));
  EXPECT_THAT(withdrawn, is_full);
  Restart();
  EXPECT_THAT(withdraw(), is_full);
  EXPECT_EQ(client().Get(name)->num_submissions(), 1);
  ASSERT_THAT(client().Finish(name), IsOk());
  EXPECT_THAT(Statement(name), HasSubstr(R"("numSubmissions":1)"));
}

}  // namespace
}  // namespace sparseagg::service
