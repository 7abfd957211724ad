// SPDX-License-Identifier: Apache-2.0
// Reciprocals, roots and transcendental functions. The hardware's approximate forms are computed exactly
// rounded or nearly so: PTX bounds their error from above only.
#include "tests/software_gpu/interpreter_float.h"
#include "tests/software_gpu/interpreter_integer.h"

namespace causeway::software_gpu {
namespace {

struct Reciprocal {
  template <class T>
  T operator()(T x) const {
    return T{1} / x;
  }
};
struct SquareRoot {
  template <class T>
  T operator()(T x) const {
    return std::sqrt(x);
  }
};
struct ReciprocalSquareRoot {
  template <class T>
  T operator()(T x) const {
    return static_cast<T>(1 / std::sqrt(static_cast<double>(x)));
  }
};
struct Sine {
  template <class T>
  T operator()(T x) const {
    return std::sin(x);
  }
};
struct Cosine {
  template <class T>
  T operator()(T x) const {
    return std::cos(x);
  }
};
struct PowerOfTwo {
  template <class T>
  T operator()(T x) const {
    return std::exp2(x);
  }
};
struct Logarithm {
  template <class T>
  T operator()(T x) const {
    return std::log2(x);
  }
};
struct HyperbolicTangent {
  template <class T>
  T operator()(T x) const {
    return std::tanh(x);
  }
};

template <class T, class F>
Step Evaluate(Thread& thread, const Op& op) {
  T given = Read<T>(thread, op.a);
  if ((op.mode & kFlushSubnormals) != 0) given = FlushSubnormal(given);
  const volatile T x = given;
  volatile T result;
  {
    const RoundingScope scope(op.mode);
    result = F()(T{x});
  }
  T value = result;
  if ((op.mode & kFlushSubnormals) != 0) value = FlushSubnormal(value);
  Write<T>(thread, op.d, Canonical(value));
  return Step::kNext;
}

template <class H, int kCount, class F>
Step EvaluateNarrow(Thread& thread, const Op& op) {
  uint64_t packed = 0;
  for (int i = 0; i < kCount; ++i) {
    const H x{static_cast<uint16_t>(thread.regs[op.a] >> (16 * i))};
    const H result = FromDouble<H>(F()(ToDouble(x)), kNearestEven);
    packed |= static_cast<uint64_t>(result.bits) << (16 * i);
  }
  thread.regs[op.d] = packed;
  return Step::kNext;
}

template <class F>
void LowerFunction1(Lowering& lowering) {
  lowering.Take("approx");
  Op op;
  op.mode = TakeFloatMode(lowering);
  const Type type = lowering.TakeType();
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  switch (type) {
    case Type::kF32:
      return lowering.Emit(Evaluate<float, F>, op);
    case Type::kF64:
      return lowering.Emit(Evaluate<double, F>, op);
    case Type::kF16:
      return lowering.Emit(EvaluateNarrow<Half, 1, F>, op);
    case Type::kF16x2:
      return lowering.Emit(EvaluateNarrow<Half, 2, F>, op);
    case Type::kBF16:
      return lowering.Emit(EvaluateNarrow<BFloat, 1, F>, op);
    case Type::kBF16x2:
      return lowering.Emit(EvaluateNarrow<BFloat, 2, F>, op);
    default:
      lowering.Unsupported();
  }
}

}  // namespace

void AddApproximateInstructions(LowerTable& table) {
  table["rcp"] = LowerFunction1<Reciprocal>;
  table["sqrt"] = LowerFunction1<SquareRoot>;
  table["rsqrt"] = LowerFunction1<ReciprocalSquareRoot>;
  table["sin"] = LowerFunction1<Sine>;
  table["cos"] = LowerFunction1<Cosine>;
  table["ex2"] = LowerFunction1<PowerOfTwo>;
  table["lg2"] = LowerFunction1<Logarithm>;
  table["tanh"] = LowerFunction1<HyperbolicTangent>;
}

}  // namespace causeway::software_gpu
