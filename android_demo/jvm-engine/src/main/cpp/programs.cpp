// The ExecuTorch runtime of the Python package `executorch`, for class org.fedlens.jvm.Native.
//
// Every tensor of a program is compared with the caller's description before its memory is touched. Failures are an
// org.fedlens.jvm.ProgramFault, whose message ends with what the runtime logged meanwhile.

#include <jni.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <executorch/extension/threadpool/threadpool.h>
#include <executorch/runtime/backend/backend_option_context.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/core/data_loader.h>
#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/hierarchical_allocator.h>
#include <executorch/runtime/core/memory_allocator.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/method_meta.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

namespace {

using executorch::aten::DimOrderType;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::runtime::DataLoader;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;
using executorch::runtime::TensorInfo;

constexpr const char* kMethod = "forward";
constexpr size_t kAlignment = 64;
constexpr size_t kMostMemory = size_t{4} << 30;

// Errors that the runtime logs on this thread.
thread_local std::string last_words;
constexpr size_t kMostWords = 400;

// Set if another class loader has loaded a copy of this library before: all copies share one runtime.
pal_emit_log_message_method earlier = nullptr;
constexpr const char* kListener = "org.fedlens.jvm";

void hear(et_timestamp_t when, et_pal_log_level_t level, const char* file, const char* function, size_t line,
          const char* message, size_t length) {
  if (level == kError || level == kFatal) {
    // The first errors say most.
    size_t room = kMostWords - std::min(kMostWords, last_words.size());
    if (room > 0 && !last_words.empty()) {
      last_words += "; ";
    }
    last_words.append(message, std::min(length, room));
  }
  if (earlier != nullptr) {
    earlier(when, level, file, function, line, message, length);
  }
}

// Redirects the runtime's log from the terminal to this library.
void listen() {
  // Changes the table in use, because registering another one would print a warning.
  auto* platform = const_cast<executorch::runtime::PalImpl*>(executorch::runtime::get_pal_impl());
  if (platform->source_filename != nullptr && std::strcmp(platform->source_filename, kListener) == 0) {
    earlier = platform->emit_log_message;
  }
  platform->emit_log_message = &hear;
  platform->source_filename = kListener;
}

[[noreturn]] void fail(const std::string& what) {
  std::string text = what;
  if (!last_words.empty()) {
    text += " (ExecuTorch: " + last_words + ")";
  }
  throw std::runtime_error(text);
}

void check(Error error, const char* what) {
  if (error != Error::Ok) {
    fail(std::string(what) + " failed with " + executorch::runtime::to_string(error));
  }
}

template <typename T>
T& checked(Result<T>& result, const char* what) {
  check(result.error(), what);
  return result.get();
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<uint8_t, Free>;

Block allocate_block(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* found = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, std::max(bytes, kAlignment)));
  if (found == nullptr) {
    throw std::bad_alloc();
  }
  return Block(found);
}

// An allocator without a limit. After a reset it keeps one block as large as everything allocated before, so that a
// program that runs repeatedly allocates nothing.
class GrowingAllocator final : public MemoryAllocator {
 public:
  GrowingAllocator() : MemoryAllocator(0, nullptr) {}

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kMostAlignment || size > kMostMemory) {
      return nullptr;
    }
    if (void* found = take(size, alignment)) {
      return found;
    }
    size_t bytes = std::max(size + alignment, kLeastBlock);
    if (total_ + bytes > kMostMemory) {
      return nullptr;
    }
    try {
      blocks_.push_back(allocate_block(bytes));
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    total_ += bytes;
    cursor_ = blocks_.back().get();
    end_ = cursor_ + bytes;
    return take(size, alignment);
  }

  void reset() override {
    if (blocks_.size() > 1) {
      blocks_.clear();
      size_t bytes = total_;
      total_ = 0;
      try {
        blocks_.push_back(allocate_block(bytes));
        total_ = bytes;
      } catch (const std::bad_alloc&) {
        // Then later allocations fail too.
      }
    }
    cursor_ = blocks_.empty() ? nullptr : blocks_.back().get();
    end_ = blocks_.empty() ? nullptr : cursor_ + total_;
  }

 private:
  static constexpr size_t kLeastBlock = 1 << 16;
  static constexpr size_t kMostAlignment = 1 << 12;

  void* take(size_t size, size_t alignment) {
    if (cursor_ == nullptr) {
      return nullptr;
    }
    size_t padding = (alignment - reinterpret_cast<uintptr_t>(cursor_) % alignment) % alignment;
    size_t left = static_cast<size_t>(end_ - cursor_);
    if (padding > left || size > left - padding) {
      return nullptr;
    }
    void* found = cursor_ + padding;
    cursor_ += padding + size;
    return found;
  }

  std::vector<Block> blocks_;
  size_t total_ = 0;
  uint8_t* cursor_ = nullptr;
  uint8_t* end_ = nullptr;
};

