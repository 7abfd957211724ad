#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a change costs: the figures of `causeway bench` of two builds in turns, and the ratio of each with its interval.
# usage: compare_builds.sh OLD_BUILD NEW_BUILD OUT [--limit S] [--only A|B] [--driver LIBRARY] [--bind PROBE:WORKER] [--seed N]
# Writes OUT/compare.md and OUT/compare.json. Exits 1 if a figure is worse than it may be; compare_builds.py says how.
exec python3 "$(dirname "$0")/compare_builds.py" "$@"
