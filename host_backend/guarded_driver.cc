// SPDX-License-Identifier: Apache-2.0
// Opens the driver and puts guards before its rows.
#include "host_backend/guarded_driver.h"

#include "host_backend/accounting.h"
#include "host_backend/capture.h"
#include "host_backend/driver.h"
#include "host_backend/guest_addresses.h"
#include "host_backend/host_nodes.h"
#include "host_backend/legacy_launch.h"
#include "host_backend/user_objects.h"

namespace causeway::host {

bool OpenDriver(const std::string& path, std::string* error) {
  Driver& driver = TheDriver();
  if (!driver.Resolve(path, error)) return false;
  GuardDriver(driver);
  return true;
}

void GuardDriver(Driver& driver) {
  GuardLegacyLaunches(driver);
  AccountMemory(driver);
  HideHostNodes(driver);
  KeepWishesInWindows(driver);
  WatchCaptures(driver);
  CountUserObjects(driver);
}

}  // namespace causeway::host
