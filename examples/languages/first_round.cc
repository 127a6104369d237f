// A first round over gRPC: first_round HOST:PORT
#include <grpcpp/grpcpp.h>

#include <iostream>
#include <stdexcept>
#include <vector>

#include "sparseagg/v1/aggregation.grpc.pb.h"

using namespace sparseagg::v1;
using Stub = Aggregation::Stub;

template <class Answer, class Request, class Fill>
Answer Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Answer*), Fill fill) {
  grpc::ClientContext context;
  Request request;
  Answer answer;
  fill(request);
  const grpc::Status status = (stub.*method)(&context, request, &answer);
  if (!status.ok()) throw std::runtime_error(status.error_message());  // with the place and the value
  return answer;
}

void Submit(Stub& stub, const std::string& round, const std::string& client, const std::vector<uint32_t>& keys,
            const std::vector<float>& values) {
  const auto id = [&](auto& message) {
    message.set_round(round);
    message.set_client_id(client);
    message.set_submission_id("one");
  };
  Call(stub, &Stub::PutChunk, [&](UpdateChunk& chunk) {
    id(chunk);
    chunk.set_last(true);
    TensorSlice& slice = *chunk.add_slices();
    slice.set_tensor("w");
    slice.set_key_encoding(KEY_ENCODING_U32);  // little-endian, as this machine's own numbers
    slice.set_keys(keys.data(), keys.size() * sizeof(uint32_t));
    slice.set_values(values.data(), values.size() * sizeof(float));
  });
  Call(stub, &Stub::CommitSubmission, id);
}

int main(int, char** argv) {
  const auto stub = Aggregation::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  const auto created = Call(*stub, &Stub::CreateRound, [](CreateRoundRequest& request) {
    TensorSpec& tensor = *request.mutable_spec()->add_tensors();
    tensor.set_name("w");
    tensor.set_dtype(DTYPE_FLOAT32);
    tensor.set_num_rows(50'000);
  });
  Submit(*stub, created.name(), "a", {3, 9}, {1, 2});
  Submit(*stub, created.name(), "b", {9}, {10});
  const auto round = [&](auto& request) { request.set_round(created.name()); };
  Call(*stub, &Stub::CloseRound, round);
  Call(*stub, &Stub::WaitRound, round);
  const TensorSlice sum = Call(*stub, &Stub::GetResult, round).slice();
  const auto* keys = reinterpret_cast<const uint32_t*>(sum.keys().data());
  const auto* values = reinterpret_cast<const float*>(sum.values().data());
  for (size_t i = 0; i < sum.keys().size() / sizeof(uint32_t); ++i) std::cout << keys[i] << ' ' << values[i] << '\n';
}
