#include "micro_kernel.h"

namespace jengine {

template Multiply multiply_for<Bfloat16, 0>(int);
template Multiply multiply_for<Float16, 0>(int);
template Multiply multiply_for<Float32, 0>(int);

}  // namespace jengine
