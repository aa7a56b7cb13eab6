#include "csrc/engine/domains/efa/fakesrd/sysfs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace jax_fabric::fake_srd {

std::string SysfsFolder() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path root = fs::temp_directory_path(error) / ("jax_fabric_fakesrd." + std::to_string(getuid()));
  mkdir(root.c_str(), 0700);
  struct stat found = {};
  if (lstat(root.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != getuid()) return {};
  const fs::path on_bus = root / "bus" / "0000:af:00.0", device = root / "class" / "infiniband" / "fakesrd0";
  fs::create_directories(on_bus, error);
  fs::create_directories(root / "bus" / "efa", error);
  fs::create_directories(device, error);
  if (!fs::exists(on_bus / "revision")) std::ofstream(on_bus / "revision") << "0x00\n";
  fs::create_directory_symlink(root / "bus" / "efa", on_bus / "driver", error);
  fs::create_directory_symlink(on_bus, device / "device", error);
  fs::create_directories(root / "class" / "infiniband_verbs", error);
  std::ofstream(root / "class" / "infiniband_verbs" / "abi_version") << "6\n";
  setenv("SYSFS_PATH", root.c_str(), 0);
  return fs::exists(device / "device" / "driver") ? device.string() : std::string();
}

}  // namespace jax_fabric::fake_srd
