#include "ops/attention/kernel_inputs.h"

#include <algorithm>
#include <string>

#include "base/element.h"
#include "ops/attention/unit_table.h"
#include "tileformer/philox.h"

namespace tileformer::attention {
namespace {

// As in key_range(): kernels add positions to it, and beyond this it excludes nothing.
std::int64_t window(std::int64_t w) { return std::min(w, std::int64_t{1} << 40); }

}  // namespace

Status choose(const Problem& problem, Choice* choice) {
  *choice = {nullptr, Isa::portable, ""};
  if (Status s = active_isa(&choice->isa); !s) return s;
  if (problem.dtype == DType::f64) return Status::ok();
  const Unit* const forced = units().forced();
  choice->unit = forced ? forced : units().find(choice->isa, problem.dtype);
  const bool all_bf16 = problem.dtype == DType::bf16 && problem.keys_bf16;
  if (choice->unit && choice->unit->bf16_only && (!all_bf16 || !(problem.scale > 0))) {
    // Running maxima are kept of raw scores there, which only a positive scale leaves in order.
    if (all_bf16)
      choice->note = "scale <= 0 runs on the fp32 unit";
    else if (problem.dtype == DType::bf16)
      choice->note = "pages of another dtype than the query's run on the fp32 unit";
    const Isa isa = choice->isa;
    choice->unit = forced ? units().find("portable_fma") : units().find(isa, DType::f32);
  }
  if (!choice->unit)
    return Status::unsupported(std::string("no attention kernel for ISA ") + name_of(choice->isa));
  return Status::ok();
}

KernelArgs kernel_args(const AttentionArgs& args, const Problem& problem, int key_block, int max_groups) {
  KernelArgs k{};
  k.query = operand(args.query);
  k.key = operand(args.key);
  k.value = operand(args.value);
  k.out = operand(args.out);
  k.lse = operand(args.lse);
  k.page_size = problem.page_size;
  k.key_scale = operand(args.key_scale);
  k.value_scale = operand(args.value_scale);
  k.mask = operand(args.attn_mask);
  if (args.alibi_slopes) {
    const TensorView& v = args.alibi_slopes;
    k.slopes.data = v.data;
    k.slopes.dtype = v.dtype;
    k.slopes.head = v.stride[v.rank - 1];
    k.slopes.batch = v.rank == 2 ? v.stride[0] : 0;
  }
  k.kv_heads = problem.kv_heads;
  k.group = problem.group;
  k.dim = problem.dim;
  k.dim_v = problem.dim_v;
  k.key_block = key_block;
  k.max_groups = max_groups;
  k.causal = args.causal != Causal::none;
  k.window_left = window(args.window_left);
  k.window_right = window(args.window_right);
  k.scale = problem.scale;
  k.softcap = static_cast<float>(args.softcap);
  k.dropout_scale = 1;
  if (args.dropout_p > 0) {
    k.dropout_scale = args.dropout_p < 1 ? 1 / (1 - args.dropout_p) : 0;
    k.dropout_threshold = dropout_threshold(args.dropout_p);
    k.dropout_key[0] = static_cast<std::uint32_t>(args.dropout_seed);
    k.dropout_key[1] = static_cast<std::uint32_t>((args.dropout_seed >> 32) ^ (args.dropout_offset >> 32));
    k.dropout_counter = static_cast<std::uint32_t>(args.dropout_offset);
  }
  return k;
}

std::vector<KernelSequence> kernel_sequences(const AttentionArgs& args, const Problem& problem) {
  std::vector<KernelSequence> sequences;
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(args, problem, n);
    const std::int32_t* blocks = problem.paged() ? static_cast<const std::int32_t*>(args.block_table.data) +
                                                       n * args.block_table.stride[0]
                                                 : nullptr;
    sequences.push_back({s.batch, s.first_query, s.queries, s.first_key, s.keys, s.range_begin, s.range_end,
                         s.diagonal, blocks});
  }
  return sequences;
}

std::vector<float> sinks_of(const AttentionArgs& args, const Problem& problem) {
  std::vector<float> sinks;
  if (!args.sinks) return sinks;
  for (std::int64_t h = 0; h < problem.heads; ++h)
    sinks.push_back(
        static_cast<float>(load_element(args.sinks.data, args.sinks.dtype, h * args.sinks.stride[0])));
  return sinks;
}

}  // namespace tileformer::attention
