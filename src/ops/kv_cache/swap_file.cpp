#include "ops/kv_cache/swap_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tileformer::kv_cache {
namespace {

Status file_error(const std::string& path, const char* what, int error) {
  return Status::invalid("path: got " + path + ", which cannot be " + what + ": " + std::strerror(error));
}

Status too_short(const char* argument) {
  return Status::invalid(std::string(argument) + ": got fewer bytes than the sequence has");
}

}  // namespace

Status MemoryWriter::transfer(void* data, std::size_t bytes) {
  if (bytes > left_) return too_short("bytes");
  std::memcpy(to_, data, bytes);
  to_ += bytes;
  left_ -= bytes;
  return Status::ok();
}

Status MemoryReader::transfer(void* data, std::size_t bytes) {
  if (bytes > left_) return too_short("bytes");
  std::memcpy(data, from_, bytes);
  from_ += bytes;
  left_ -= bytes;
  return Status::ok();
}

FileWriter::~FileWriter() {
  if (file_ != nullptr) std::fclose(file_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

Status FileWriter::failed(const char* what) const { return file_error(path_, what, errno); }

// Renaming replaces whatever has the name: a link is followed first, and only a file may be replaced.
Status FileWriter::open() {
  struct stat info;
  if (::lstat(path_.c_str(), &info) == 0) {
    if (S_ISLNK(info.st_mode)) {
      char* const target = ::realpath(path_.c_str(), nullptr);
      if (target == nullptr) return failed("written");
      path_ = target;
      std::free(target);
      if (::lstat(path_.c_str(), &info) != 0) return failed("written");
    }
    if (!S_ISREG(info.st_mode)) return file_error(path_, "written", S_ISDIR(info.st_mode) ? EISDIR : EEXIST);
  }
  std::string name = path_ + ".XXXXXX";
  const int descriptor = ::mkstemp(name.data());
  if (descriptor < 0) return failed("written");
  partial_ = std::move(name);
  file_ = ::fdopen(descriptor, "wb");
  if (file_ != nullptr) return Status::ok();
  const int error = errno;
  ::close(descriptor);
  return file_error(path_, "written", error);
}

Status FileWriter::transfer(void* data, std::size_t bytes) {
  return std::fwrite(data, 1, bytes, file_) == bytes ? Status::ok() : failed("written");
}

// Without fsync: after a power failure nobody asks for the sequences of a process that is gone.
Status FileWriter::finish() {
  const int closed = std::fclose(file_);
  file_ = nullptr;
  if (closed != 0) return failed("written");
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) return failed("written");
  partial_.clear();
  return Status::ok();
}

FileReader::~FileReader() {
  if (file_ != nullptr) std::fclose(file_);
}

Status FileReader::open(std::size_t* bytes) {
  file_ = std::fopen(path_.c_str(), "rb");
  if (file_ == nullptr) return file_error(path_, "read", errno);
  struct stat status;
  if (::fstat(::fileno(file_), &status) != 0) return file_error(path_, "read", errno);
  if (!S_ISREG(status.st_mode)) return file_error(path_, "read", S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
  *bytes = static_cast<std::size_t>(status.st_size);
  return Status::ok();
}

Status FileReader::transfer(void* data, std::size_t bytes) {
  if (std::fread(data, 1, bytes, file_) == bytes) return Status::ok();
  return std::ferror(file_) ? file_error(path_, "read", errno) : too_short("path");
}

}  // namespace tileformer::kv_cache
