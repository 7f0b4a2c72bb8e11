// A call by XLA as a C++ function sees it: operands, results, attributes, and XLA's threads.
//
// This reads XLA's C interface. XLA's own C++ header for that takes longer to compile than all the
// kernels, and the library is compiled while its user waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>

#include "tasks.h"
#include "xla/ffi/api/c_api.h"

namespace jengine {

// What is wrong with a call; it becomes XLA's error.
struct Misuse {
  std::string text;
};

[[noreturn]] void refuse(const char* what);  // not inline: there are many calls
inline void require(bool holds, const char* what) {
  if (!holds) refuse(what);
}

enum class DataType {
  PRED = XLA_FFI_DataType_PRED,
  S4 = XLA_FFI_DataType_S4,
  S8 = XLA_FFI_DataType_S8,
  S32 = XLA_FFI_DataType_S32,
  S64 = XLA_FFI_DataType_S64,
  U8 = XLA_FFI_DataType_U8,
  U16 = XLA_FFI_DataType_U16,
  U32 = XLA_FFI_DataType_U32,
  F16 = XLA_FFI_DataType_F16,
  F32 = XLA_FFI_DataType_F32,
  BF16 = XLA_FFI_DataType_BF16,
};

// An array of any type and shape.
class AnyBuffer {
 public:
  class Dimensions {
   public:
    explicit Dimensions(const XLA_FFI_Buffer* buffer) : buffer_(buffer) {}
    size_t size() const { return (size_t)buffer_->rank; }
    int64_t operator[](size_t axis) const { return buffer_->dims[axis]; }

   private:
    const XLA_FFI_Buffer* buffer_;
  };

  explicit AnyBuffer(const void* buffer) : buffer_(static_cast<const XLA_FFI_Buffer*>(buffer)) {}
  DataType element_type() const { return (DataType)buffer_->dtype; }
  Dimensions dimensions() const { return Dimensions(buffer_); }
  size_t element_count() const;
  void* untyped_data() const { return buffer_->data; }

 private:
  const XLA_FFI_Buffer* buffer_;
};

// An array that the call writes.
class Result {
 public:
  explicit Result(const void* buffer) : buffer_(buffer) {}
  const AnyBuffer& operator*() const { return buffer_; }
  const AnyBuffer* operator->() const { return &buffer_; }

 private:
  AnyBuffer buffer_;
};

// XLA's threads. If they are not to be had, the caller does the work.
class XlaPool : public Pool {
 public:
  explicit XlaPool(const XLA_FFI_CallFrame& frame) : api_(frame.api), context_(frame.ctx) {}
  int64_t threads() const override;
  void start(std::function<void()> work) override;

 private:
  void destroy(XLA_FFI_Error* error) const;

  const XLA_FFI_Api* api_;
  decltype(XLA_FFI_CallFrame::ctx) context_;
};

// Hands out what a call brings, in the order of a handler's parameters.
class Reader {
 public:
  Reader(const XLA_FFI_CallFrame& frame, std::initializer_list<const char*> attributes)
      : frame_(frame), attribute_(attributes.begin()), last_attribute_(attributes.end()) {}

  template <class Parameter>
  Parameter take() {
    if constexpr (std::is_same_v<Parameter, XlaPool>) {
      return XlaPool(frame_);
    } else if constexpr (std::is_same_v<Parameter, AnyBuffer>) {
      return AnyBuffer(operand());
    } else if constexpr (std::is_same_v<Parameter, Result>) {
      return Result(result());
    } else {
      return *static_cast<const Parameter*>(attribute(type_of((Parameter*)nullptr)));
    }
  }
  // Raises if the call brings more than the handler takes.
  void finish() const;

 private:
  static DataType type_of(const bool*) { return DataType::PRED; }
  static DataType type_of(const int32_t*) { return DataType::S32; }
  static DataType type_of(const int64_t*) { return DataType::S64; }
  static DataType type_of(const float*) { return DataType::F32; }
  const void* operand();
  const void* result();
  const void* attribute(DataType type);

  const XLA_FFI_CallFrame& frame_;
  int64_t operands_ = 0, results_ = 0, attributes_ = 0;
  const char* const* attribute_;
  const char* const* last_attribute_;
};

// Whether XLA only asks which version of its interface this library was compiled for; answers it.
bool answered_version(XLA_FFI_CallFrame& frame);
// XLA's error for the exception that is being handled. No exception may reach XLA.
XLA_FFI_Error* current_error(const XLA_FFI_CallFrame& frame, const char* operation);

template <class... Parameters>
XLA_FFI_Error* call_handler(XLA_FFI_CallFrame& frame, const char* operation,
                            void (*handler)(Parameters...),
                            std::initializer_list<const char*> attributes) {
  if (answered_version(frame)) return nullptr;
  try {
    Reader reader(frame, attributes);
    // In braces, arguments are evaluated from left to right.
    std::tuple<Parameters...> given{reader.take<Parameters>()...};
    reader.finish();
    std::apply(handler, std::move(given));
    return nullptr;
  } catch (...) {
    return current_error(frame, operation);
  }
}

}  // namespace jengine

// Lets XLA call a function by the name jengine_NAME. After the function come the names of its
// attributes, in the order of its last parameters. The library hides all other symbols.
#define JENGINE_HANDLER(name, function, ...)                                                \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* jengine_##name(          \
      XLA_FFI_CallFrame* frame) {                                                           \
    return jengine::call_handler(*frame, #name, function, {__VA_ARGS__});                   \
  }
