// SPDX-License-Identifier: Apache-2.0
// The operators as MindSpore's ops.Custom("<library>:<name>", func_type="aot") calls them on a CPU: one C function per
// operator, whose body names its tensors in order.
//
// `params` holds the scalars, the inputs and the outputs. The scalars are one float32 tensor. Its first number is a bit
// mask of the optional inputs that are there: bit i stands for the i-th optional input of the list. A tensor that is not
// there is left out, and so is the output that belongs to it. x is [T, N, D] or [B, S, N, D], in general [..., N, D];
// whatever has x's element type (float32, float16 or bfloat16) is a void pointer in mhc.h, and everything else is float32.
//
// The second number says which sources the caller was written for. MindSpore can keep compiled graphs in files, and
// looks for changes in the user's program only: a graph may be older than this library.
//
// A function returns 0, or one of Status; it throws nothing, and prints nothing but on kOtherVersion.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "export.h"
#include "mhc.h"

MHC_EXPORT const char *MhcSourceDigest();

namespace {

enum Status : int {
  kDone = 0,
  kWrongCount = 1,    // the number of tensors is not what the mask says
  kWrongType = 2,     // an element type
  kWrongShape = 3,    // a shape does not fit x's
  kWrongScalar = 4,   // the mask, num_iters or recipe
  kFailed = 5,        // no memory, or another exception
  kOtherVersion = 6,  // the scalars are those of other sources
};

// Thrown and caught in this file only.
struct Refused {
  Status status;
};

constexpr float kMostIterations = 1e6f;

// The first 24 bits of the digest, which a float holds exactly.
float version() {
  static const float value = static_cast<float>(std::strtoul(std::string(MhcSourceDigest(), 0, 6).c_str(), nullptr, 16));
  return value;
}

void say_other_version() {
  std::fputs(
      "ms_mhc: this compiled graph was made by another version of ms_mhc. MindSpore took it from its compile cache: "
      "delete that folder (MS_COMPILER_CACHE_PATH).\n",
      stderr);
}

bool is_integer(float value, float least, float most) {
  return value >= least && value <= most && value == std::floor(value);
}

void read(float given, float *value) { *value = given; }

void read(float given, int64_t *num_iters) {
  if (!is_integer(given, 1.0f, kMostIterations)) throw Refused{kWrongScalar};
  *num_iters = static_cast<int64_t>(given);
}

void read(float given, mhc::Recipe *recipe) {
  if (given == 0.0f) *recipe = mhc::Recipe::kDeepSeekV4;
  else if (given == 1.0f) *recipe = mhc::Recipe::kPaper;
  else throw Refused{kWrongScalar};
}

bool element_of(const char *dtype, mhc::Element *element) {
  if (std::strcmp(dtype, "float32") == 0) *element = mhc::Element::kFloat32;
  else if (std::strcmp(dtype, "float16") == 0) *element = mhc::Element::kFloat16;
  else if (std::strcmp(dtype, "bfloat16") == 0) *element = mhc::Element::kBFloat16;
  else return false;
  return true;
}

// What MindSpore hands over.
struct Given {
  int count;
  void **params;
  const int *ndims;
  int64_t **shapes;
  const char **dtypes;
};

// Sizes of dimensions. kT, first, stands for all dimensions of the tokens together.
enum Dim : int { kT, kN, kD, kF, kND, kThree };

// Takes the tensors of a call one after the other. The same list is gone through twice: once only to count, so that a
// tensor too many or too few is told as such and not as the wrong type or shape of its neighbour.
class Tensors {
 public:
  explicit Tensors(const Given &given) : given_(given) {
    if (given.count < 2 || !given.params || !given.ndims || !given.shapes || !given.dtypes) throw Refused{kWrongCount};
  }

  template <typename... Values>
  void scalars(Values *...values) {
    constexpr int kCount = 2 + static_cast<int>(sizeof...(values));
    next_ = 1;
    bit_ = 1;
    if (!has_type(0, mhc::Element::kFloat32)) throw Refused{kWrongType};
    if (given_.ndims[0] != 1 || given_.shapes[0][0] != kCount) throw Refused{kWrongShape};
    if (!given_.params[0]) throw Refused{kFailed};
    const float *from = static_cast<const float *>(given_.params[0]);
    if (from[1] != version()) throw Refused{kOtherVersion};
    if (!is_integer(from[0], 0.0f, 255.0f)) throw Refused{kWrongScalar};
    mask_ = static_cast<unsigned>(*from++);
    (read(*++from, values), ...);
  }

