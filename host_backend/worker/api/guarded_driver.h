// SPDX-License-Identifier: Apache-2.0
// Opens the driver and puts guards before its functions. A guard is a function of the worker that a row calls
// in place of the driver's, which it then calls itself. The guards count memory, know of captures, host nodes
// and user objects, keep addresses in their address windows, and check the launches of before CUDA 4
// (legacy_launch.h). The worker has no other way to open the driver, so no guard can be left out.
#pragma once
#include <string>

namespace causeway::host {

struct Driver;

// Opens the library at `path` and fills TheDriver() (host_backend/worker/driver/driver.h), for the life of
// the process. To be called once, before other threads use it. False, and one sentence in *error: the library
// cannot be opened, or it lacks functions that every session needs (such as cuInit) and so is no CUDA driver;
// TheDriver() must not be used then. It does not call cuInit.
bool OpenDriver(const std::string& path, std::string* error);

// Puts the guards before the functions of `driver`. OpenDriver does so; only a test that has filled a driver
// itself (tests/fuzz/fake_driver.cc) calls this. To be called once in a process, because the guards remember
// what they stand before in variables of the process.
void GuardDriver(Driver& driver);

}  // namespace causeway::host
