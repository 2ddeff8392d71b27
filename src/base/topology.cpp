#include "base/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

namespace tileformer {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "48K", "1024K", "32M"
std::size_t parse_bytes(const std::string& text) {
  std::size_t value = 0;
  char unit = 0;
  std::istringstream(text) >> value >> unit;
  return value << (unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0);
}

// "0-3,8,10-11"
std::set<int> parse_cpu_list(const std::string& text) {
  std::set<int> cpus;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream range(item);
    if (!(range >> first)) continue;
    if (!(range >> dash >> last)) last = first;
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

void read_caches(const std::string& cpu_dir, const std::vector<int>& cpus, CpuTopology* topology) {
  for (int index = 0; index < 8; ++index) {
    const std::string dir = cpu_dir + "/cache/index" + std::to_string(index) + "/";
    const std::string level = first_line(dir + "level"), type = first_line(dir + "type");
    const std::size_t bytes = parse_bytes(first_line(dir + "size"));
    if (bytes == 0 || type == "Instruction") continue;
    if (level == "1") topology->l1d = bytes;
    if (level == "2") topology->l2 = bytes;
    if (level == "3") {
      topology->l3 = bytes;
      const std::set<int> sharers = parse_cpu_list(first_line(dir + "shared_cpu_list"));
      const auto shares = [&](int cpu) { return sharers.count(cpu) != 0; };
      topology->l3_sharers = std::max(1, int(std::count_if(cpus.begin(), cpus.end(), shares)));
    }
  }
}

int count_cores(const std::string& cpu_root, const std::vector<int>& cpus) {
  std::set<std::pair<std::string, std::string>> cores;
  for (int cpu : cpus) {
    const std::string dir = cpu_root + "/cpu" + std::to_string(cpu) + "/topology/";
    std::string core = first_line(dir + "core_id");
    if (core.empty()) core = "cpu" + std::to_string(cpu);
    cores.emplace(first_line(dir + "physical_package_id"), core);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

// CPUs' worth of time per period, rounded up, over a cgroup and its ancestors; `unlimited` if none limits it.
int cgroup_cpus(const std::string& root, int unlimited) {
  const auto ceil_div = [](long long a, long long b) { return static_cast<int>((a + b - 1) / b); };
  int cpus = unlimited;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // hierarchy:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,", v1 = controllers.find(",cpu,") != std::string::npos;
    if (!v1 && !v2) continue;
    std::string path = line.substr(second + 1);
    for (;;) {
      long long quota = -1, period = 0;
      if (v2) {
        std::istringstream(first_line(root + "/sys/fs/cgroup" + path + "/cpu.max")) >> quota >> period;
      } else {
        const std::string dir = root + "/sys/fs/cgroup/cpu" + path;
        std::istringstream(first_line(dir + "/cpu.cfs_quota_us")) >> quota;
        std::istringstream(first_line(dir + "/cpu.cfs_period_us")) >> period;
      }
      if (quota > 0 && period > 0) cpus = std::min(cpus, ceil_div(quota, period));
      if (path.empty() || path == "/") break;
      path.erase(path.find_last_of('/'));
    }
  }
  return std::max(1, cpus);
}

std::vector<int> affinity() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  // More CPUs than cpu_set_t holds, or no such call in a sandbox.
  if (cpus.empty()) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    for (int cpu = 0; cpu < std::max(1L, online); ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

// Where sysfs is missing, the C library asks the CPU itself.
void caches_from_c_library(CpuTopology* topology) {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  const auto take = [](int name, std::size_t* bytes) {
    const long value = sysconf(name);
    if (value > 0) *bytes = static_cast<std::size_t>(value);
  };
  take(_SC_LEVEL1_DCACHE_SIZE, &topology->l1d);
  take(_SC_LEVEL2_CACHE_SIZE, &topology->l2);
  take(_SC_LEVEL3_CACHE_SIZE, &topology->l3);
#else
  (void)topology;
#endif
}

CpuTopology read_into(CpuTopology topology, const std::string& root, const std::vector<int>& cpus) {
  const std::string cpu_root = root + "/sys/devices/system/cpu";
  topology.logical_cpus = std::max<int>(1, static_cast<int>(cpus.size()));
  topology.l3_sharers = topology.logical_cpus;
  if (!cpus.empty()) read_caches(cpu_root + "/cpu" + std::to_string(cpus.front()), cpus, &topology);
  topology.physical_cores = count_cores(cpu_root, cpus);
  topology.usable_cores = cgroup_cpus(root, topology.physical_cores);
  return topology;
}

}  // namespace

CpuTopology read_topology(const std::string& root, const std::vector<int>& cpus) {
  return read_into(CpuTopology{}, root, cpus);
}

const CpuTopology& cpu_topology() {
  static const CpuTopology topology = [] {
    CpuTopology defaults;
    caches_from_c_library(&defaults);
    return read_into(defaults, "", affinity());
  }();
  return topology;
}

}  // namespace tileformer
