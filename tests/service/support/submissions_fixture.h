// A test fixture for the committed submissions of rounds.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_SUBMISSIONS_FIXTURE_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_SUBMISSIONS_FIXTURE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/service/support/round_fixture.h"

namespace sparseagg::service {

using Clients = std::vector<std::string>;

MATCHER_P(IsOkAndHolds, value, "") {
  *result_listener << StatusOf(arg);
  return arg.ok() && *arg == value;
}

// Rounds with committed submissions.
class SubmissionsFixture : public RoundFixture {
 protected:
  // The client ids of all pages.
  static std::vector<std::string> ClientsOf(const Round& round, size_t page_size = 1000) {
    std::vector<std::string> clients;
    std::string token;
    do {
      const auto page = round.ListSubmissions(page_size, token);
      EXPECT_THAT(page, IsOk());
      if (!page.ok()) break;
      EXPECT_LE(page->submissions.size(), page_size);
      for (const Receipt& receipt : page->submissions) clients.push_back(receipt.client_id);
      token = page->next_page_token;
    } while (!token.empty());
    return clients;
  }

  // A round that merges on arrival, with submissions of "a" and "b" which are merged. `num_servers`: of its cluster; it
  // then takes 4 submissions.
  std::shared_ptr<Round> OpenMerged(int num_servers = 0, const std::string& id = "r") {
    limits_.memory_limit_bytes = 1'000'000;
    v1::RoundSpec spec = SumSpec(1'000'000);
    spec.set_max_submissions(1000);
    spec.mutable_aggregation()->set_numerics(v1::NUMERICS_BINNED);
    if (num_servers > 0) {
      spec.set_max_submissions(4);
      spec.set_stay_open(true);
      spec.set_accept_partials(true);
    }
    for (int i = 0; i < num_servers; ++i) {
      spec.mutable_cluster()->add_servers()->set_address(absl::StrCat("a:", i + 1));
    }
    auto round = Open(spec, id);
    std::vector<uint32_t> keys(15'000);
    for (uint32_t i = 0; i < keys.size(); ++i) keys[i] = i;
    for (const char* client : {"a", "b"}) {
      EXPECT_THAT(Submit(*round, client, keys, std::vector<float>(keys.size(), 1)), IsOk());
    }
    return round;
  }
};

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_SUBMISSIONS_FIXTURE_H_
