// torch.ops.tileformer.*: what fills the pages that attention_paged reads.
//
// kv_append_    writes keys and values into their slots, rotated and quantised on the way.
// rotary        queries rotated by the same code.
// kv_slots      -> (slots, positions, key_lengths) of tokens that follow what each sequence holds, by its
//               block table; every one is checked before anything can be written.
// copy_pages_   pages from one place of a pool to another, in each of the pools. copies: int64 [n, 3], from,
// to,
//               rows.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "optional_view.h"
#include "status_error.h"
#include "tileformer/kv_append.h"
#include "torch_executor.h"

namespace tileformer::torch_binding {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

[[noreturn]] void refuse() {
  throw std::invalid_argument("all tensors have to be dense and on the CPU: tileformer runs on CPUs only");
}

// The kernels read rows whose elements are adjacent; inputs that are not so are copied, outputs refused.
Tensor with_adjacent_rows(const Tensor& tensor) {
  return has_unit_last_stride(tensor) ? tensor : torch::stable::contiguous(tensor);
}

struct AppendStack {
  Tensor key;
  std::optional<Tensor> value;
  Tensor key_pages;
  std::optional<Tensor> value_pages;
  Tensor slots;
  std::optional<Tensor> key_scale, value_scale, cos, sin, positions;
  bool interleaved;

  explicit AppendStack(StableIValue* stack)
      : key(to<Tensor>(stack[0])),
        value(to<std::optional<Tensor>>(stack[1])),
        key_pages(to<Tensor>(stack[2])),
        value_pages(to<std::optional<Tensor>>(stack[3])),
        slots(to<Tensor>(stack[4])),
        key_scale(to<std::optional<Tensor>>(stack[5])),
        value_scale(to<std::optional<Tensor>>(stack[6])),
        cos(to<std::optional<Tensor>>(stack[7])),
        sin(to<std::optional<Tensor>>(stack[8])),
        positions(to<std::optional<Tensor>>(stack[9])),
        interleaved(to<bool>(stack[10])) {}
};

void kv_append_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  AppendStack a(stack);
  a.key = with_adjacent_rows(a.key);
  if (given(a.value)) a.value = with_adjacent_rows(*a.value);
  AppendArgs args;
  args.key = view_of(a.key, "key");
  args.value = optional_view(a.value, "value");
  args.key_pages = view_of(a.key_pages, "key_pages");
  args.value_pages = optional_view(a.value_pages, "value_pages");
  args.slots = view_of(a.slots, "slots");
  args.key_scale = optional_view(a.key_scale, "key_scale");
  args.value_scale = optional_view(a.value_scale, "value_scale");
  args.rotary.cos = optional_view(a.cos, "cos");
  args.rotary.sin = optional_view(a.sin, "sin");
  args.rotary.positions = optional_view(a.positions, "positions");
  args.rotary.interleaved = a.interleaved;
  TorchExecutor executor;
  raise_if_failed(append_kv(args, executor));
}

struct RotaryStack {
  Tensor x, cos, sin, positions;
  bool interleaved;

  explicit RotaryStack(StableIValue* stack)
      : x(to<Tensor>(stack[0])),
        cos(to<Tensor>(stack[1])),
        sin(to<Tensor>(stack[2])),
        positions(to<Tensor>(stack[3])),
        interleaved(to<bool>(stack[4])) {}
};

void rotary_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  RotaryStack r(stack);
  r.x = with_adjacent_rows(r.x);
  RotaryArgs args;
  args.in = view_of(r.x, "x");
  if (args.in.rank != 3)
    throw std::invalid_argument("x has " + std::to_string(args.in.rank) +
                                " dimensions; needed are 3, [tokens, heads, dim]");
  args.rotary.cos = view_of(r.cos, "cos");
  args.rotary.sin = view_of(r.sin, "sin");
  args.rotary.positions = view_of(r.positions, "positions");
  args.rotary.interleaved = r.interleaved;
  const Tensor out = empty_dense({args.in.shape[0], args.in.shape[1], args.in.shape[2]}, args.in.dtype);
  args.out = view_of(out, "out");
  TorchExecutor executor;
  raise_if_failed(apply_rotary(args, executor));
  stack[0] = from(out);
}

