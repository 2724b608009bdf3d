#include "framework/objects.h"

#include <cstring>

#include "framework/status.h"
#include "framework/floats.h"

namespace host {

std::string to_string(const Shape &shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

const char *dtype_name(aclDataType type) {
  switch (type) {
    case ACL_FLOAT: return "float32";
    case ACL_FLOAT16: return "float16";
    case ACL_BF16: return "bfloat16";
    case ACL_DOUBLE: return "float64";
    case ACL_INT8: return "int8";
    case ACL_INT16: return "int16";
    case ACL_INT32: return "int32";
    case ACL_INT64: return "int64";
    case ACL_UINT8: return "uint8";
    case ACL_UINT16: return "uint16";
    case ACL_UINT32: return "uint32";
    case ACL_UINT64: return "uint64";
    case ACL_BOOL: return "bool";
    case ACL_COMPLEX64: return "complex64";
    case ACL_COMPLEX128: return "complex128";
    default: return "undefined";
  }
}

Shape contiguous_strides(const Shape &shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

bool Tensor::contiguous() const {
  const Shape dense = contiguous_strides(shape);
  for (std::size_t i = 0; i < rank(); ++i) {
    if (shape[i] != 1 && strides[i] != dense[i]) return false;
  }
  return true;
}

std::string Tensor::describe() const { return dtype_name(dtype) + to_string(shape); }

std::pair<std::int64_t, std::int64_t> Tensor::reach() const {
  std::int64_t first = offset, last = offset;
  for (std::size_t i = 0; i < rank(); ++i) (strides[i] < 0 ? first : last) += (shape[i] - 1) * strides[i];
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  return {first * bytes, (last + 1) * bytes};
}

template <typename Object>
Handles<Object, typename Interface<Object>::Handle> &objects() {
  return immortal<Handles<Object, typename Interface<Object>::Handle>>(Interface<Object>::kind);
}

template HOST_API Handles<Tensor, aclTensor> &objects<Tensor>();
template HOST_API Handles<TensorList, aclTensorList> &objects<TensorList>();
template HOST_API Handles<Scalar, aclScalar> &objects<Scalar>();
template HOST_API Handles<ScalarList, aclScalarList> &objects<ScalarList>();
template HOST_API Handles<IntArray, aclIntArray> &objects<IntArray>();
template HOST_API Handles<BoolArray, aclBoolArray> &objects<BoolArray>();
template HOST_API Handles<FloatArray, aclFloatArray> &objects<FloatArray>();

namespace {

template <typename Object>
aclnnStatus destroy(const typename Interface<Object>::Handle *handle, const char *caller) {
  if (handle == nullptr || objects<Object>().remove(handle) != nullptr) return kOk;
  report_error(text(caller, objects<Object>().known(handle) ? ": destroyed twice" : ": not such an object"));
  return kInvalid;
}

template <typename Object, typename Value>
typename Interface<Object>::Handle *create_array(const Value *values, std::uint64_t size) {
  auto array = std::make_shared<Object>();
  array->values.assign(values, values + size);
  return objects<Object>().insert(std::move(array));
}

// A list owns its entries from now on, as the vendor says: destroying the list destroys them.
template <typename List, typename Object>
typename Interface<List>::Handle *create_list(std::vector<std::shared_ptr<Object>> List::*entries,
                                              const typename Interface<Object>::Handle *const *handles,
                                              std::uint64_t size, const char *caller) {
  auto list = std::make_shared<List>();
  for (std::uint64_t i = 0; i < size; ++i) {
    auto entry = objects<Object>().remove(handles[i]);
    if (entry == nullptr) {
      report_error(text(caller, ": entry ", i, " is not a living object of its kind"));
      return nullptr;
    }
    (list.get()->*entries).push_back(std::move(entry));
  }
  return objects<List>().insert(std::move(list));
}

template <typename T>
T read(const void *value) {
  T result;
  std::memcpy(&result, value, sizeof(T));
  return result;
}

Scalar read_scalar(const void *value, aclDataType type) {
  Scalar scalar{type, 0, 0};
  switch (type) {
    case ACL_FLOAT: scalar.real = read<float>(value); break;
    case ACL_DOUBLE: scalar.real = read<double>(value); break;
    case ACL_FLOAT16: scalar.real = to_float(read<Half>(value)); break;
    case ACL_BF16: scalar.real = to_float(read<BFloat16>(value)); break;
    case ACL_BOOL: scalar.integer = read<bool>(value); break;
    case ACL_INT8: scalar.integer = read<std::int8_t>(value); break;
    case ACL_UINT8: scalar.integer = read<std::uint8_t>(value); break;
    case ACL_INT16: scalar.integer = read<std::int16_t>(value); break;
    case ACL_INT32: scalar.integer = read<std::int32_t>(value); break;
    case ACL_INT64: scalar.integer = read<std::int64_t>(value); break;
    default: throw Failure(kInvalid, text("aclCreateScalar: dtype ", dtype_name(type), " is not served"));
  }
  return scalar;
}

}  // namespace
}  // namespace host

using namespace host;

extern "C" {

HOST_API aclTensor *aclCreateTensor(const std::int64_t *dims, std::uint64_t rank, aclDataType type,
                                    const std::int64_t *strides, std::int64_t offset, aclFormat format,
                                    const std::int64_t *storage_dims, std::uint64_t storage_rank, void *data) {
  auto tensor = std::make_shared<Tensor>();
  if (rank > 0) tensor->shape.assign(dims, dims + rank);
  tensor->strides = contiguous_strides(tensor->shape);
  if (strides != nullptr && rank > 0) tensor->strides.assign(strides, strides + rank);
  tensor->offset = offset;
  tensor->dtype = type;
  tensor->format = format;
  if (storage_rank > 0) tensor->storage_shape.assign(storage_dims, storage_dims + storage_rank);
  tensor->data = data;
  return objects<Tensor>().insert(std::move(tensor));
}

HOST_API aclScalar *aclCreateScalar(void *value, aclDataType type) {
  try {
    return objects<Scalar>().insert(std::make_shared<Scalar>(read_scalar(value, type)));
  } catch (const Failure &failure) {
    report_error(failure.what());
    return nullptr;
  }
}

HOST_API aclIntArray *aclCreateIntArray(const std::int64_t *values, std::uint64_t size) {
  return create_array<IntArray>(values, size);
}

HOST_API aclFloatArray *aclCreateFloatArray(const float *values, std::uint64_t size) {
  return create_array<FloatArray>(values, size);
}

HOST_API aclBoolArray *aclCreateBoolArray(const bool *values, std::uint64_t size) {
  return create_array<BoolArray>(values, size);
}

HOST_API aclTensorList *aclCreateTensorList(const aclTensor *const *tensors, std::uint64_t size) {
  return create_list<TensorList>(&TensorList::tensors, tensors, size, "aclCreateTensorList");
}

HOST_API aclScalarList *aclCreateScalarList(const aclScalar *const *scalars, std::uint64_t size) {
  return create_list<ScalarList>(&ScalarList::scalars, scalars, size, "aclCreateScalarList");
}

HOST_API aclnnStatus aclDestroyTensor(const aclTensor *h) { return destroy<Tensor>(h, "aclDestroyTensor"); }
HOST_API aclnnStatus aclDestroyScalar(const aclScalar *h) { return destroy<Scalar>(h, "aclDestroyScalar"); }
HOST_API aclnnStatus aclDestroyScalarList(const aclScalarList *h) {
  return destroy<ScalarList>(h, "aclDestroyScalarList");
}
HOST_API aclnnStatus aclDestroyIntArray(const aclIntArray *h) { return destroy<IntArray>(h, "aclDestroyIntArray"); }
HOST_API aclnnStatus aclDestroyBoolArray(const aclBoolArray *h) { return destroy<BoolArray>(h, "aclDestroyBoolArray"); }
HOST_API aclnnStatus aclDestroyFloatArray(const aclFloatArray *h) {
  return destroy<FloatArray>(h, "aclDestroyFloatArray");
}
HOST_API aclnnStatus aclDestroyTensorList(const aclTensorList *h) {
  return destroy<TensorList>(h, "aclDestroyTensorList");
}

// The caller frees the dimensions with delete[].
HOST_API aclnnStatus aclGetViewShape(const aclTensor *handle, std::int64_t **dims, std::uint64_t *rank) {
  auto tensor = objects<Tensor>().find(handle);
  if (tensor == nullptr) {
    report_error("aclGetViewShape: not a living tensor");
    return kInvalid;
  }
  *rank = tensor->rank();
  *dims = new std::int64_t[tensor->rank()];
  std::copy(tensor->shape.begin(), tensor->shape.end(), *dims);
  return kOk;
}

}  // extern "C"
