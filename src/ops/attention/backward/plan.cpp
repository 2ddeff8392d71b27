#include "ops/attention/backward/plan.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "ops/attention/kernel_inputs.h"
#include "ops/attention/plan.h"

namespace tileformer::attention {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Below this many scores * dims per worker another one is not worth waking.
constexpr double kWorkPerThread = 1e6;
// Queries of a task. More of them add to dK and dV in memory less often; fewer give more tasks to share out.
// An eighth of the sequence within these bounds; never a matter of the number of threads, so that sums are
// always rounded in the same places.
constexpr std::int64_t kMinChunk = 256, kMaxChunk = 1024, kTasksPerHead = 8;

// Lane groups of a task of this sequence.
std::int64_t chunk_groups(std::int64_t groups, const Problem& problem, int lanes, int block_groups) {
  std::int64_t chunk = ceil_div(groups, kTasksPerHead);
  chunk = std::clamp(chunk, std::max<std::int64_t>(kMinChunk / lanes, 1),
                     std::max<std::int64_t>(kMaxChunk / lanes, 1));
  chunk = ceil_div(chunk, block_groups) * block_groups;
  // The heads of a group share the rows of a mask.
  if (chunk > problem.group) chunk -= chunk % problem.group;
  return std::min(chunk, std::max<std::int64_t>(groups, 1));
}

struct Chunks {
  std::vector<BackwardTask> tasks;  // of one kv head of the sequence; head_begin and so on not set
  double scores = 0;
};

// The last queries first: with causal attention they are the longest.
Chunks chunks_of(const AttentionArgs& args, const Problem& problem, std::int64_t sequence_index, int lanes,
                 int key_block, int block_groups) {
  const Sequence s = sequence(args, problem, sequence_index);
  const std::int64_t groups = groups_of(s.queries, problem.group, lanes);
  const std::int64_t chunk = chunk_groups(groups, problem, lanes, block_groups);
  const bool folded = problem.group > 1 && s.queries < lanes;
  Chunks chunks;
  for (std::int64_t first = (std::max<std::int64_t>(groups, 1) - 1) / chunk * chunk; first >= 0;
       first -= chunk) {
    BackwardTask t{};
    t.sequence = sequence_index;
    t.first_group = first;
    t.groups = std::min(chunk, groups - first);
    if (t.groups > 0) {
      const std::int64_t from = folded ? 0 : first / problem.group * lanes,
                         to = folded
                                  ? s.queries
                                  : std::min(s.queries, ((first + t.groups - 1) / problem.group + 1) * lanes);
      const std::int64_t begin = key_range(args, s, from).begin, end = key_range(args, s, to - 1).end;
      if (std::max<std::int64_t>(begin, 0) < end) {
        t.block_begin = std::max<std::int64_t>(begin, 0) / key_block;
        t.block_end = ceil_div(end, key_block);
        chunks.scores += double(end - begin) * double(t.groups * lanes);
      }
    }
    chunks.tasks.push_back(t);
  }
  return chunks;
}

bool broadcasts(std::int64_t size, std::int64_t of) { return size == 1 && of > 1; }

// How tasks share elements of grad_mask.
void order_mask(const AttentionBackwardArgs& args, const Problem& problem, std::int64_t queries,
                std::int64_t keys, BackwardKernelArgs* k) {
  const TensorView& m = args.grad_mask;
  if (!m) return;
  const bool shared = broadcasts(m.shape[0], problem.sequences) || broadcasts(m.shape[1], problem.heads) ||
                      broadcasts(m.shape[2], queries);
  k->mask_in_order = shared;
  k->mask_whole = shared && broadcasts(m.shape[3], keys);
}

}  // namespace

