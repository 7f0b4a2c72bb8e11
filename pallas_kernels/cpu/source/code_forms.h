// Integers of few bits: what they stand for, and where each is in a step of a panel.
//
// A code's bits are in planes, so that each divides a byte: 6 bits are 4 and 2, 5 are 4 and 1, 3 are
// 2 and 1. The planes of a step follow each other, the lowest bits first.
#pragma once

#include "micro_kernel.h"

namespace jengine {

// Codes of IQ4 stand for numbers in a table. Those of UINT stand for themselves, others for what they
// are larger than the middle one by.
enum class Codes : int32_t {
  NONE, INT2, INT3, INT4, INT5, INT6, INT8, UINT2, UINT4, UINT5, UINT6, IQ4
};

struct CodeForm {
  int bits;
  int zero;      // the unsigned code that stands for 0
  Codes around;  // the same bits around the middle code, which is how kernels convert them

  constexpr int middle() const { return 1 << bits >> 1; }
};
constexpr CodeForm form_of(Codes codes) {
  constexpr CodeForm FORMS[] = {
      {0, 0, Codes::NONE}, {2, 2, Codes::INT2}, {3, 4, Codes::INT3},   {4, 8, Codes::INT4},
      {5, 16, Codes::INT5}, {6, 32, Codes::INT6}, {8, 128, Codes::INT8}, {2, 0, Codes::INT2},
      {4, 0, Codes::INT4}, {5, 0, Codes::INT5}, {6, 0, Codes::INT6},   {4, 8, Codes::IQ4}};
  return FORMS[(int)codes];
}

constexpr int IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
// What kernels convert a code into.
constexpr int value_of(Codes codes, int code) {
  return codes == Codes::IQ4 ? IQ4_VALUES[code] : code - form_of(codes).middle();
}

// The bits of the first plane; those of the second are the others.
constexpr int low_bits(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : 2; }

// Codes are in containers of a byte, or, of bits in pairs of k, two bytes, which hold columns this many
// apart.
constexpr int columns_apart(int bits, int64_t depth) {
  return bits == 8 ? PANEL : depth == 2 ? 2 * bits : 4 * bits;
}

}  // namespace jengine
