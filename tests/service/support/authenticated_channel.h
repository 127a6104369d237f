// Channels whose calls bring a credential.
#ifndef SPARSEAGG_TESTS_SERVICE_SUPPORT_AUTHENTICATED_CHANNEL_H_
#define SPARSEAGG_TESTS_SERVICE_SUPPORT_AUTHENTICATED_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "service/auth/authorize.h"

namespace sparseagg::service {

// Returns: a connection of its own, whose calls all have these headers.
std::shared_ptr<grpc::Channel> ConnectWith(
    const std::string& address, const std::map<std::string, std::string>& headers,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials());

// Returns: the header of a bearer token.
std::map<std::string, std::string> Bearer(const std::string& token);

// Returns: the line of a token in the file of --tokens-file; `rest`: "ROLE TENANT NAME".
std::string TokenLine(const std::string& token, const std::string& rest);

// Replaces a file at once, as editors and Kubernetes do.
void ReplaceFile(const std::string& path, const std::string& text);

// Calls a method, whatever its kind, with one message, and waits for the end. `path`: "/SERVICE/METHOD".
absl::Status CallPath(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                      const std::string& message);
// The same for a method of the API.
absl::Status CallMethod(const std::shared_ptr<grpc::Channel>& channel, Method method, const std::string& message);

}  // namespace sparseagg::service

#endif  // SPARSEAGG_TESTS_SERVICE_SUPPORT_AUTHENTICATED_CHANNEL_H_