  // The element type and the sizes, from the first tensor behind the scalars, which has x's shape.
  void measure(mhc::Sizes *sizes) {
    const int ndim = given_.ndims[1];
    const int64_t *shape = given_.shapes[1];
    if (!element_of(given_.dtypes[1], &element_)) throw Refused{kWrongType};
    if (ndim < 2) throw Refused{kWrongShape};
    sizes_ = {1, shape[ndim - 2], shape[ndim - 1]};
    for (int i = 0; i < ndim - 2; ++i) sizes_.tokens *= shape[i];
    if (sizes_.tokens < 0 || sizes_.streams < 1 || sizes_.hidden < 1) throw Refused{kWrongShape};
    *sizes = sizes_;
  }

  void measure(mhc::Element *element, mhc::Sizes *sizes) {
    measure(sizes);
    *element = element_;
  }

  void begin_counting() { counting_ = true; }

  // Every tensor was counted, and every bit of the mask belongs to one.
  void end_counting() {
    if (mask_ >= bit_) throw Refused{kWrongScalar};
    if (next_ != given_.count) throw Refused{kWrongCount};
    counting_ = false;
  }

  // const float *, float *: float32. const void *, void *: the element type of x.
  template <typename Pointer>
  void take(Pointer *tensor, std::initializer_list<Dim> dims) {
    void *data = next(is_float32(*tensor), dims);
    *tensor = static_cast<Pointer>(data);
  }

  template <typename Pointer>
  bool take_optional(Pointer *tensor, std::initializer_list<Dim> dims) {
    const bool there = (mask_ & bit_) != 0;
    bit_ <<= 1;
    if (there) take(tensor, dims);
    return there;
  }

 private:
  static bool is_float32(const float *) { return true; }
  static bool is_float32(const void *) { return false; }

  bool has_type(int index, mhc::Element wanted) const {
    mhc::Element found;
    return element_of(given_.dtypes[index], &found) && found == wanted;
  }

  int64_t size_of(Dim dim) const {
    switch (dim) {
      case kT: return sizes_.tokens;
      case kN: return sizes_.streams;
      case kD: return sizes_.hidden;
      case kF: return sizes_.streams * (sizes_.streams + 2);
      case kND: return sizes_.streams * sizes_.hidden;
      case kThree: return 3;
    }
    return 0;
  }

  void *next(bool float32, std::initializer_list<Dim> dims) {
    const int index = next_++;
    if (counting_) return nullptr;
    if (!has_type(index, float32 ? mhc::Element::kFloat32 : element_)) throw Refused{kWrongType};
    const int64_t *shape = given_.shapes[index];
    const int64_t *const end = shape + given_.ndims[index];
    int64_t count = 1;
    for (const Dim *dim = dims.begin(); dim != dims.end(); ++dim) {
      int64_t size = 1;
      const int64_t *const last = dim == dims.begin() && *dim == kT ? end - (dims.size() - 1) : shape + 1;
      if (last < shape || last > end) throw Refused{kWrongShape};
      while (shape != last) size *= *shape++;
      if (size != size_of(*dim)) throw Refused{kWrongShape};
      count *= size;
    }
    if (shape != end) throw Refused{kWrongShape};
    if (!given_.params[index] && count != 0) throw Refused{kFailed};
    return given_.params[index];
  }

  Given given_;
  mhc::Element element_ = mhc::Element::kFloat32;
  mhc::Sizes sizes_{};
  int next_ = 0;
  unsigned mask_ = 0, bit_ = 1;
  bool counting_ = false;
};

// Reads the arguments by their list, then computes.
template <typename Arguments, typename List>
int call(const Given &given, void (*compute)(const Arguments &), const List &list) noexcept {
  try {
    Tensors tensors(given);
    Arguments arguments{};
    tensors.begin_counting();
    list(tensors, arguments);
    tensors.end_counting();
    list(tensors, arguments);
    compute(arguments);
    return kDone;
  } catch (const Refused &refused) {
    if (refused.status == kOtherVersion) say_other_version();
    return refused.status;
  } catch (...) {
    return kFailed;
  }
}

void list_pre(Tensors &t, mhc::PreForward &a) {
  t.measure(&a.element, &a.sizes);
  t.take(&a.x, {kT, kN, kD});
  t.take(&a.phi, {kF, kND});
  t.take(&a.alpha, {kThree});
  t.take(&a.bias, {kF});
  t.take_optional(&a.gamma, {kN, kD});
  t.take(&a.h_in, {kT, kD});
  t.take(&a.h_post, {kT, kN});
  t.take(&a.h_res, {kT, kN, kN});
  t.take(&a.inv_rms, {kT});
  t.take(&a.h_mix, {kT, kF});
  t.take(&a.h_pre, {kT, kN});
}

// bias, unless null, is where one more input goes.
void list_pre_backward(Tensors &t, mhc::PreBackward &a, const float **bias) {
  t.measure(&a.element, &a.sizes);
  t.take(&a.x, {kT, kN, kD});
  t.take(&a.phi, {kF, kND});
  t.take(&a.alpha, {kThree});
  if (bias) t.take(bias, {kF});
  t.take(&a.grad_h_in, {kT, kD});
  t.take(&a.grad_h_post, {kT, kN});
  t.take(&a.grad_h_res, {kT, kN, kN});
  t.take(&a.inv_rms, {kT});
  t.take(&a.h_mix, {kT, kF});
  t.take(&a.h_pre, {kT, kN});
  t.take(&a.h_post, {kT, kN});
  const bool with_gamma = t.take_optional(&a.gamma, {kN, kD});
  t.take_optional(&a.grad_x_post, {kT, kN, kD});
  t.take(&a.grad_x, {kT, kN, kD});
  t.take(&a.grad_phi, {kF, kND});
  t.take(&a.grad_alpha, {kThree});
  t.take(&a.grad_bias, {kF});
  if (with_gamma) t.take(&a.grad_gamma, {kN, kD});
}

}  // namespace

