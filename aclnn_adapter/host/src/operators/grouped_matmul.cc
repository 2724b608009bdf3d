// Products of matrices that stand one after another in a tensor, as the experts of a mixture use them.
#include <vector>

#include "framework/operator.h"
#include "operators/engine.h"
#include "operators/matmul.h"
#include "operators/moving.h"

namespace host {
namespace {

constexpr std::int64_t kNone = -1, kRows = 0, kInner = 2;  // groupType: the axis that is divided into groups

// The matrices of a list: those of one tensor [groups, rows, columns], or one matrix per tensor.
Tensor matrix(const TensorList &list, std::size_t group) {
  const Tensor &only = *list.tensors[0];
  if (list.tensors.size() > 1 || only.rank() == 2) return *list.tensors[list.tensors.size() > 1 ? group : 0];
  Tensor view = narrowed(only, 0, static_cast<std::int64_t>(group), 1);
  view.shape.erase(view.shape.begin());
  view.strides.erase(view.strides.begin());
  return view;
}

std::size_t matrices(const TensorList &list) {
  const Tensor &first = *list.tensors.at(0);
  return list.tensors.size() == 1 && first.rank() == 3 ? static_cast<std::size_t>(first.shape[0]) : list.tensors.size();
}

void multiply(const Tensor &a, const Tensor &b, const Tensor &out) {
  require(a.rank() == 2 && b.rank() == 2 && out.shape == Shape({a.shape[0], b.shape[1]}) && a.shape[1] == b.shape[0],
          kInvalid, "aclnnGroupedMatmul: ", a.describe(), " times ", b.describe(), " in ", out.describe());
  if (out.empty()) return;
  if (a.shape[1] == 0) return map<float>([] { return 0.0F; }, out);
  multiply_batches(a, b, out);
}

struct Groups {
  std::vector<std::int64_t> ends;

  // Numbers are where the groups end (type 0) or how many positions they have (type 1).
  Groups(std::vector<std::int64_t> numbers, std::int64_t type) : ends(std::move(numbers)) {
    if (type == 1) {
      for (std::size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
    }
  }

  Tensor part(const Tensor &tensor, std::size_t axis, std::size_t group) const {
    const std::int64_t start = group == 0 ? 0 : ends[group - 1];
    require(start <= ends[group] && ends[group] <= tensor.shape[axis], kRuntimeError, "aclnnGroupedMatmul: group ",
            group, " from ", start, " to ", ends[group], " of ", tensor.describe());
    return narrowed(tensor, axis, start, ends[group] - start);
  }
};

void multiply_groups(const TensorList &x, const TensorList &weight, const Groups &groups, std::int64_t type,
                     const TensorList &out) {
  if (type == kNone) {
    for (std::size_t i = 0; i < x.tensors.size(); ++i) multiply(*x.tensors[i], matrix(weight, i), *out.tensors[i]);
    return;
  }
  const Tensor &from = *x.tensors[0];
  const bool whole = out.tensors.size() == 1;
  for (std::size_t i = 0; i < groups.ends.size(); ++i) {
    if (type == kRows) {
      multiply(groups.part(from, 0, i), matrix(weight, i), whole ? groups.part(*out.tensors[0], 0, i) : *out.tensors[i]);
    } else {
      multiply(groups.part(from, 1, i), groups.part(*weight.tensors[0], 0, i), matrix(out, i));
    }
  }
}

std::vector<std::int64_t> numbers(const Tensor *tensor) {
  if (tensor == nullptr) return {};
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor->size()));
  load(*tensor, 0, tensor->rank() == 0 ? 1 : tensor->strides[0], tensor->size(), values.data());
  return values;
}

std::vector<std::int64_t> numbers(const IntArray *array) { return array == nullptr ? std::vector<std::int64_t>{} : array->values; }

void check(const TensorList &x, const TensorList &weight, std::size_t groups, std::int64_t type, const TensorList &out) {
  require(type == kNone || type == kRows || type == kInner, kInvalid, "aclnnGroupedMatmul: groupType ", type,
          " is not -1, 0 or 2");
  if (type == kNone) {
    require(matrices(weight) == x.tensors.size() && out.tensors.size() == x.tensors.size(), kInvalid,
            "aclnnGroupedMatmul: ", x.tensors.size(), " x, ", weight.tensors.size(), " weights, ", out.tensors.size(), " y");
    return;
  }
  require(x.tensors.size() == 1 && groups > 0, kInvalid, "aclnnGroupedMatmul: one x and a group list are needed");
  const std::size_t given = matrices(type == kRows ? weight : out);
  require(given == groups, kInvalid, "aclnnGroupedMatmul: ", groups, " groups and ", given, " matrices");
}

// No element: what the vendor calls an absent list.
bool absent(const TensorList *list) {
  if (list == nullptr) return true;
  for (const auto &tensor : list->tensors) {
    if (!tensor->empty()) return false;
  }
  return true;
}

template <typename GroupList>
Plan plan(const TensorList &x, const TensorList &weight, std::initializer_list<const TensorList *> unserved,
          const GroupList *list, std::int64_t type, std::int64_t list_type, TensorList &out) {
  for (const TensorList *other : unserved) {
    require(absent(other), kInvalid, "aclnnGroupedMatmul: bias, quantisation and activation are not served by the host CANN");
  }
  check(x, weight, list == nullptr ? 0 : numbers(list).size(), type, out);
  return {[&x, &weight, list, type, list_type, &out] {
    multiply_groups(x, weight, Groups(numbers(list), list_type), type, out);
  }};
}

Plan version_2(const TensorList &x, const TensorList &weight, const TensorList *bias, const TensorList *scale,
               const TensorList *offset, const TensorList *anti_scale, const TensorList *anti_offset,
               const IntArray *groups, std::int64_t, std::int64_t type, TensorList &out) {
  return plan(x, weight, {bias, scale, offset, anti_scale, anti_offset}, groups, type, 0, out);
}

Plan version_3(const TensorList &x, const TensorList &weight, const TensorList *bias, const TensorList *scale,
               const TensorList *offset, const TensorList *anti_scale, const TensorList *anti_offset,
               const Tensor *groups, std::int64_t, std::int64_t type, TensorList &out) {
  return plan(x, weight, {bias, scale, offset, anti_scale, anti_offset}, groups, type, 0, out);
}

Plan version_4(const TensorList &x, const TensorList &weight, const TensorList *bias, const TensorList *scale,
               const TensorList *offset, const TensorList *anti_scale, const TensorList *anti_offset,
               const TensorList *token_scale, const Tensor *groups, const TensorList *activation,
               const TensorList *activation_scale, const TensorList *activation_offset, std::int64_t, std::int64_t type,
               std::int64_t list_type, std::int64_t act, TensorList &out, TensorList *, TensorList *) {
  require(act == 0, kInvalid, "aclnnGroupedMatmulV4: activation ", act, " is not served by the host CANN");
  return plan(x, weight,
              {bias, scale, offset, anti_scale, anti_offset, token_scale, activation, activation_scale, activation_offset},
              groups, type, list_type, out);
}

}  // namespace
}  // namespace host

ACLNN_OPERATOR(aclnnGroupedMatmulV2, host::version_2)
ACLNN_OPERATOR(aclnnGroupedMatmulV3, host::version_3)
ACLNN_OPERATOR(aclnnGroupedMatmulV4, host::version_4)
