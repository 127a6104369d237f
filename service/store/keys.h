// The keys of the store. The values are records of records.proto.
#ifndef SPARSEAGG_SERVICE_STORE_KEYS_H_
#define SPARSEAGG_SERVICE_STORE_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sparseagg::service::keys {

// What follows the number of a round in a key, and what follows the kind. In this order, so that one range holds all of
// a round but its record and state, and another one all of its chunks. Streams and models are numbered as rounds are.
enum class Kind : char {
  kRound = 0,
  kState = 1,
  kSubmission = 2,  // client id
  kUpload = 3,      // upload
  kChunk = 4,       // upload, chunk: the UpdateChunk as sent; or kReferenceMark and a ChunkReference
  kSynced = 5,
  kWithdrawn = 6,     // upload: the leaf of a withdrawn submission, of a round with a certificate
  kCut = 7,           // version of a stream
  kModelVersion = 8,  // version of a model
  kEnd = 9
};

// Numbers are big-endian, so that keys are in ascending order of numbers.
inline void AppendNumber(uint64_t number, std::string* out) {
  for (int shift = 56; shift >= 0; shift -= 8) out->push_back(static_cast<char>(number >> shift));
}

// Requires: at least 8 bytes.
inline uint64_t NumberAt(absl::string_view bytes) {
  uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number = number << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  return number;
}

inline constexpr size_t kKindAt = 8;                // index of the kind in a key
inline constexpr size_t kRestAt = kKindAt + 1;      // client id, or number of an upload
inline constexpr size_t kSequenceAt = kRestAt + 8;  // number of a chunk

inline std::string Make(uint64_t round, Kind kind) {
  std::string key;
  AppendNumber(round, &key);
  key.push_back(static_cast<char>(kind));
  return key;
}

inline std::string Submission(uint64_t round, absl::string_view client_id) {
  std::string key = Make(round, Kind::kSubmission);
  key.append(client_id.data(), client_id.size());
  return key;
}

inline std::string Upload(uint64_t round, uint64_t upload) {
  std::string key = Make(round, Kind::kUpload);
  AppendNumber(upload, &key);
  return key;
}

inline std::string Withdrawn(uint64_t round, uint64_t upload) {
  std::string key = Make(round, Kind::kWithdrawn);
  AppendNumber(upload, &key);
  return key;
}

// `round`: the number of the stream.
inline std::string Cut(uint64_t round, uint64_t version) {
  std::string key = Make(round, Kind::kCut);
  AppendNumber(version, &key);
  return key;
}

// The record of a version of the model `round`.
inline std::string ModelVersion(uint64_t round, uint64_t version) {
  std::string key = Make(round, Kind::kModelVersion);
  AppendNumber(version, &key);
  return key;
}

// The first of the upload's chunks; with upload + 1 the end of them.
inline std::string Chunks(uint64_t round, uint64_t upload) {
  std::string key = Make(round, Kind::kChunk);
  AppendNumber(upload, &key);
  return key;
}

inline std::string Chunk(uint64_t round, uint64_t upload, uint64_t sequence) {
  std::string key = Chunks(round, upload);
  AppendNumber(sequence, &key);
  return key;
}

// Begins the value of a chunk that lies in a file, before its reference. No message begins so: 0 is no field's tag.
inline constexpr char kReferenceMark = '\0';
inline bool IsReference(absl::string_view value) { return !value.empty() && value[0] == kReferenceMark; }

// Above the keys of all rounds, since their numbers are counted from 1: the keys of tasks.
inline std::string EndOfRounds() { return std::string(1, '\xff'); }

// Whether a key is that of a chunk, of whatever round.
inline bool IsChunk(absl::string_view key) {
  return key.size() > kSequenceAt && key < EndOfRounds() && static_cast<Kind>(key[kKindAt]) == Kind::kChunk;
}

enum class TaskKind : char { kTask = 0, kState = 1 };

inline constexpr size_t kTaskKindAt = 9;  // behind the first byte and the number

inline std::string Task(uint64_t number, TaskKind kind) {
  std::string key = EndOfRounds();
  AppendNumber(number, &key);
  key.push_back(static_cast<char>(kind));
  return key;
}

inline std::string EndOfTasks() { return EndOfRounds() + '\xff'; }

// The latest time of day that a run has seen.
inline std::string Seen() { return EndOfTasks(); }

}  // namespace sparseagg::service::keys

#endif  // SPARSEAGG_SERVICE_STORE_KEYS_H_