// A file's bytes, which outlive the program.
class MemoryLoader final : public DataLoader {
 public:
  MemoryLoader(const void* data, size_t size) : data_(static_cast<const uint8_t*>(data)), size_(size) {}

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo&) const override {
    if (offset > size_ || size > size_ - offset) {
      return Error::InvalidArgument;
    }
    return FreeableBuffer(data_ + offset, size, nullptr);
  }

  Result<size_t> size() const override { return size_; }

 private:
  const uint8_t* data_;
  size_t size_;
};

// A tensor as the caller describes it, with its memory; the numbers are scalar type, number of dimensions, dimensions.
struct Described {
  ScalarType type;
  std::vector<SizesType> sizes;
  std::vector<DimOrderType> order;
  size_t bytes;
  void* memory;
};

Described describe(const std::vector<jint>& numbers, size_t& at) {
  if (numbers.size() < 2 || at > numbers.size() - 2) {
    fail("too few numbers for its tensors");
  }
  Described found;
  jint type = numbers[at++];
  size_t rank = static_cast<size_t>(numbers[at++]);
  if ((type != static_cast<jint>(ScalarType::Float) && type != static_cast<jint>(ScalarType::Long)) ||
      rank > numbers.size() - at) {
    fail("a tensor of another form");
  }
  found.type = static_cast<ScalarType>(type);
  found.bytes = found.type == ScalarType::Float ? 4 : 8;
  found.memory = nullptr;
  for (size_t i = 0; i < rank; ++i) {
    jint size = numbers[at++];
    if (size < 1 || static_cast<size_t>(size) > kMostMemory / found.bytes) {
      fail("a tensor that is too large");
    }
    found.bytes *= static_cast<size_t>(size);
    found.sizes.push_back(size);
    found.order.push_back(static_cast<DimOrderType>(i));
  }
  return found;
}

void compare(const Described& expected, const TensorInfo& found, const char* what) {
  auto sizes = found.sizes();
  auto order = found.dim_order();
  bool same = found.scalar_type() == expected.type && found.nbytes() == expected.bytes &&
      sizes.size() == expected.sizes.size() && order.size() == expected.order.size();
  for (size_t i = 0; same && i < sizes.size(); ++i) {
    same = sizes[i] == expected.sizes[i] && order[i] == expected.order[i];
  }
  if (!same) {
    fail(std::string(what) + " of another type or shape than its manifest says");
  }
}

