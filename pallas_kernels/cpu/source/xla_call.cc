#include "xla_call.h"

#include <cstring>
#include <memory>
#include <new>

#include "tiles.h"

namespace jengine {

void refuse(const char* what) { throw Misuse{what}; }

size_t AnyBuffer::element_count() const {
  size_t count = 1;
  for (int64_t axis = 0; axis < buffer_->rank; axis++) count *= (size_t)buffer_->dims[axis];
  return count;
}

int64_t XlaPool::threads() const {
  int64_t count = 0;
  XLA_FFI_ThreadPool_NumThreads_Args args{};
  args.struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE;
  args.ctx = context_;
  args.num_threads = &count;
  if (XLA_FFI_Error* error = api_->XLA_FFI_ThreadPool_NumThreads(&args)) {
    destroy(error);
    return 0;
  }
  return count;
}

void XlaPool::start(std::function<void()> work) {
  auto owned = std::make_unique<std::function<void()>>(std::move(work));
  XLA_FFI_ThreadPool_Schedule_Args args{};
  args.struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE;
  args.ctx = context_;
  args.task = [](void* data) {
    std::unique_ptr<std::function<void()>>(static_cast<std::function<void()>*>(data))->operator()();
  };
  args.data = owned.get();
  if (XLA_FFI_Error* error = api_->XLA_FFI_ThreadPool_Schedule(&args)) {
    destroy(error);  // the caller does the work that no helper takes
    return;
  }
  owned.release();
}

void XlaPool::destroy(XLA_FFI_Error* error) const {
  XLA_FFI_Error_Destroy_Args args{};
  args.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  args.error = error;
  api_->XLA_FFI_Error_Destroy(&args);
}

const void* Reader::operand() {
  require(operands_ < frame_.args.size, "too few operands");
  return frame_.args.args[operands_++];
}

const void* Reader::result() {
  require(results_ < frame_.rets.size, "too few results");
  return frame_.rets.rets[results_++];
}

const void* Reader::attribute(DataType type) {
  require(attribute_ != last_attribute_, "the handler names too few of its attributes");
  const char* name = *attribute_++;
  for (int64_t i = 0; i < frame_.attrs.size; i++) {
    const XLA_FFI_ByteSpan& found = *frame_.attrs.names[i];
    if (found.len != std::strlen(name) || std::memcmp(found.ptr, name, found.len) != 0) continue;
    const bool is_scalar = frame_.attrs.types[i] == XLA_FFI_AttrType_SCALAR;
    const auto* scalar = static_cast<const XLA_FFI_Scalar*>(frame_.attrs.attrs[i]);
    if (!is_scalar || (DataType)scalar->dtype != type)
      throw Misuse{std::string("attribute ") + name + " has another type"};
    attributes_++;
    return scalar->value;
  }
  throw Misuse{std::string("there is no attribute ") + name};
}

void Reader::finish() const {
  require(operands_ == frame_.args.size, "too many operands");
  require(results_ == frame_.rets.size, "too many results");
  require(attributes_ == frame_.attrs.size, "unknown attributes");
}

bool answered_version(XLA_FFI_CallFrame& frame) {
  auto* extension = frame.extension_start;
  if (!extension || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata& metadata =
      *reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR,
                          XLA_FFI_API_MINOR};
  metadata.traits = 0;
  metadata.state_type_id = XLA_FFI_UNKNOWN_TYPE_ID;
  return true;
}

XLA_FFI_Error* error_of(const XLA_FFI_CallFrame& frame, XLA_FFI_Error_Code code,
                        const char* message) {
  XLA_FFI_Error_Create_Args args{};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message;
  args.errc = code;
  return frame.api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error* current_error(const XLA_FFI_CallFrame& frame, const char* operation) {
  try {
    throw;
  } catch (const Misuse& misuse) {
    return error_of(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                    (std::string(operation) + ": " + misuse.text).c_str());
  } catch (const std::bad_alloc&) {  // makes no string: that takes memory too
    return error_of(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                    "a CPU kernel cannot allocate its scratch memory");
  } catch (const std::exception& error) {
    return error_of(frame, XLA_FFI_Error_Code_INTERNAL, error.what());
  } catch (...) {
    return error_of(frame, XLA_FFI_Error_Code_INTERNAL, "a CPU kernel failed");
  }
}

}  // namespace jengine

// What the library was compiled for, for people who ask.
extern "C" __attribute__((visibility("default"))) const char* jengine_instruction_set() {
  if (jengine::may_use_tiles()) return "AVX-512 with bfloat16 and matrix tiles (AMX)";
#if defined(JENGINE_AMX)
  return "AVX-512 with bfloat16; Linux refuses matrix tiles (AMX) to this process";
#endif
#if defined(JENGINE_AVX512) && defined(__AVX512BF16__)
  return "AVX-512 with bfloat16";
#elif defined(JENGINE_AVX512)
  return "AVX-512";
#elif defined(JENGINE_AVX2)
  return "AVX2";
#elif defined(JENGINE_NEON)
  return "NEON";
#else
  return "basic instructions";
#endif
}
