# A first round over gRPC: ruby first_round.rb HOST:PORT
require "sparseagg/v1/aggregation_services_pb"
include Sparseagg::V1

# An error is a GRPC::BadStatus, whose message has the place and the value.
server = Aggregation::Stub.new(ARGV[0], :this_channel_is_insecure)
tensor = TensorSpec.new(name: "w", dtype: :DTYPE_FLOAT32, num_rows: 50_000)
round = server.create_round(CreateRoundRequest.new(spec: RoundSpec.new(tensors: [tensor]))).name

{ "a" => [[3, 9], [1, 2]], "b" => [[9], [10]] }.each do |client, (keys, values)|
  # Little-endian: V of uint32, e of float32.
  slice = TensorSlice.new(
    tensor: "w", key_encoding: :KEY_ENCODING_U32, keys: keys.pack("V*"), values: values.pack("e*")
  )
  id = { round: round, client_id: client, submission_id: "one" }
  server.put_chunk(UpdateChunk.new(**id, last: true, slices: [slice]))
  server.commit_submission(CommitSubmissionRequest.new(**id))
end

server.close_round(CloseRoundRequest.new(round: round))
server.wait_round(WaitRoundRequest.new(round: round))
sum = server.get_result(GetResultRequest.new(round: round)).slice
sum.keys.unpack("V*").zip(sum.values.unpack("e*")) { |key, value| puts "#{key} #{value.to_i}" }
