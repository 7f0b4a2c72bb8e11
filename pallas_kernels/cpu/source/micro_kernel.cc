#include "codes.h"

namespace jengine {

template Multiply multiply_for<Bfloat16, 0>(int);
template Multiply multiply_for<Float16, 0>(int);
template Multiply multiply_for<Float32, 0>(int);
#define JENGINE_COMPILE(KIND) template Multiply multiply_for<KIND, 0>(int);
JENGINE_CODE_KERNELS(JENGINE_COMPILE)

}  // namespace jengine
