// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/api/guarded_driver.h"

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/addresses/guest_addresses.h"
#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/driver.h"
#include "host_backend/worker/driver/host_nodes.h"
#include "host_backend/worker/driver/legacy_launch.h"
#include "host_backend/worker/driver/user_objects.h"

namespace causeway::host {

bool OpenDriver(const std::string& path, std::string* error) {
  Driver& driver = DriverToFill();
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
