// Known vectors of the parts of certificates. The whole is tested in tests/python/client/test_certificates.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "service/certificates/merkle_tree.h"
#include "service/certificates/openssl_certifier.h"
#include "service/certificates/statement.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Hex(absl::string_view bytes) { return absl::BytesToHexString(bytes); }
std::string Hex(const Sha256Digest& digest) { return Hex(BytesOf(digest)); }

TEST(Cbor, VectorsOfRfc8949) {  // appendix A
  const auto encoded = [](auto append, auto value) {
    std::string out;
    append(value, &out);
    return Hex(out);
  };
  const std::pair<uint64_t, const char*> uints[] = {{0, "00"},
                                                    {23, "17"},
                                                    {24, "1818"},
                                                    {100, "1864"},
                                                    {1000, "1903e8"},
                                                    {1000000, "1a000f4240"},
                                                    {1000000000000, "1b000000e8d4a51000"},
                                                    {18446744073709551615U, "1bffffffffffffffff"}};
  for (const auto& [value, hex] : uints) EXPECT_EQ(encoded(cbor::AppendUint, value), hex);
  const std::pair<double, const char*> floats[] = {{0.0, "f90000"},
                                                   {-0.0, "f98000"},
                                                   {1.0, "f93c00"},
                                                   {1.1, "fb3ff199999999999a"},
                                                   {1.5, "f93e00"},
                                                   {65504.0, "f97bff"},
                                                   {100000.0, "fa47c35000"},
                                                   {3.4028234663852886e+38, "fa7f7fffff"},
                                                   {1.0e+300, "fb7e37e43c8800759c"},
                                                   {5.960464477539063e-8, "f90001"},
                                                   {0.00006103515625, "f90400"},
                                                   {-4.0, "f9c400"}};
  for (const auto& [value, hex] : floats) EXPECT_EQ(encoded(cbor::AppendFloat, value), hex) << value;
  EXPECT_EQ(encoded(cbor::AppendText, "\"\\"), "62225c");
  EXPECT_EQ(encoded(cbor::AppendBytes, absl::string_view("\1\2\3\4")), "4401020304");
  EXPECT_EQ(encoded(cbor::AppendArray, 25), "9819");
  EXPECT_EQ(encoded(cbor::AppendBool, true), "f5");
}

// The inputs and roots of Certificate Transparency's own tests (google/certificate-transparency, merkle_tree_test.cc).
TEST(MerkleTree, VectorsOfCertificateTransparency) {
  const char* const inputs[] = {
      "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"};
  const char* const roots[] = {"6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
                               "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
                               "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
                               "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
                               "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
                               "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
                               "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
                               "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"};
  EXPECT_EQ(Hex(MerkleTree({}).Root()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  std::vector<std::string> leaves;
  for (size_t n = 1; n <= 8; ++n) {
    leaves.push_back(absl::HexStringToBytes(inputs[n - 1]));
    const std::vector<absl::string_view> views(leaves.begin(), leaves.end());
    EXPECT_EQ(Hex(MerkleTree(views).Root()), roots[n - 1]) << n;
  }
  // The audit paths of the example in RFC 6962, 2.1.3, of seven leaves.
  leaves.pop_back();
  const MerkleTree tree(std::vector<absl::string_view>(leaves.begin(), leaves.end()));
  const auto node = [](const Sha256Digest& left, const Sha256Digest& right) {
    return Sha256Of(absl::StrCat("\1", BytesOf(left), BytesOf(right)));
  };
  const auto leaf = [&](size_t i) { return LeafHash(leaves[i]); };
  const Sha256Digest g = node(leaf(0), leaf(1)), h = node(leaf(2), leaf(3)), i = node(leaf(4), leaf(5));
  const Sha256Digest k = node(g, h), l = node(i, leaf(6));
  EXPECT_THAT(tree.PathOf(0), ElementsAre(leaf(1), h, l));
  EXPECT_THAT(tree.PathOf(3), ElementsAre(leaf(2), g, l));
  EXPECT_THAT(tree.PathOf(4), ElementsAre(leaf(5), leaf(6), k));
  EXPECT_THAT(tree.PathOf(6), ElementsAre(i, k));
  EXPECT_THAT(MerkleTree({"x"}).PathOf(0), IsEmpty());
}

UpdateContent ContentOf(KeyColumn keys, uint64_t num_keys, const std::vector<std::byte>& values) {
  UpdateContent content;
  content.keys = keys;
  content.num_keys = num_keys;
  content.values = values;
  return content;
}

// Whatever the form of the keys, and at sizes around a block of 1 MiB: 131072 keys.
TEST(DigestOf, DependsOnTheKeysAndNotOnTheirForm) {
  for (const uint64_t n : {0, 1, 4095, 4097, 131071, 131072, 131073, 262144}) {
    std::vector<uint32_t> narrow(n);
    std::vector<uint64_t> wide(n);
    for (uint64_t i = 0; i < n; ++i) narrow[i] = static_cast<uint32_t>(wide[i] = i + 7);
    const std::vector<std::byte> values(4 * n, std::byte{3});
    const Sha256Digest of_wide = DigestOf(ContentOf(absl::MakeConstSpan(wide), n, values));
    EXPECT_EQ(DigestOf(ContentOf(absl::MakeConstSpan(narrow), n, values)), of_wide) << n;
    EXPECT_EQ(DigestOf(ContentOf(KeyRun{7, n}, n, values)), of_wide) << n;
    std::string digests;
    const auto add = [&](const char* bytes, size_t size) {
      for (size_t at = 0; at < size; at += 1 << 20) {
        absl::StrAppend(&digests, BytesOf(Sha256Of({bytes + at, std::min<size_t>(size - at, 1 << 20)})));
      }
    };
    add(reinterpret_cast<const char*>(wide.data()), 8 * n);
    add(reinterpret_cast<const char*>(values.data()), values.size());
    EXPECT_EQ(of_wide, Sha256Of(digests)) << n;
  }
}

}  // namespace
}  // namespace sparseagg::service
