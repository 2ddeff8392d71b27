// Cache sizes and cores, as far as this process may use them. Plans derive block sizes and worker counts from
// these.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tileformer {

struct CpuTopology {
  // Bytes of one instance of each cache, as seen from the first core that this process may use.
  std::size_t l1d = 32 << 10, l2 = 1 << 20, l3 = 8 << 20;
  int l3_sharers = 1;      // usable logical CPUs behind one L3
  int logical_cpus = 1;    // in the affinity mask
  int physical_cores = 1;  // distinct cores in the affinity mask
  int usable_cores =
      1;  // physical_cores, less where a cgroup grants less CPU time: the default number of workers
};

// Measured at the first call.
const CpuTopology& cpu_topology();

// The same from a file tree (root + "/sys/...", root + "/proc/...") and the logical CPUs of the affinity
// mask. What the tree does not tell keeps its default.
CpuTopology read_topology(const std::string& root, const std::vector<int>& cpus);

}  // namespace tileformer
