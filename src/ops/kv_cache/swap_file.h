// Where a swapped sequence goes: memory or a file, as one stream of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tileformer/status.h"

namespace tileformer::kv_cache {

class Stream {
 public:
  virtual ~Stream() = default;
  // All of the bytes, or an error.
  virtual Status transfer(void* data, std::size_t bytes) = 0;
};

class MemoryWriter final : public Stream {
 public:
  MemoryWriter(void* to, std::size_t bytes) : to_(static_cast<std::uint8_t*>(to)), left_(bytes) {}
  Status transfer(void* data, std::size_t bytes) override;

 private:
  std::uint8_t* to_;
  std::size_t left_;
};

class MemoryReader final : public Stream {
 public:
  MemoryReader(const void* from, std::size_t bytes)
      : from_(static_cast<const std::uint8_t*>(from)), left_(bytes) {}
  Status transfer(void* data, std::size_t bytes) override;

 private:
  const std::uint8_t* from_;
  std::size_t left_;
};

// Writes beside `path`; finish() renames. Without it nothing is left behind.
class FileWriter final : public Stream {
 public:
  explicit FileWriter(std::string path) : path_(std::move(path)) {}
  ~FileWriter() override;
  Status open();
  Status transfer(void* data, std::size_t bytes) override;
  Status finish();

 private:
  Status failed(const char* what) const;
  std::string path_, partial_;
  std::FILE* file_ = nullptr;
};

class FileReader final : public Stream {
 public:
  explicit FileReader(std::string path) : path_(std::move(path)) {}
  ~FileReader() override;
  Status open(std::size_t* bytes);
  Status transfer(void* data, std::size_t bytes) override;

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace tileformer::kv_cache
