#include "runtime/aclop.h"

#include <algorithm>

#include "runtime/host.h"

namespace {

constexpr int kMemoryHost = 1;  // ACL_MEMTYPE_HOST

template <typename Object>
Object *counted(Object *object) {
  host::count(host::Kind::kOperatorObject, 1);
  return object;
}

template <typename Object>
void destroy(const Object *object) {
  if (object == nullptr) return;
  host::count(host::Kind::kOperatorObject, -1);
  delete object;
}

aclError set(aclopAttr *attr, const char *name, std::vector<double> values) {
  attr->numbers[name] = std::move(values);
  return host::kSuccess;
}

template <typename Value>
aclError set_list(aclopAttr *attr, const char *name, int count, const Value *values) {
  return set(attr, name, std::vector<double>(values, values + count));
}

}  // namespace

extern "C" {

HOST_API aclTensorDesc *aclCreateTensorDesc(aclDataType type, int rank, const std::int64_t *dims, aclFormat format) {
  const std::vector<std::int64_t> shape(dims, dims + (dims == nullptr ? 0 : rank));
  return counted(new aclTensorDesc{type, shape, format, "", false});
}

HOST_API void aclDestroyTensorDesc(const aclTensorDesc *desc) { destroy(desc); }

HOST_API aclError aclSetTensorFormat(aclTensorDesc *desc, aclFormat format) {
  desc->format = format;
  return host::kSuccess;
}

HOST_API aclError aclSetTensorShape(aclTensorDesc *, int, const std::int64_t *) {
  return host::kSuccess;  // the shape in the device's own format, which is the same here
}

HOST_API void aclSetTensorDescName(aclTensorDesc *desc, const char *name) { desc->name = name; }

HOST_API aclError aclSetTensorConst(aclTensorDesc *, void *, std::size_t) { return host::kSuccess; }

HOST_API aclError aclSetTensorPlaceMent(aclTensorDesc *desc, int memory) {
  desc->on_host = memory == kMemoryHost;
  return host::kSuccess;
}

HOST_API aclDataType aclGetTensorDescType(const aclTensorDesc *desc) { return desc->dtype; }

HOST_API aclFormat aclGetTensorDescFormat(const aclTensorDesc *desc) { return desc->format; }

HOST_API std::size_t aclGetTensorDescNumDims(const aclTensorDesc *desc) { return desc->shape.size(); }

HOST_API std::int64_t aclGetTensorDescDim(const aclTensorDesc *desc, std::size_t index) {
  return index < desc->shape.size() ? desc->shape[index] : -1;
}

HOST_API aclError aclGetTensorDescDimV2(const aclTensorDesc *desc, std::size_t index, std::int64_t *size) {
  *size = aclGetTensorDescDim(desc, index);
  return *size < 0 ? host::kInvalidParameter : host::kSuccess;
}

HOST_API std::size_t aclGetTensorDescSize(const aclTensorDesc *desc) {
  std::size_t size = host::size_of(desc->dtype);
  for (std::int64_t dim : desc->shape) size *= static_cast<std::size_t>(dim);
  return size;
}

HOST_API aclDataBuffer *aclCreateDataBuffer(void *data, std::size_t size) {
  return counted(new aclDataBuffer{data, size});
}

HOST_API aclError aclDestroyDataBuffer(const aclDataBuffer *buffer) {
  destroy(buffer);
  return host::kSuccess;
}

HOST_API aclError aclUpdateDataBuffer(aclDataBuffer *buffer, void *data, std::size_t size) {
  *buffer = {data, size};
  return host::kSuccess;
}

HOST_API void *aclGetDataBufferAddr(const aclDataBuffer *buffer) { return buffer->data; }

HOST_API aclopAttr *aclopCreateAttr() { return new aclopAttr; }  // not counted: MindSpore never destroys them
HOST_API void aclopDestroyAttr(const aclopAttr *attr) { delete attr; }

HOST_API aclError aclopSetAttrBool(aclopAttr *attr, const char *name, std::uint8_t value) {
  return set(attr, name, {static_cast<double>(value)});
}

HOST_API aclError aclopSetAttrInt(aclopAttr *attr, const char *name, std::int64_t value) {
  return set(attr, name, {static_cast<double>(value)});
}

HOST_API aclError aclopSetAttrFloat(aclopAttr *attr, const char *name, float value) {
  return set(attr, name, {static_cast<double>(value)});
}

HOST_API aclError aclopSetAttrDataType(aclopAttr *attr, const char *name, aclDataType value) {
  return set(attr, name, {static_cast<double>(value)});
}

HOST_API aclError aclopSetAttrString(aclopAttr *attr, const char *name, const char *value) {
  attr->texts[name] = value;
  return host::kSuccess;
}

HOST_API aclError aclopSetAttrListBool(aclopAttr *attr, const char *name, int count, const std::uint8_t *values) {
  return set_list(attr, name, count, values);
}

HOST_API aclError aclopSetAttrListInt(aclopAttr *attr, const char *name, int count, const std::int64_t *values) {
  return set_list(attr, name, count, values);
}

HOST_API aclError aclopSetAttrListFloat(aclopAttr *attr, const char *name, int count, const float *values) {
  return set_list(attr, name, count, values);
}

}  // extern "C"