BackwardLayout backward_layout(const AttentionBackwardArgs& args, const Problem& problem, const Unit* unit,
                               Isa isa, int threads) {
  BackwardLayout layout;
  AttentionBackwardPlan& p = layout.plan;
  p.isa = isa;
  if (!unit) {
    p.unit = "reference";
    p.note = "float64 runs the reference loops, one thread";
    return layout;
  }
  const AttentionArgs& forward = args.forward;
  const BackwardKernel& kernel = backward_kernel_of(*unit);
  p.unit = unit->label;
  p.query_lanes = unit->lanes;

  std::int64_t longest_queries = 0, longest_keys = 0;
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(forward, problem, n);
    longest_queries = std::max(longest_queries, s.queries);
    longest_keys = std::max(longest_keys, s.keys);
  }
  // A block never exceeds the keys there are: scratch and packing follow.
  p.key_block = static_cast<int>(std::min<std::int64_t>(
      kernel.key_block, std::max<std::int64_t>(ceil_div(longest_keys, unit->key_rows), 1) * unit->key_rows));

  // Sequences by falling work, the heads of a sequence one after the other, the chunks of a head in order.
  std::vector<Chunks> chunks;
  double work = 0;
  std::int64_t max_groups = 1;
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    chunks.push_back(chunks_of(forward, problem, n, unit->lanes, p.key_block, kernel.block_groups));
    work += chunks.back().scores * double(problem.kv_heads) * double(problem.dim + problem.dim_v);
    for (const BackwardTask& t : chunks.back().tasks) max_groups = std::max(max_groups, t.groups);
  }
  std::vector<std::int64_t> order(static_cast<std::size_t>(problem.sequences));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return chunks[a].scores > chunks[b].scores; });

  std::vector<std::int64_t> head_begins;  // of the heads that need a slot
  std::vector<std::int64_t> head_ends;
  std::int64_t fewest_tasks = 1 << 30;
  for (const std::int64_t n : order)
    for (std::int64_t h = 0; h < problem.kv_heads; ++h) {
      const std::int64_t begin = static_cast<std::int64_t>(layout.tasks.size()),
                         end = begin + static_cast<std::int64_t>(chunks[n].tasks.size());
      for (BackwardTask t : chunks[n].tasks) {
        t.kv_head = h;
        t.head_begin = begin;
        t.head_end = end;
        t.slot = end - begin > 1 ? static_cast<std::int64_t>(head_begins.size()) : -1;
        layout.tasks.push_back(t);
      }
      if (end - begin == 1) continue;
      head_begins.push_back(begin);
      head_ends.push_back(end);
      fewest_tasks = std::min(fewest_tasks, end - begin);
    }

  p.tasks = static_cast<std::int64_t>(layout.tasks.size());
  const int useful = static_cast<int>(std::min(work / kWorkPerThread + 1, 1e6));
  p.threads = std::max<int>(
      1, static_cast<int>(std::min<std::int64_t>({threads, useful, std::max<std::int64_t>(p.tasks, 1)})));

  // As many slots as heads that can be under way; one head's end overlaps with the next one's start.
  if (!head_begins.empty()) {
    p.slots = ceil_div(p.threads, fewest_tasks) + (p.threads > 1 && fewest_tasks < 8 * p.threads ? 1 : 0);
    p.slots = std::min<std::int64_t>(p.slots, static_cast<std::int64_t>(head_begins.size()));
    for (BackwardTask& t : layout.tasks) {
      if (t.slot < 0) continue;
      t.slot_free_after = t.slot >= p.slots ? head_ends[t.slot - p.slots] : 0;
      t.slot %= p.slots;
    }
  }
  p.query_block = kernel.block_groups * unit->lanes;
  p.chunk = max_groups * unit->lanes;

  BackwardKernelArgs& k = layout.kernel;
  k.forward = kernel_args(forward, problem, p.key_block, static_cast<int>(max_groups));
  k.out = operand(forward.out);
  k.forward.out = {};
  k.grad_out = operand(args.grad_out);
  k.grad_lse = operand(args.grad_lse);
  k.grad_query = operand(args.grad_query);
  k.grad_key = operand(args.grad_key);
  k.grad_value = operand(args.grad_value);
  k.grad_mask = operand(args.grad_mask);
  k.block_groups = kernel.block_groups;
  order_mask(args, problem, longest_queries, longest_keys, &k);
  k.slot_floats = ceil_div(longest_keys, p.key_block) * p.key_block * kernel.slot_floats_per_key(k);
  if (args.grad_sinks) layout.row_term_floats = static_cast<std::size_t>(forward.lse.elements());

  k.forward.scratch_bytes = kernel.scratch_bytes(k);
  p.workspace_bytes = k.forward.scratch_bytes * std::size_t(p.threads) +
                      sizeof(float) * std::size_t(p.slots * k.slot_floats + 16) +
                      sizeof(float) * (layout.row_term_floats + 16) +
                      sizeof(std::int64_t) * std::size_t(p.tasks + 8) + 64;
  return layout;
}

}  // namespace tileformer::attention

namespace tileformer {

std::string AttentionBackwardPlan::to_string() const {
  std::ostringstream s;
  s << "isa " << name_of(isa) << ", unit " << unit;
  if (query_lanes) {
    s << ", " << query_lanes << " queries a tile, key block " << key_block << ", query block " << query_block
      << ", chunk " << chunk << ", " << tasks << " tasks on " << threads << " thread"
      << (threads > 1 ? "s" : "") << ", " << slots << " fp32 slot" << (slots == 1 ? "" : "s")
      << ", workspace " << (workspace_bytes + 1023) / 1024 << " KiB";
  }
  if (!note.empty()) s << "; " << note;
  return s.str();
}

}  // namespace tileformer
