// What all handlers share: XLA's buffers as the kernels see them, and size checks.
#pragma once

#include <cstdint>
#include <vector>

#include "rows.h"
#include "xla_call.h"

namespace jengine {

inline int64_t dimension(const AnyBuffer& buffer, size_t axis) {
  require(axis < buffer.dimensions().size(), "an operand has too few dimensions");
  return buffer.dimensions()[axis];
}
inline bool is_given(const AnyBuffer& buffer) { return buffer.element_count() > 0; }
inline const char* bytes_of(const AnyBuffer& buffer) {
  return static_cast<const char*>(buffer.untyped_data());
}
inline const int32_t* integers_of(const AnyBuffer& buffer) {
  require(buffer.element_type() == DataType::S32, "indices must be int32");
  return static_cast<const int32_t*>(buffer.untyped_data());
}
inline const float* floats_of(const AnyBuffer& buffer, int64_t count) {
  require(buffer.element_type() == DataType::F32, "an operand must be float32");
  require((int64_t)buffer.element_count() == count, "an operand has another size");
  return static_cast<const float*>(buffer.untyped_data());
}
inline bool is_bfloat16(const AnyBuffer& buffer) {
  require(buffer.element_type() == DataType::BF16 || buffer.element_type() == DataType::F32,
          "activations must be bfloat16 or float32");
  return buffer.element_type() == DataType::BF16;
}

// An attribute as the enumerator that it is the number of. `last` has the largest number.
template <typename Enum>
Enum one_of(int32_t number, Enum last, const char* otherwise) {
  require(number >= 0 && number <= (int32_t)last, otherwise);
  return (Enum)number;
}

// What a weight or a cache holds. Unsigned integers of 16 bits are the bits of bfloat16.
inline Number number_of(const AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case DataType::U16:
    case DataType::BF16: return Number::BFLOAT16;
    case DataType::F16: return Number::FLOAT16;
    case DataType::F32: return Number::FLOAT32;
    default: refuse("numbers must be bfloat16, float16 or float32");
  }
}

inline int64_t bytes_in(const AnyBuffer& buffer) {
  return (int64_t)buffer.element_count() * size_of(number_of(buffer));
}

// Numbers of any type as float32, with `offset` added; null for an empty operand.
class AsFloats {
 public:
  explicit AsFloats(const AnyBuffer& buffer, float offset = 0.0f) {
    const int64_t count = buffer.element_count();
    if (count == 0) return;
    if (number_of(buffer) == Number::FLOAT32 && offset == 0.0f) {
      data_ = static_cast<const float*>(buffer.untyped_data());
      return;
    }
    copy_.resize(count);
    to_floats(bytes_of(buffer), number_of(buffer), count, offset, copy_.data());
    data_ = copy_.data();
  }
  const float* data() const { return data_; }

 private:
  std::vector<float> copy_;
  const float* data_ = nullptr;
};

}  // namespace jengine
