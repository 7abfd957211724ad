// SPDX-License-Identifier: Apache-2.0
// libvirt's library, loaded when it is asked for, so that the other commands work on hosts without it.
#pragma once
#include <libvirt/libvirt.h>
#include <libvirt/virterror.h>

#include "host_backend/common/result.h"

namespace causeway::command {

// The functions that are used, as members of their own names.
#define CAUSEWAY_LIBVIRT_FUNCTIONS(X) \
  X(virConnectClose)                  \
  X(virConnectGetCapabilities)        \
  X(virConnectGetType)                \
  X(virConnectGetURI)                 \
  X(virConnectListAllDomains)         \
  X(virConnectOpen)                   \
  X(virDomainAttachDeviceFlags)       \
  X(virDomainDefineXML)               \
  X(virDomainDetachDeviceFlags)       \
  X(virDomainFree)                    \
  X(virDomainGetName)                 \
  X(virDomainGetXMLDesc)              \
  X(virDomainIsActive)                \
  X(virDomainIsPersistent)            \
  X(virDomainLookupByName)            \
  X(virDomainLookupByUUIDString)      \
  X(virGetLastErrorCode)              \
  X(virGetLastErrorMessage)           \
  X(virSetErrorFunc)

struct LibvirtLibrary {
#define CAUSEWAY_DECLARE(name) decltype(&::name) name = nullptr;
  CAUSEWAY_LIBVIRT_FUNCTIONS(CAUSEWAY_DECLARE)
#undef CAUSEWAY_DECLARE
};

// The library stays loaded until the process ends. An error is a sentence that says which package is missing.
Result<const LibvirtLibrary*> LoadLibvirt();

}  // namespace causeway::command
