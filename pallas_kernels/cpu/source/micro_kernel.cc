#include "codes.h"

namespace jengine {

template Multiply multiply_for<Bfloat16, 0>(int);
template Multiply multiply_for<Float16, 0>(int);
template Multiply multiply_for<Float32, 0>(int);
template Multiply multiply_for<Int8Pairs, 0>(int);
template Multiply multiply_for<Int4Pairs, 0>(int);
template Multiply multiply_for<Int8Singles, 0>(int);
template Multiply multiply_for<Int4Singles, 0>(int);
template Multiply multiply_for<Int8Quads, 0>(int);
template Multiply multiply_for<Int4Quads, 0>(int);

}  // namespace jengine