class LoadedProgram {
 public:
  LoadedProgram(const void* file, size_t size, std::vector<Described> inputs, std::vector<Described> outputs)
      : inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        loader_(file, size),
        program_(Program::load(&loader_, Program::Verification::InternalConsistency)) {
    check(program_.error(), "reading it");
    if (program_->num_methods() != 1) {
      fail("it has more methods than one");
    }
    auto meta_found = program_->method_meta(kMethod);
    const MethodMeta& meta = checked(meta_found, "reading its method");
    if (meta.num_inputs() != inputs_.size() || meta.num_outputs() != outputs_.size()) {
      fail("it has another number of inputs or outputs than its manifest says");
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      auto info = meta.input_tensor_meta(i);
      compare(inputs_[i], checked(info, "reading an input"), "an input");
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      auto info = meta.output_tensor_meta(i);
      compare(outputs_[i], checked(info, "reading an output"), "an output");
    }
    plan(meta);
    manager_ = std::make_unique<MemoryManager>(&for_method_, planned_.get(), &temporary_);
    auto method = program_->load_method(kMethod, manager_.get());
    check(method.error(), "loading it");
    method_ = std::make_unique<Method>(std::move(method.get()));
    tensors_.reserve(inputs_.size());
    for (auto& input : inputs_) {
      tensors_.emplace_back(
          input.type, static_cast<ssize_t>(input.sizes.size()), input.sizes.data(), input.memory, input.order.data());
    }
  }

  void run() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      check(method_->set_input(EValue(Tensor(&tensors_[i])), i), "taking an argument");
    }
    check(method_->execute(), "running it");
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const EValue& value = method_->get_output(i);
      if (!value.isTensor()) {
        fail("it gives something that is no tensor");
      }
      const Tensor& result = value.toTensor();
      if (result.scalar_type() != outputs_[i].type || result.nbytes() != outputs_[i].bytes ||
          result.const_data_ptr() == nullptr) {
        fail("it gives another type or shape than its manifest says");
      }
      // A result may share memory with an argument.
      std::memmove(outputs_[i].memory, result.const_data_ptr(), outputs_[i].bytes);
    }
  }

 private:
  // Memory for intermediate results, as large as the program demands.
  void plan(const MethodMeta& meta) {
    size_t total = 0;
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      auto found = meta.memory_planned_buffer_size(i);
      int64_t bytes = checked(found, "reading its memory plan");
      if (bytes < 0 || static_cast<uint64_t>(bytes) > kMostMemory - total) {
        fail("it takes more than 4 GiB of memory");
      }
      total += static_cast<size_t>(bytes);
      // XNNPACK may read a little beyond a tensor's end.
      blocks_.push_back(allocate_block(static_cast<size_t>(bytes) + 2 * kAlignment));
      spans_.emplace_back(blocks_.back().get(), static_cast<size_t>(bytes));
    }
    planned_ = std::make_unique<HierarchicalAllocator>(Span<Span<uint8_t>>(spans_.data(), spans_.size()));
  }

  std::vector<Described> inputs_;
  std::vector<Described> outputs_;
  MemoryLoader loader_;
  Result<Program> program_;
  std::vector<Block> blocks_;
  std::vector<Span<uint8_t>> spans_;
  std::unique_ptr<HierarchicalAllocator> planned_;
  GrowingAllocator for_method_;
  GrowingAllocator temporary_;
  std::unique_ptr<MemoryManager> manager_;
  // Declared before the method, which keeps pointers to them.
  std::vector<TensorImpl> tensors_;
  std::unique_ptr<Method> method_;
};

// Runs `action` and turns its exceptions into Java exceptions.
template <typename Action>
void guarded(JNIEnv* env, Action action) {
  last_words.clear();
  std::string fault;
  try {
    action();
    return;
  } catch (const std::bad_alloc&) {
    fault = "it takes more memory than there is";
  } catch (const std::exception& error) {
    fault = error.what();
  } catch (...) {
    fault = "it failed in a way that says nothing";
  }
  if (env->ExceptionCheck()) {
    return;
  }
  // Java accepts no other bytes as text.
  for (char& letter : fault) {
    if (letter < ' ' || letter > '~') {
      letter = ' ';
    }
  }
  jclass type = env->FindClass("org/fedlens/jvm/ProgramFault");
  if (type != nullptr) {
    env->ThrowNew(type, fault.c_str());
  }
}

