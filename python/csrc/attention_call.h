// One call of an attention operator as torch hands it over, turned into AttentionArgs.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>
#include <string>

#include "tileformer/attention.h"
#include "torch_tensor.h"

namespace tileformer::torch_binding {

// The arguments that all operators of attention share, in the order in
// which AttentionCall reads them; the common ones first, since every argument that a caller passes costs.
// causal: 0 none, 1 top-left, 2 bottom-right. dropout_state: int64 [2], seed and offset, a tensor so that a
// compiled graph can draw it anew on every run.
#define TILEFORMER_ATTENTION_ARGUMENTS                                                                \
  "Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float? scale=None, int causal=0, " \
  "int window_left=-1, int window_right=-1, float softcap=0.0, Tensor? sinks=None, Tensor? "          \
  "alibi_slopes=None, "                                                                               \
  "Tensor? key_range=None, Tensor? query_offset=None, Tensor? cu_seqlens_query=None, "                \
  "Tensor? cu_seqlens_key=None, float dropout_p=0.0, Tensor? dropout_state=None"

// Of the code that operators take. Throws where it is none.
Causal to_causal(std::int64_t code);

class AttentionCall {
 public:
  // Takes over the arguments on torch's stack (their references become ours even if a later check throws).
  explicit AttentionCall(StableIValue* stack);

  // For callers that have query, key and value only; the rest is set through args.
  AttentionCall(const Tensor& query, const Tensor& key, const Tensor& value);

  // Makes the rows of query, key and value adjacent where they are not (one copy each), then fills args with
  // views. Inputs have to live as long as args is used, which they do: this object holds them.
  void bind();

  // Allocates out in the layout of query, and sets args.out.
  Tensor allocate_out();
  // Allocates lse [batch, heads, seq_q] and sets args.lse.
  Tensor allocate_lse();

  // out and lse as a forward call returned them, for the backward.
  void set_results(const Tensor& out, const Tensor& lse);

  // Runs on torch's threads; throws with the Status's message.
  void run();

  // The inputs that bind() copies, for people: "query, value"; empty if none.
  std::string copied() const;

  AttentionArgs args;

  const Tensor& query() const { return query_; }
  const Tensor& key() const { return key_; }
  const Tensor& value() const { return value_; }

 private:
  Tensor query_, key_, value_, out_, lse_;
  std::optional<Tensor> attn_mask_, sinks_, alibi_slopes_, key_range_, query_offset_, cu_seqlens_query_,
      cu_seqlens_key_, dropout_state_;
};

}  // namespace tileformer::torch_binding
