#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154  # libxl sets them
# What libxl calls for a domain's network interface, as Xen's own script vif-bridge, which needs more than this domain 0 has.
[ "$1" = online ] || exit 0
/bin/busybox ip link set "$vif" up && /bin/busybox brctl addif xenbr0 "$vif" && /usr/bin/xenstore-write "$XENBUS_PATH/hotplug-status" connected
