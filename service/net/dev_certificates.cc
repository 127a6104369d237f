#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "host/base/status_macros.h"
#include "service/auth/authorize.h"
#include "service/base/log.h"
#include "service/net/address.h"
#include "service/net/tls.h"

namespace sparseagg::service {
namespace {

constexpr long kValidSeconds = 365L * 24 * 3600;

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

struct Pair {
  Key key{nullptr, &EVP_PKEY_free};
  Certificate certificate{nullptr, &X509_free};
};

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()), &X509_EXTENSION_free);
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetRandomSerial(X509* certificate) {
  std::array<unsigned char, 16> bytes;
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) return false;
  bytes[0] &= 0x7f;  // positive
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(BN_bin2bn(bytes.data(), bytes.size(), nullptr), &BN_free);
  return number != nullptr && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

// Makes a key and its certificate, signed by `issuer`; null: by itself, as an authority. `names` is in the form of
// OpenSSL's configuration, "DNS:localhost,IP:127.0.0.1".
absl::StatusOr<Pair> MakePair(const std::string& common_name, const std::string& names, const Pair* issuer) {
  Pair made;
  made.key.reset(EVP_EC_gen("P-256"));
  made.certificate.reset(X509_new());
  X509* const certificate = made.certificate.get();
  const Pair& signer = issuer == nullptr ? made : *issuer;
  bool done = made.key != nullptr && certificate != nullptr && X509_set_version(certificate, X509_VERSION_3) == 1 &&
              SetRandomSerial(certificate) && X509_gmtime_adj(X509_getm_notBefore(certificate), -300) != nullptr &&
              X509_gmtime_adj(X509_getm_notAfter(certificate), kValidSeconds) != nullptr &&
              X509_set_pubkey(certificate, made.key.get()) == 1 &&
              X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                         reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0) == 1 &&
              X509_set_issuer_name(certificate, X509_get_subject_name(signer.certificate.get())) == 1;
  X509* const by = signer.certificate.get();
  done =
      done && AddExtension(certificate, by, NID_basic_constraints, issuer == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
  done = done && AddExtension(certificate, by, NID_key_usage,
                              issuer == nullptr ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature");
  done = done && AddExtension(certificate, by, NID_subject_key_identifier, "hash");
  done = done && AddExtension(certificate, by, NID_authority_key_identifier, "keyid:always");
  done = done && (names.empty() || AddExtension(certificate, by, NID_subject_alt_name, names));
  done = done && X509_sign(certificate, signer.key.get(), EVP_sha256()) > 0;
  if (!done) return absl::InternalError(absl::StrCat("OpenSSL made no certificate for ", common_name));
  return made;
}

absl::Status WriteFile(const std::string& path, mode_t mode, BIO* bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  const OwnedFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (file.get() < 0 || write(file.get(), bytes, size) != size) return absl::ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

absl::Status WriteCertificate(const std::string& path, const Pair& pair) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
  if (PEM_write_bio_X509(bio.get(), pair.certificate.get()) != 1) return absl::InternalError(path);
  return WriteFile(path, 0644, bio.get());
}

absl::Status WritePair(const std::string& folder, absl::string_view name, const Pair& pair) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
  const std::string path = absl::StrCat(folder, "/", name);
  if (PEM_write_bio_PrivateKey(bio.get(), pair.key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return absl::InternalError(path);
  }
  RETURN_IF_ERROR(WriteFile(path + ".key", 0600, bio.get()));
  return WriteCertificate(path + ".pem", pair);
}

// Returns: the names of a server at `address`.
std::string ServerNames(const std::string& address) {
  std::string names = "DNS:localhost,IP:127.0.0.1,IP:::1";
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.';
  };
  const auto add = [&](const std::string& host) {
    in6_addr ip;
    if (inet_pton(AF_INET, host.c_str(), &ip) == 1 || inet_pton(AF_INET6, host.c_str(), &ip) == 1) {
      absl::StrAppend(&names, ",IP:", host);
    } else if (!host.empty() && std::all_of(host.begin(), host.end(), is_plain)) {
      absl::StrAppend(&names, ",DNS:", host);
    }
  };
  char machine[256] = {};
  if (gethostname(machine, sizeof(machine) - 1) == 0) add(machine);
  if (CheckPort(address).ok()) add(HostOf(address));
  return names;
}

}  // namespace

absl::Status MakeDevCertificates(const std::string& folder, const std::string& address) {
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return absl::ErrnoToStatus(errno, folder);
  const std::string ca_path = folder + "/ca.pem";
  if (access(ca_path.c_str(), F_OK) == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Pair ca, MakePair("sparseagg development authority", "", nullptr));
  ASSIGN_OR_RETURN(const Pair server, MakePair("sparseagg-server", ServerNames(address), &ca));
  RETURN_IF_ERROR(WritePair(folder, "server", server));
  for (const Role role : kAllRoles) {
    const std::string name = absl::StrCat("sparseagg://", kDefaultTenant, "/", Name(role), "/dev");
    ASSIGN_OR_RETURN(const Pair client, MakePair(absl::StrCat(Name(role), "-dev"), "URI:" + name, &ca));
    RETURN_IF_ERROR(WritePair(folder, Name(role), client));
  }
  RETURN_IF_ERROR(WriteCertificate(ca_path, ca));  // last: it says that all are there
  Log(LogLevel::kInfo, "dev_certificates", {{"folder", folder}});
  return absl::OkStatus();
}

}  // namespace sparseagg::service
