// Writes the inputs that the fuzz targets begin with, one folder for each target that has some:
//
//   sparseagg_fuzz_seeds FOLDER
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/cpu/cpu_engine.h"
#include "host/updates/update.h"
#include "host/wire/delta_keys.h"
#include "tests/fuzz/partials.h"
#include "tests/service/support/wire.h"

namespace sparseagg::service {
namespace {

// The numbers that a FuzzedDataProvider takes come from the end of an input.
void Write(const std::filesystem::path& folder, const std::vector<std::string>& seeds) {
  std::filesystem::create_directories(folder);
  for (size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream(folder / absl::StrCat("seed-", i), std::ios::binary) << seeds[i];
  }
}

// Chunks for ThreeTensors in all encodings of keys.
std::vector<std::string> Chunks() {
  std::vector<std::string> seeds;
  std::vector<uint32_t> keys;
  for (uint32_t key = 5; keys.size() < 200; key += 1 + key % 7) keys.push_back(key);
  for (const v1::KeyEncoding encoding :
       {v1::KEY_ENCODING_U32, v1::KEY_ENCODING_DELTA_BITPACKED, v1::KEY_ENCODING_IMPLICIT}) {
    for (const char* tensor : {"v", "w", "u"}) {
      v1::UpdateChunk chunk;
      chunk.set_round("rounds/r");
      chunk.set_client_id("a");
      chunk.set_submission_id("s");
      chunk.set_weight(2);
      chunk.set_last(true);
      v1::TensorSlice* slice = chunk.add_slices();
      slice->set_tensor(tensor);
      slice->set_num_keys(keys.size());
      slice->set_key_encoding(encoding);
      if (encoding != v1::KEY_ENCODING_U32) slice->set_first_key(keys.front());
      if (encoding == v1::KEY_ENCODING_U32) {
        slice->set_keys(keys.data(), keys.size() * sizeof(uint32_t));
      } else if (encoding == v1::KEY_ENCODING_DELTA_BITPACKED) {
        slice->set_keys(wire::EncodeDeltaKeys(absl::MakeConstSpan(keys)));
      }
      slice->set_values(std::string(keys.size() * 8, '\x20'));  // two float32, or one float64
      if (*tensor == 'u') slice->set_value_encoding(v1::VALUE_ENCODING_NONE), slice->clear_values();
      std::string bytes = chunk.SerializeAsString();
      seeds.push_back(bytes + std::string("\x00\x00\x10", 3));
      seeds.push_back(bytes + std::string("\x01\x00\x10", 3));
    }
  }
  return seeds;
}

// Batches of three clients for ThreeTensors.
std::vector<std::string> Batches() {
  std::vector<std::string> seeds;
  for (const bool is_weighted : {false, true}) {
    v1::SubmitBatchRequest batch;
    batch.set_round("rounds/r");
    batch.set_submission_id("s");
    batch.set_client_ids("a\nb\nc");
    if (is_weighted) batch.set_weights(std::string(24, '\0'));
    for (const char* tensor : {"v", "w", "u"}) {
      v1::TensorSlice& slice = *batch.add_slices();
      slice.set_tensor(tensor);
      slice.set_key_encoding(v1::KEY_ENCODING_U32);
      slice.set_keys(std::string(16, '\1'));
      slice.set_values(std::string(32, '\x20'));  // of four keys, two float32 or one float64 each
      if (*tensor == 'u') slice.set_value_encoding(v1::VALUE_ENCODING_NONE), slice.clear_values();
      batch.mutable_num_keys()->append(std::string("\2\0\0\0\0\0\0\0\2\0\0\0", 12));
    }
    for (const char keep : {'\0', '\1'}) seeds.push_back(batch.SerializeAsString() + keep + std::string("\x00\x10", 2));
  }
  return seeds;
}

std::vector<std::string> Specs() {
  v1::RoundSpec dense = ThreeTensors(3000);
  dense.mutable_tensors(0)->set_layout(v1::TENSOR_LAYOUT_DENSE);
  dense.mutable_aggregation()->set_op(v1::OP_MEAN);
  dense.set_min_submissions(2);
  dense.mutable_deadline()->set_seconds(60);
  return {ThreeTensors(3000).SerializeAsString(), dense.SerializeAsString()};
}

std::string Frame(char type, char flags, char stream, const std::string& payload) {
  std::string frame = {
      '\0',  static_cast<char>(payload.size() >> 8), static_cast<char>(payload.size()), type, flags, '\0', '\0', '\0',
      stream};
  return frame + payload;
}

std::vector<std::string> Frames() {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, "");
  const std::string call = Frame(1, 4, 1, std::string(50, 'h')) + Frame(0, 1, 1, std::string(100, 'd'));
  std::string resets;
  for (char stream = 1; stream < 100; stream = static_cast<char>(stream + 2)) {
    resets += Frame(1, 5, stream, "h") + Frame(3, 0, stream, std::string(4, '\0'));
  }
  const std::string continued = Frame(1, 0, 3, "h") + Frame(9, 0, 3, "h") + Frame(9, 4, 3, "h");
  const std::string window = Frame(8, 0, 0, std::string("\0\0\xff\xff", 4)) + Frame(6, 0, 0, std::string(8, 'p'));
  return {preface + call + "\x00\x05", preface + resets + "\x01\x09", preface + continued + window + "\x01\x20"};
}

std::vector<std::string> Configs() {
  return {"grpc-address = \"127.0.0.1:8001\"\nmemory-limit = \"8GiB\"\nmax-open-rounds = 1_000\nupload-timeout = 1.5\n",
          "insecure = true\nlog-format = \"json\"\ndata-dir = \"/tmp/x\"\ndurability = \"async\"\nmax-wait = \"1h\"\n",
          "[table]\nlist = [1, 2]\n"};
}

std::vector<std::string> Credentials() {
  const std::string hash(64, 'a');
  return {absl::StrCat("# comment\n", hash, " client red site-7 2027-01-31T00:00:00Z\n", std::string(64, 'b'),
                       " admin blue -\n") +
              '\0',
          std::string("eyJhbGciOiJFZERTQSJ9.e30.AAAA") + '\1',
          std::string(R"({"iss":"https://issuer","aud":["x","sparseagg"],"exp":1900000000,"nbf":1,)"
                      R"("tenant":"red","role":"client","sub":"site-7"})") +
              '\2'};
}

std::vector<std::string> HttpBodies() {
  const std::string spec = R"({"spec":{"tensors":[{"name":"v","dtype":"DTYPE_FLOAT32","numRows":"100","rowWidth":2}],)"
                           R"("aggregation":{"op":"OP_MEAN"},"minSubmissions":"2","deadline":"3.5s"},"roundId":"r"})";
  // The kind, and the method: CreateRound is number 1, PutChunk 8, GetResult 14.
  return {spec + std::string("\x00\x01", 2),
          std::string("name=rounds/r&range.begin=1&range.end=%32&format.key_encoding=U32\x01\x0e"),
          std::string("round=rounds/r&client_id=a&tensor=v&key_bytes=4&last=true\nkeysvalues\x02\x08"),
          std::string("\0\0\0\0\2ab\3\1", 9),
          std::string("rounds/r:close\x04\x01"),
          std::string("\"\x80\xc3\xa9\5\1")};
}

// A partial of each tensor of the target.
std::vector<std::string> Partials() {
  std::vector<std::string> seeds;
  const std::unique_ptr<Engine> engine = CreateCpuEngine({.num_threads = 1});
  for (const TensorSpec& spec : PartialSpecs()) {
    const std::unique_ptr<Aggregation> aggregation = *Aggregation::Create(*engine, {spec});
    const std::vector<double> values(20);  // zeros of any dtype
    for (const std::string client : {"a", "b"}) {
      UpdateColumns columns;
      columns.keys = KeyRun{client == "a" ? uint64_t{3} : uint64_t{7}, 10};
      columns.values = reinterpret_cast<const std::byte*>(values.data());
      std::vector<ValidatedUpdate> updates = {*ValidatedUpdate::Create(spec, columns, 2.0)};
      static_cast<void>(aggregation->Add(client, *aggregation->Prepare(std::move(updates))));
    }
    static_cast<void>(aggregation->MergePending());
    seeds.push_back(ExportAll(*aggregation, 0));
  }
  return seeds;
}

}  // namespace
}  // namespace sparseagg::service

int main(int argc, char** argv) {
  using namespace sparseagg::service;
  if (argc != 2) return 2;
  const std::filesystem::path folder = argv[1];
  Write(folder / "batch", Batches());
  Write(folder / "chunk", Chunks());
  Write(folder / "partial", Partials());
  Write(folder / "spec", Specs());
  Write(folder / "frames", Frames());
  Write(folder / "config", Configs());
  Write(folder / "credentials", Credentials());
  Write(folder / "http", HttpBodies());
  return 0;
}
