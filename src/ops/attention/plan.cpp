#include "ops/attention/plan.h"

#include <algorithm>
#include <sstream>

#include "ops/attention/decode/items.h"
#include "ops/attention/kernel_inputs.h"

namespace tileformer::attention {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t visible(const AttentionArgs& args, const Sequence& s, std::int64_t query) {
  const KeyRange r = key_range(args, s, std::min(query, s.queries - 1));
  return std::max<std::int64_t>(r.end - r.begin, 0);
}

struct Extent {
  std::int64_t longest_queries = 0, longest_keys = 0;
  std::int64_t groups = 0;  // of all sequences, one kv head
  double scores = 0;        // of one kv head
};

Extent extent_of(const AttentionArgs& args, const Problem& problem, int lanes) {
  Extent e;
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(args, problem, n);
    if (s.queries == 0 || decodes(args, problem, s)) continue;
    e.longest_queries = std::max(e.longest_queries, s.queries);
    e.longest_keys = std::max(e.longest_keys, s.keys);
    e.groups += groups_of(s.queries, problem.group, lanes);
    e.scores += 0.5 * double(visible(args, s, 0) + visible(args, s, s.queries - 1)) *
                double(s.queries * problem.group);
  }
  return e;
}

// A worker pays some 5 us to be woken; below this many scores * dims per worker it is not worth it.
constexpr double kWorkPerThread = 2e6;
// Lane groups that share a packed key block: packing costs about a third of one group's products at D=128
// (avx2, fp32), which 16 groups make 2 %, even where Q and O then leave L2 (D=256: 16 groups 83 %, 8 groups
// 80 % of the peak).
constexpr std::int64_t kMinGroupsPerTask = 16;
// Work items per worker, so that the last ones to finish do not leave the others waiting long.
constexpr std::int64_t kItemsPerThread = 6;

}  // namespace

std::int64_t groups_of(std::int64_t queries, std::int64_t group, int lanes) {
  if (group > 1 && queries < lanes) return ceil_div(group * queries, lanes);
  return group * ceil_div(queries, lanes);
}

AttentionPlan plan(const AttentionArgs& args, const Problem& problem, const DecodeWork& decode,
                   const Unit* unit, Isa isa, const CpuTopology& cpu, int threads) {
  AttentionPlan p;
  p.isa = isa;
  if (!unit) {
    p.unit = "reference";
    p.note = "float64 runs the reference loops, one thread";
    return p;
  }
  p.unit = unit->label;
  p.query_lanes = unit->lanes;
  p.threads_asked = threads;
  const Extent extent = extent_of(args, problem, unit->lanes);
  p.fold_heads = problem.group > 1 && extent.longest_queries < unit->lanes;
  // A block never exceeds the keys there are: scratch and packing follow.
  p.key_block = static_cast<int>(std::min<std::int64_t>(
      unit->key_block,
      std::max<std::int64_t>(ceil_div(extent.longest_keys, unit->key_rows), 1) * unit->key_rows));

  p.decode_items = std::int64_t(decode.items.size());
  p.decode_sequences = decode.sequences;
  const double work =
      (extent.scores * double(problem.kv_heads) + decode.keys) * double(problem.dim + problem.dim_v);
  const int useful = static_cast<int>(std::min(work / kWorkPerThread + 1, 1e6));
  p.threads = std::max(1, std::min(threads, useful));

  // Q and O of a task stay in L2 beside a key block. Alone, a thread gains nothing from smaller tasks;
  // several threads want enough of them to share out.
  const std::int64_t group_bytes =
      unit->lanes * (problem.dim * (unit->bf16_only ? 2 : 4) + problem.dim_v * 4);
  std::int64_t groups = std::max<std::int64_t>(kMinGroupsPerTask, std::int64_t(cpu.l2 / 2) / group_bytes);
  if (p.threads > 1) {
    const std::int64_t shared = ceil_div(extent.groups * problem.kv_heads, kItemsPerThread * p.threads);
    groups = std::min(groups, std::max(shared, kMinGroupsPerTask / 2));
  }
  // Whole multiples of the group keep the heads that share a mask row together.
  if (groups > problem.group) groups -= groups % problem.group;
  groups = std::min(groups,
                    std::max<std::int64_t>(groups_of(extent.longest_queries, problem.group, unit->lanes), 1));
  p.query_block = static_cast<int>(groups * unit->lanes);

  std::int64_t tasks = 0;
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(args, problem, n);
    if (!decodes(args, problem, s))
      tasks += ceil_div(groups_of(s.queries, problem.group, unit->lanes), groups);
  }
  p.tasks = tasks * problem.kv_heads;
  p.threads = static_cast<int>(
      std::min<std::int64_t>(p.threads, std::max<std::int64_t>(p.tasks + p.decode_items, 1)));

  KernelArgs kernel = kernel_args(args, problem, p.key_block, p.query_block / p.query_lanes);
  const WorkerMemory memory = worker_memory(*unit, p.tasks > 0, decode, &kernel);
  p.workspace_bytes = memory.shared + memory.each * std::size_t(p.threads) + 64;
  return p;
}

WorkerMemory worker_memory(const Unit& unit, bool tiles, const DecodeWork& decode, KernelArgs* kernel) {
  kernel->decode_rows = decode.rows;
  kernel->decode_heads = decode.heads;
  WorkerMemory m{};
  if (tiles) m.each = unit.scratch_bytes(*kernel);
  if (!decode.items.empty()) {
    const DecodeKernel& rows = decode_kernel_of(unit);
    m.each = std::max(m.each, rows.scratch_bytes(*kernel));
    const DecodeMemory shared = decode_memory(decode, rows.partial_row_floats(*kernel));
    m.partials = shared.partials;
    m.shared = shared.partials + shared.counters;
  }
  return m;
}

std::vector<Task> work_list(const AttentionArgs& args, const Problem& problem, int lanes,
                            std::int64_t groups_per_task) {
  std::vector<Task> tasks;
  for (std::int64_t n = 0; n < problem.sequences; ++n) {
    const Sequence s = sequence(args, problem, n);
    if (decodes(args, problem, s)) continue;
    const std::int64_t groups = groups_of(s.queries, problem.group, lanes);
    for (std::int64_t g = 0; g < groups; g += groups_per_task) {
      const std::int64_t count = std::min(groups_per_task, groups - g);
      const std::int64_t first = g / problem.group * lanes,
                         last = (g + count - 1) / problem.group * lanes + lanes - 1;
      tasks.push_back(
          {n, g, count, 0.5 * double(visible(args, s, first) + visible(args, s, last)) * double(count)});
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
  return tasks;
}

}  // namespace tileformer::attention

namespace tileformer {

std::string AttentionPlan::to_string() const {
  std::ostringstream s;
  s << "isa " << name_of(isa) << ", unit " << unit;
  if (tasks)
    s << ", " << query_lanes << " queries a tile" << (fold_heads ? " (heads of a group share it)" : "")
      << ", key block " << key_block << ", query block " << query_block << ", " << tasks << " tasks";
  if (decode_items)
    s << ", decode: " << decode_sequences << " sequence" << (decode_sequences > 1 ? "s" : "") << " in "
      << decode_items << " items";
  if (query_lanes)
    s << " on " << threads << " thread" << (threads > 1 ? "s" : "") << ", workspace "
      << (workspace_bytes + 1023) / 1024 << " KiB";
  if (!note.empty()) s << "; " << note;
  return s.str();
}

}  // namespace tileformer
