// What all handlers share: XLA's buffers and thread pool as the kernels see them, and size checks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rows.h"
#include "tasks.h"
#include "xla/ffi/api/ffi.h"

namespace jengine {

namespace ffi = xla::ffi;
using ffi::AnyBuffer;
using ffi::DataType;
using ffi::Error;

class XlaPool : public Pool {
 public:
  explicit XlaPool(ffi::ThreadPool& pool) : pool_(pool) {}
  int64_t threads() const override { return pool_.num_threads(); }
  void start(std::function<void()> work) override { pool_.Schedule(std::move(work)); }

 private:
  ffi::ThreadPool& pool_;
};

// What is wrong with a call; handlers return it as XLA's error.
struct Misuse {
  std::string text;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Misuse{what};
}

// Runs a handler's body. No exception may reach XLA, which is compiled without them.
template <class Body>
Error guarded(const char* operation, const Body& body) {
  try {
    body();
    return Error::Success();
  } catch (const Misuse& misuse) {
    return Error::InvalidArgument(std::string(operation) + ": " + misuse.text);
  } catch (const std::exception& error) {
    return Error::Internal(std::string(operation) + ": " + error.what());
  }
}

template <class Buffer>
int64_t dimension(const Buffer& buffer, size_t axis) {
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
inline bool is_bfloat16(const AnyBuffer& buffer) {
  require(buffer.element_type() == DataType::BF16 || buffer.element_type() == DataType::F32,
          "activations must be bfloat16 or float32");
  return buffer.element_type() == DataType::BF16;
}

// What a weight or a cache holds. Unsigned integers of 16 bits are the bits of bfloat16.
inline Number number_of(const AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case DataType::U16:
    case DataType::BF16: return Number::BFLOAT16;
    case DataType::F16: return Number::FLOAT16;
    case DataType::F32: return Number::FLOAT32;
    default: throw Misuse{"numbers must be bfloat16, float16 or float32"};
  }
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

// The library hides all symbols but its handlers.
#define JENGINE_HANDLER(name, function, binding) \
  _Pragma("GCC visibility push(default)")        \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, function, binding); \
  _Pragma("GCC visibility pop")
