// What libfabric's efa provider reads of sysfs: the device's place on the bus, its revision, the name of its driver.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_SYSFS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_SYSFS_H_

#include <string>

namespace jax_fabric::fake_srd {

// The folder of the device in a tree of this user's, which is made when it is not there. Empty: it cannot be made.
std::string SysfsFolder();

}  // namespace jax_fabric::fake_srd

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_SYSFS_H_
