// A first round over gRPC: FirstRound HOST:PORT
import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import sparseagg.v1.*;

public class FirstRound {
  public static void main(String[] args) {
    ManagedChannel channel = ManagedChannelBuilder.forTarget(args[0]).usePlaintext().build();
    // An error is a StatusRuntimeException, whose message has the place and the value.
    AggregationGrpc.AggregationBlockingStub server = AggregationGrpc.newBlockingStub(channel);
    TensorSpec tensor = TensorSpec.newBuilder().setName("w").setDtype(DType.DTYPE_FLOAT32).setNumRows(50_000).build();
    RoundSpec spec = RoundSpec.newBuilder().addTensors(tensor).build();
    String round = server.createRound(CreateRoundRequest.newBuilder().setSpec(spec).build()).getName();
    submit(server, round, "a", new int[] {3, 9}, new float[] {1, 2});
    submit(server, round, "b", new int[] {9}, new float[] {10});
    server.closeRound(CloseRoundRequest.newBuilder().setRound(round).build());
    server.waitRound(WaitRoundRequest.newBuilder().setRound(round).build());
    TensorSlice sum = server.getResult(GetResultRequest.newBuilder().setRound(round).build()).getSlice();
    ByteBuffer keys = sum.getKeys().asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
    ByteBuffer values = sum.getValues().asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
    while (keys.hasRemaining()) { // Java's int has the sign that uint32 has not
      System.out.printf("%s %.0f%n", Integer.toUnsignedString(keys.getInt()), values.getFloat());
    }
    channel.shutdown();
  }

  static void submit(
      AggregationGrpc.AggregationBlockingStub server, String round, String client, int[] keys, float[] values) {
    ByteBuffer packedKeys = ByteBuffer.allocate(4 * keys.length).order(ByteOrder.LITTLE_ENDIAN);
    ByteBuffer packedValues = ByteBuffer.allocate(4 * values.length).order(ByteOrder.LITTLE_ENDIAN);
    packedKeys.asIntBuffer().put(keys);
    packedValues.asFloatBuffer().put(values);
    TensorSlice.Builder slice = TensorSlice.newBuilder().setTensor("w").setKeyEncoding(KeyEncoding.KEY_ENCODING_U32);
    slice.setKeys(ByteString.copyFrom(packedKeys)).setValues(ByteString.copyFrom(packedValues));
    UpdateChunk.Builder chunk = UpdateChunk.newBuilder().setRound(round).setClientId(client).setSubmissionId("one");
    server.putChunk(chunk.setLast(true).addSlices(slice).build());
    CommitSubmissionRequest.Builder commit = CommitSubmissionRequest.newBuilder().setRound(round);
    server.commitSubmission(commit.setClientId(client).setSubmissionId("one").build());
  }
}
