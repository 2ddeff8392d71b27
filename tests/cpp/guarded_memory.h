// Memory between two pages that must not be touched: a read or write outside of a tensor ends the test.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tileformer::test {

// Which end of the memory touches a forbidden page. Pages are large and tensors small, so only one end can;
// the other is caught by what the memory is filled with.
enum class Edge { begin, end };

// Filled with 0xFF, which is NaN in every floating dtype, so that gaps between rows and unwritten scratch
// show.
class GuardedMemory {
 public:
  GuardedMemory(std::size_t bytes, Edge edge) : bytes_(bytes) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inner = (bytes + page - 1) / page * page;
    mapped_ = inner + 2 * page;
    base_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) std::abort();
    auto* first = static_cast<std::uint8_t*>(base_) + page;
    if (inner != 0) {
      if (mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) std::abort();
      std::memset(first, 0xFF, inner);
    }
    data_ = edge == Edge::begin ? first : first + inner - bytes;
  }
  GuardedMemory(GuardedMemory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        mapped_(other.mapped_),
        data_(other.data_),
        bytes_(other.bytes_) {}
  GuardedMemory& operator=(GuardedMemory&&) = delete;
  ~GuardedMemory() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* base_;
  std::size_t mapped_;
  std::uint8_t* data_;
  std::size_t bytes_;
};

}  // namespace tileformer::test
