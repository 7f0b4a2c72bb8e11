#include "ffi.h"

namespace jengine {
namespace {

float element(const char* at, DataType type) {
  if (type == DataType::F32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return type == DataType::BF16 ? from_bfloat16(bits) : from_float16(Halves{} + bits)[0];
}

}  // namespace

AsFloats::AsFloats(const AnyBuffer& buffer, float offset) {
  const int64_t count = buffer.element_count();
  const DataType type = buffer.element_type();
  if (count == 0) return;
  if (type == DataType::F32 && offset == 0.0f) {
    data_ = static_cast<const float*>(buffer.untyped_data());
    return;
  }
  require(type == DataType::F32 || type == DataType::F16 || type == DataType::BF16,
          "numbers must be float32, float16 or bfloat16");
  const int64_t size = type == DataType::F32 ? 4 : 2;
  copy_.resize(count);
  for (int64_t i = 0; i < count; i++)
    copy_[i] = element(bytes_of(buffer) + i * size, type) + offset;
  data_ = copy_.data();
}

}  // namespace jengine
