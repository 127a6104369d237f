// A first round over gRPC: first_round HOST:PORT
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"google.golang.org/grpc"
	pb "sparseagg/v1"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err) // with the place and the value
		os.Exit(1)
	}
}

func packed(numbers interface{}) []byte {
	var out bytes.Buffer
	check(binary.Write(&out, binary.LittleEndian, numbers))
	return out.Bytes()
}

func main() {
	ctx := context.Background()
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure())
	check(err)
	server := pb.NewAggregationClient(connection)
	tensor := &pb.TensorSpec{Name: "w", Dtype: pb.DType_DTYPE_FLOAT32, NumRows: 50000}
	spec := &pb.RoundSpec{Tensors: []*pb.TensorSpec{tensor}}
	round, err := server.CreateRound(ctx, &pb.CreateRoundRequest{Spec: spec})
	check(err)
	submit := func(client string, keys []uint32, values []float32) {
		slice := &pb.TensorSlice{Tensor: "w", KeyEncoding: pb.KeyEncoding_KEY_ENCODING_U32, Keys: packed(keys), Values: packed(values)}
		_, err := server.PutChunk(ctx, &pb.UpdateChunk{
			Round: round.Name, ClientId: client, SubmissionId: "one", Last: true, Slices: []*pb.TensorSlice{slice}})
		check(err)
		_, err = server.CommitSubmission(ctx, &pb.CommitSubmissionRequest{Round: round.Name, ClientId: client, SubmissionId: "one"})
		check(err)
	}
	submit("a", []uint32{3, 9}, []float32{1, 2})
	submit("b", []uint32{9}, []float32{10})
	_, err = server.CloseRound(ctx, &pb.CloseRoundRequest{Round: round.Name})
	check(err)
	_, err = server.WaitRound(ctx, &pb.WaitRoundRequest{Round: round.Name})
	check(err)
	page, err := server.GetResult(ctx, &pb.GetResultRequest{Round: round.Name})
	check(err)
	keys, values := make([]uint32, len(page.Slice.Keys)/4), make([]float32, len(page.Slice.Keys)/4)
	check(binary.Read(bytes.NewReader(page.Slice.Keys), binary.LittleEndian, keys))
	check(binary.Read(bytes.NewReader(page.Slice.Values), binary.LittleEndian, values))
	for i, key := range keys {
		fmt.Println(key, values[i])
	}
}