void locate(JNIEnv* env, jobjectArray buffers, std::vector<Described>& tensors) {
  if (static_cast<size_t>(env->GetArrayLength(buffers)) != tensors.size()) {
    fail("another number of buffers than tensors");
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    jobject buffer = env->GetObjectArrayElement(buffers, static_cast<jsize>(i));
    tensors[i].memory = env->GetDirectBufferAddress(buffer);
    jlong capacity = env->GetDirectBufferCapacity(buffer);
    env->DeleteLocalRef(buffer);
    if (tensors[i].memory == nullptr || capacity < 0 || static_cast<size_t>(capacity) < tensors[i].bytes) {
      fail("a buffer that is too small for its tensor");
    }
  }
}

}  // namespace

// The runtime keeps logging through these functions, so the library must never be unloaded; see build.py.
extern "C" JNIEXPORT void JNICALL Java_org_fedlens_jvm_Native_start(JNIEnv* env, jclass) {
  guarded(env, [] {
    executorch::runtime::runtime_init();
    listen();
    auto* pool = executorch::extension::threadpool::get_threadpool();
    if (pool != nullptr && pool->get_thread_count() != 1) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
      pool->_unsafe_reset_threadpool(1);
#pragma GCC diagnostic pop
    }
    // By default all programs share XNNPACK's workspace, and its lock: a prediction would wait for each step of a training.
    if (auto* backend = executorch::runtime::get_backend_class("XnnpackBackend"); backend != nullptr) {
      constexpr int kOneForEachProgram = 1;
      executorch::runtime::BackendOptions<1> options;
      executorch::runtime::BackendOptionContext context;
      if (options.set_option("workspace_sharing_mode", kOneForEachProgram) != Error::Ok ||
          backend->set_option(context, options.view()) != Error::Ok) {
        fail("no workspace of its own for each program");
      }
    }
  });
}

extern "C" JNIEXPORT jstring JNICALL Java_org_fedlens_jvm_Native_version(JNIEnv* env, jclass) {
  return env->NewStringUTF(FEDLENS_EXECUTORCH_VERSION);
}

// `file` and all buffers must outlive the program. `numbers` describes the inputs, then the outputs.
extern "C" JNIEXPORT jlong JNICALL Java_org_fedlens_jvm_Native_load(
    JNIEnv* env, jclass, jobject file, jintArray numbers, jobjectArray arguments, jobjectArray results) {
  jlong handle = 0;
  guarded(env, [&] {
    std::vector<jint> all(static_cast<size_t>(env->GetArrayLength(numbers)));
    env->GetIntArrayRegion(numbers, 0, static_cast<jsize>(all.size()), all.data());
    std::vector<Described> inputs, outputs;
    size_t at = 0;
    for (jsize i = 0; i < env->GetArrayLength(arguments); ++i) {
      inputs.push_back(describe(all, at));
    }
    for (jsize i = 0; i < env->GetArrayLength(results); ++i) {
      outputs.push_back(describe(all, at));
    }
    locate(env, arguments, inputs);
    locate(env, results, outputs);
    void* bytes = env->GetDirectBufferAddress(file);
    jlong size = env->GetDirectBufferCapacity(file);
    if (bytes == nullptr || size < 0) {
      fail("its file is not in memory");
    }
    auto program =
        std::make_unique<LoadedProgram>(bytes, static_cast<size_t>(size), std::move(inputs), std::move(outputs));
    handle = reinterpret_cast<jlong>(program.release());
  });
  return handle;
}

extern "C" JNIEXPORT void JNICALL Java_org_fedlens_jvm_Native_run(JNIEnv* env, jclass, jlong handle) {
  guarded(env, [&] { reinterpret_cast<LoadedProgram*>(handle)->run(); });
}

extern "C" JNIEXPORT void JNICALL Java_org_fedlens_jvm_Native_free(JNIEnv* env, jclass, jlong handle) {
  guarded(env, [&] { delete reinterpret_cast<LoadedProgram*>(handle); });
}
