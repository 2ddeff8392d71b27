// Topology from made-up file trees, and sanity of this machine's.
#include "base/topology.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tileformer {
namespace {

class TopologyTest : public ::testing::Test {
 protected:
  TopologyTest() {
    root_ = ::testing::TempDir() + "tileformer_topology_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  ~TopologyTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text << "\n";
  }

  void write_cache(int cpu, int index, const char* level, const char* type, const char* size,
                   const char* sharers) {
    const std::string dir =
        "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index) + "/";
    write(dir + "level", level);
    write(dir + "type", type);
    write(dir + "size", size);
    write(dir + "shared_cpu_list", sharers);
  }

  void write_core(int cpu, int package, int core) {
    const std::string dir = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    write(dir + "physical_package_id", std::to_string(package));
    write(dir + "core_id", std::to_string(core));
  }

  std::string root_;
};

TEST_F(TopologyTest, ReadsCachesOfTheFirstUsableCpu) {
  write_cache(4, 0, "1", "Data", "48K", "4,12");
  write_cache(4, 1, "1", "Instruction", "32K", "4,12");
  write_cache(4, 2, "2", "Unified", "2048K", "4,12");
  write_cache(4, 3, "3", "Unified", "105M", "0-5,12-13");
  const CpuTopology t = read_topology(root_, {4, 5, 6, 12});
  EXPECT_EQ(t.l1d, std::size_t{48} << 10);
  EXPECT_EQ(t.l2, std::size_t{2} << 20);
  EXPECT_EQ(t.l3, std::size_t{105} << 20);
  EXPECT_EQ(t.l3_sharers, 3);
  EXPECT_EQ(t.logical_cpus, 4);
}

TEST_F(TopologyTest, HyperthreadsCountAsOneCore) {
  for (int cpu = 0; cpu < 8; ++cpu) write_core(cpu, cpu % 2, cpu / 2 % 2);
  EXPECT_EQ(read_topology(root_, {0, 1, 2, 3, 4, 5, 6, 7}).physical_cores, 4);
  EXPECT_EQ(read_topology(root_, {0, 4}).physical_cores, 1);
  EXPECT_EQ(read_topology(root_, {0, 1}).usable_cores, 2);
}

TEST_F(TopologyTest, CgroupV2QuotaOfAnyAncestorLimitsCores) {
  write("/proc/self/cgroup", "0::/pod/app");
  write("/sys/fs/cgroup/pod/app/cpu.max", "max 100000");
  EXPECT_EQ(read_topology(root_, {0, 1, 2, 3}).usable_cores, 4);
  write("/sys/fs/cgroup/pod/cpu.max", "150000 100000");
  EXPECT_EQ(read_topology(root_, {0, 1, 2, 3}).usable_cores, 2);
  write("/sys/fs/cgroup/cpu.max", "10000 100000");
  EXPECT_EQ(read_topology(root_, {0, 1, 2, 3}).usable_cores, 1);
}

TEST_F(TopologyTest, CgroupV1QuotaLimitsCores) {
  write("/proc/self/cgroup", "4:cpu,cpuacct:/job\n3:memory:/job");
  write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000");
  write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  const CpuTopology t = read_topology(root_, {0, 1, 2, 3});
  EXPECT_EQ(t.usable_cores, 3);
  EXPECT_EQ(t.physical_cores, 4);
}

TEST_F(TopologyTest, WithoutSysfsTheDefaultsStand) {
  const CpuTopology t = read_topology(root_, {0, 1});
  EXPECT_EQ(t.l1d, CpuTopology{}.l1d);
  EXPECT_EQ(t.l3, CpuTopology{}.l3);
  EXPECT_EQ(t.physical_cores, 2);
  EXPECT_EQ(read_topology(root_, {}).usable_cores, 1);
}

TEST_F(TopologyTest, ThisMachineIsPlausible) {
  const CpuTopology& t = cpu_topology();
  EXPECT_GE(t.l1d, std::size_t{8} << 10);
  EXPECT_LE(t.l1d, std::size_t{1} << 20);
  EXPECT_GE(t.l2, t.l1d);
  EXPECT_GE(t.usable_cores, 1);
  EXPECT_LE(t.usable_cores, t.physical_cores);
  EXPECT_LE(t.physical_cores, t.logical_cpus);
}

}  // namespace
}  // namespace tileformer
