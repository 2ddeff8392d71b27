// Scratch memory of an operator. The plan says how many bytes it needs; the caller provides them.
#pragma once

#include <cstddef>

namespace tileformer {

// Memory for one call: at least the plan's workspace_bytes. Any alignment; the library aligns within.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// A buffer that grows and is reused from call to call: fresh memory costs a page fault per 4 KiB, which is
// more than a small attention. Not thread-safe: one per calling thread.
class ScratchBuffer {
 public:
  ScratchBuffer() = default;
  ~ScratchBuffer();
  ScratchBuffer(const ScratchBuffer&) = delete;
  ScratchBuffer& operator=(const ScratchBuffer&) = delete;

  // data == nullptr if the memory cannot be had.
  Workspace reserve(std::size_t bytes);
  void release();

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tileformer