#define MHC_OPERATOR(name) \
  MHC_EXPORT int name(int count, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *, void *)
#define MHC_GIVEN (Given{count, params, ndims, shapes, dtypes})

MHC_OPERATOR(MhcPre) {
  return call(MHC_GIVEN, mhc::pre_forward, [](Tensors &t, mhc::PreForward &a) {
    t.scalars(&a.norm_eps, &a.hc_eps);
    list_pre(t, a);
  });
}

MHC_OPERATOR(MhcPreBackward) {
  return call(MHC_GIVEN, mhc::pre_backward, [](Tensors &t, mhc::PreBackward &a) {
    t.scalars(&a.hc_eps);
    list_pre_backward(t, a, nullptr);
  });
}

MHC_OPERATOR(MhcPost) {
  return call(MHC_GIVEN, mhc::post_forward, [](Tensors &t, mhc::PostForward &a) {
    t.scalars();
    t.measure(&a.element, &a.sizes);
    t.take(&a.x, {kT, kN, kD});
    t.take_optional(&a.h_res, {kT, kN, kN});
    t.take(&a.h_out, {kT, kD});
    t.take(&a.h_post, {kT, kN});
    t.take(&a.out, {kT, kN, kD});
  });
}

MHC_OPERATOR(MhcPostBackward) {
  return call(MHC_GIVEN, mhc::post_backward, [](Tensors &t, mhc::PostBackward &a) {
    t.scalars();
    t.measure(&a.element, &a.sizes);
    t.take(&a.grad_output, {kT, kN, kD});
    t.take(&a.x, {kT, kN, kD});
    const bool with_h_res = t.take_optional(&a.h_res, {kT, kN, kN});
    t.take(&a.h_out, {kT, kD});
    t.take(&a.h_post, {kT, kN});
    t.take(&a.grad_x, {kT, kN, kD});
    if (with_h_res) t.take(&a.grad_h_res, {kT, kN, kN});
    t.take(&a.grad_h_out, {kT, kD});
    t.take(&a.grad_h_post, {kT, kN});
  });
}

MHC_OPERATOR(MhcSinkhorn) {
  return call(MHC_GIVEN, mhc::sinkhorn_forward, [](Tensors &t, mhc::SinkhornForward &a) {
    t.scalars(&a.eps, &a.num_iters, &a.recipe);
    t.measure(&a.sizes);
    t.take(&a.x, {kT, kN, kN});
    t.take(&a.output, {kT, kN, kN});
  });
}

MHC_OPERATOR(MhcSinkhornBackward) {
  return call(MHC_GIVEN, mhc::sinkhorn_backward, [](Tensors &t, mhc::SinkhornBackward &a) {
    t.scalars(&a.eps, &a.num_iters, &a.recipe);
    t.measure(&a.sizes);
    t.take(&a.grad_output, {kT, kN, kN});
    t.take(&a.x, {kT, kN, kN});
    t.take(&a.grad_x, {kT, kN, kN});
  });
}

MHC_OPERATOR(MhcPreSinkhorn) {
  return call(MHC_GIVEN, mhc::pre_sinkhorn_forward, [](Tensors &t, mhc::PreSinkhornForward &a) {
    t.scalars(&a.pre.norm_eps, &a.pre.hc_eps, &a.eps, &a.num_iters, &a.recipe);
    list_pre(t, a.pre);
  });
}

MHC_OPERATOR(MhcPreSinkhornBackward) {
  return call(MHC_GIVEN, mhc::pre_sinkhorn_backward, [](Tensors &t, mhc::PreSinkhornBackward &a) {
    t.scalars(&a.pre.hc_eps, &a.eps, &a.num_iters, &a.recipe);
    list_pre_backward(t, a.pre, &a.bias);
  });
}