void need(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

void kv_slots_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor block_table = to<Tensor>(stack[0]), lengths = to<Tensor>(stack[1]);
  const std::int64_t tokens = to<std::int64_t>(stack[2]), pages = to<std::int64_t>(stack[3]),
                     page_size = to<std::int64_t>(stack[4]);
  const TensorView table = view_of(block_table, "block_table"), length = view_of(lengths, "cache_seqlens");
  need(table.rank == 2 && table.dtype == DType::i32, "block_table has to be int32 [sequences, blocks]");
  need(length.rank == 1 && length.dtype == DType::i32 && length.shape[0] == table.shape[0],
       "cache_seqlens has to be int32 [" + std::to_string(table.shape[0]) + "], one for each sequence");
  need(tokens >= 0, "tokens is " + std::to_string(tokens) + "; needed is at least 0");
  need(page_size >= 0 && page_size <= INT32_MAX, "page_size is " + std::to_string(page_size));
  const std::int64_t sequences = table.shape[0],
                     room = std::min<std::int64_t>(table.shape[1] * page_size, INT32_MAX);
  const Tensor slots = empty_dense({sequences * tokens}, DType::i64),
               positions = empty_dense({sequences * tokens}, DType::i64),
               key_lengths = empty_dense({sequences}, DType::i32);
  auto* slot = static_cast<std::int64_t*>(slots.mutable_data_ptr());
  auto* position = static_cast<std::int64_t*>(positions.mutable_data_ptr());
  auto* key_length = static_cast<std::int32_t*>(key_lengths.mutable_data_ptr());
  for (std::int64_t n = 0; n < sequences; ++n) {
    const std::int64_t held = static_cast<const std::int32_t*>(length.data)[n * length.stride[0]];
    need(held >= 0 && held + tokens <= room,
         "cache_seqlens is " + std::to_string(held) + " at [" + std::to_string(n) + "]; with " +
             std::to_string(tokens) + " new tokens allowed are 0 to " + std::to_string(room - tokens) +
             ": the cache has room for " + std::to_string(room));
    for (std::int64_t t = held; t < held + tokens; ++t) {
      const std::int64_t block = t / page_size;
      const std::int64_t page =
          static_cast<const std::int32_t*>(table.data)[n * table.stride[0] + block * table.stride[1]];
      need(page >= 0 && page < pages, "block_table is " + std::to_string(page) + " at [" + std::to_string(n) +
                                          ", " + std::to_string(block) + "]; allowed are 0 to " +
                                          std::to_string(pages - 1) + ", a page of the pool");
      *slot++ = page * page_size + t % page_size;
      *position++ = t;
    }
    key_length[n] = static_cast<std::int32_t>(held + tokens);
  }
  stack[0] = from(slots);
  stack[1] = from(positions);
  stack[2] = from(key_lengths);
}

void copy_pages_op(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const auto pools = to<std::vector<Tensor>>(stack[0]);
  const Tensor copies = to<Tensor>(stack[1]);
  std::vector<TensorView> views;
  for (const Tensor& pool : pools) views.push_back(view_of(pool, "pools"));
  const TensorView list = view_of(copies, "copies");
  need(list.rank == 2 && list.dtype == DType::i64 && list.shape[1] == 3,
       "copies has to be int64 [n, 3]: from, to, rows");
  std::vector<PageCopy> pages(static_cast<std::size_t>(list.shape[0]));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto* row =
        static_cast<const std::int64_t*>(list.data) + static_cast<std::int64_t>(i) * list.stride[0];
    pages[i] = {row[0], row[list.stride[1]], row[2 * list.stride[1]]};
  }
  TorchExecutor executor;
  raise_if_failed(copy_pages(views, pages, executor));
}

void refuse_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const AppendStack arguments(stack);
  refuse();
}
void refuse_rotary(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const RotaryStack arguments(stack);
  refuse();
}
void refuse_slots(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const Tensor block_table = to<Tensor>(stack[0]), lengths = to<Tensor>(stack[1]);
  refuse();
}
void refuse_copies(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const auto pools = to<std::vector<Tensor>>(stack[0]);
  const Tensor copies = to<Tensor>(stack[1]);
  refuse();
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(tileformer, m) {
  m.def(
      "kv_append_(Tensor key, Tensor? value, Tensor(a!) key_pages, Tensor(b!)? value_pages, Tensor slots, "
      "Tensor(c!)? key_scale=None, Tensor(d!)? value_scale=None, Tensor? cos=None, Tensor? sin=None, "
      "Tensor? positions=None, bool interleaved=False) -> ()");
  m.def("rotary(Tensor x, Tensor cos, Tensor sin, Tensor positions, bool interleaved=False) -> Tensor");
  m.def(
      "kv_slots(Tensor block_table, Tensor cache_seqlens, int tokens, int pages, int page_size) "
      "-> (Tensor slots, Tensor positions, Tensor key_lengths)");
  m.def("copy_pages_(Tensor(a!)[] pools, Tensor copies) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CPU, m) {
  m.impl("kv_append_", kv_append_op);
  m.impl("rotary", rotary_op);
  m.impl("kv_slots", kv_slots_op);
  m.impl("copy_pages_", copy_pages_op);
}

STABLE_TORCH_LIBRARY_IMPL(tileformer, CompositeExplicitAutograd, m) {
  m.impl("kv_append_", refuse_append);
  m.impl("rotary", refuse_rotary);
  m.impl("kv_slots", refuse_slots);
  m.impl("copy_pages_", refuse_copies);
}

}  // namespace tileformer::torch_binding
