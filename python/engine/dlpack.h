// The structures by which DLPack describes an array, as its specification lays them out in memory:
// https://dmlc.github.io/dlpack/latest/c_api.html
#ifndef SPARSEAGG_PYTHON_ENGINE_DLPACK_H_
#define SPARSEAGG_PYTHON_ENGINE_DLPACK_H_

#include <cstdint>

namespace sparseagg::python::dlpack {

// Values of Device::device_type.
inline constexpr int32_t kCuda = 2;
inline constexpr int32_t kCudaManaged = 13;

struct Device {
  int32_t device_type;
  int32_t device_id;
};

struct DataType {
  uint8_t code;    // 0: signed integer, 1: unsigned, 2: float, 4: bfloat, 5: complex, 6: bool
  uint8_t bits;    // of one lane
  uint16_t lanes;  // 1 but for vector types
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in entries; null: row-major without gaps
  uint64_t byte_offset;
};

// What a capsule "dltensor" points to. Whoever takes it renames the capsule "used_dltensor", and calls the deleter
// once.
struct ManagedTensor {
  Tensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor*);  // may be null
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

// What a capsule "dltensor_versioned" points to. With another major version, only `version` and `deleter` have the
// meaning and place that they have here.
struct VersionedTensor {
  Version version;
  void* manager_context;
  void (*deleter)(VersionedTensor*);
  uint64_t flags;
  Tensor tensor;
};

inline constexpr uint32_t kMajorVersion = 1;

}  // namespace sparseagg::python::dlpack

#endif  // SPARSEAGG_PYTHON_ENGINE_DLPACK_H_
