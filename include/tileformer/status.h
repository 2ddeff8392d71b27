// The result of a call: ok, or a message that names the argument, what was given and what is allowed.
#pragma once

#include <string>
#include <utility>

namespace tileformer {

enum class StatusCode { ok, invalid_argument, unsupported, out_of_memory };

class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status ok() { return {}; }
  static Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }
  static Status unsupported(std::string message) { return {StatusCode::unsupported, std::move(message)}; }
  static Status out_of_memory(std::string message) { return {StatusCode::out_of_memory, std::move(message)}; }

  bool is_ok() const { return code_ == StatusCode::ok; }
  explicit operator bool() const { return is_ok(); }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

}  // namespace tileformer
