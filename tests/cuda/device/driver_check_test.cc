#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "cuda/device/device.h"

namespace sparseagg::testing {
namespace {

using cuda::CheckDriver;
using cuda::DriverRelease;

TEST(DriverCheckTest, CheckDriver_SameMajorVersionOrNewer_Ok) {
  for (const int driver : {13000, 13010, 14000}) {
    EXPECT_EQ(CheckDriver(driver, 13000, "580.65.06"), absl::OkStatus());
    EXPECT_EQ(CheckDriver(driver, 13020, ""), absl::OkStatus());
  }
}

TEST(DriverCheckTest, CheckDriver_Older_SaysWhatWasFoundAndWhatIsNeeded) {
  EXPECT_EQ(CheckDriver(12040, 13000, "550.54.15"),
            absl::UnavailableError("no usable GPU: the NVIDIA driver 550.54.15 is for CUDA 12.4, and the CUDA engine "
                                   "needs a driver for CUDA 13, which is R580 or later; the CPU engine works without"));
  EXPECT_EQ(CheckDriver(12090, 14000, ""),
            absl::UnavailableError("no usable GPU: the NVIDIA driver is for CUDA 12.9, and the CUDA engine needs a "
                                   "driver for CUDA 14; the CPU engine works without"));
}

TEST(DriverCheckTest, CheckDriver_None_SaysSo) {
  EXPECT_EQ(CheckDriver(0, 13000, ""), absl::UnavailableError("no usable GPU: this machine has no NVIDIA driver"));
}

TEST(DriverCheckTest, DriverRelease_BothKindsOfModule_IsRead) {
  const std::string path = ::testing::TempDir() + "/driver_check_test." + std::to_string(getpid());
  for (const std::string line :
       {"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:28:49 UTC 2025\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n"}) {
    std::ofstream(path) << line << "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
    EXPECT_EQ(DriverRelease(path), "580.65.06");
  }
  unlink(path.c_str());
  EXPECT_EQ(DriverRelease(path), "");
}

}  // namespace
}  // namespace sparseagg::testing
