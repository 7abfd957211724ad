#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rows of ivshmem_ring/nvml_calls.def as text, and that the guest's libnvidia-ml.so.1 exports their names.

Usage: nvml_rows_test.py <repository> <libnvidia-ml.so.1> [<another libnvidia-ml.so.1, whose names must all exist>]
"""
import pathlib
import re
import subprocess
import sys

ROW = re.compile(r"NVML_(CALL|GUEST|LOCAL|DENY|LACK)\((nvml\w+)(?:, (.*))?\)$")
MAX_ROWS_OF_A_TABLE = 150
# What must never reach the host's library, whatever a row says.
CHANGES = re.compile(r"(Set|Reset|Clear|Create|Destroy|Remove|Modify|Freeze|Update|Activate)[A-Z]\w*")
# What programs look up first and cannot do without (NVIDIA's tools, PyTorch, NCCL, XLA, nvtop).
NEEDED = """nvmlInit_v2 nvmlShutdown nvmlErrorString nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2
nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetHandleByUUID nvmlDeviceGetName nvmlDeviceGetUUID nvmlDeviceGetPciInfo_v3
nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetComputeRunningProcesses
nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetNvLinkState
nvmlDeviceGetNvLinkCapability nvmlDeviceGetP2PStatus nvmlDeviceGetFieldValues nvmlDeviceGetGpuFabricInfoV
nvmlSystemGetCudaDriverVersion_v2 nvmlSystemGetDriverVersion nvmlDeviceGetCudaComputeCapability""".split()


def exported(library):
    listing = subprocess.run(["nm", "--dynamic", "--defined-only", str(library)], check=True, capture_output=True,
                             text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    return {name for name in names if name.startswith("nvml")}


def main():
    repository, library = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rows, problems, counts = {}, [], {}
    included = re.findall(r'^#include "(.*)"$', (repository / "ivshmem_ring/nvml_calls.def").read_text(), re.M)
    present = {str(path.relative_to(repository)) for path in (repository / "ivshmem_ring/nvml").glob("*.def")}
    problems += [f"{path} is not included by nvml_calls.def" for path in sorted(present - set(included))]
    for path in included:
        lines = [line for line in (repository / path).read_text().splitlines() if line and not line.startswith("//")]
        if len(lines) > MAX_ROWS_OF_A_TABLE:
            problems.append(f"{path} has {len(lines)} rows: split it")
        for line in lines:
            match = ROW.match(line)
            if not match:
                problems.append(f"{path}: not a row: {line}")
                continue
            kind, name, _ = match.groups()
            if name in rows:
                problems.append(f"{path}: {name} has a row already")
            rows[name] = kind
            counts[kind] = counts.get(kind, 0) + 1
            if kind in ("CALL", "GUEST") and CHANGES.search(name):
                problems.append(f"{path}: {name} changes the host's GPU and would be sent")
    problems += [f"programs need {name}" for name in NEEDED if rows.get(name) not in ("CALL", "GUEST", "LOCAL")]
    names = exported(library)
    problems += [f"a row that is not exported: {name}" for name in sorted(rows.keys() - names)]
    problems += [f"exported without a row: {name}" for name in sorted(names - rows.keys())]
    if len(sys.argv) > 3:
        problems += [f"NVIDIA's library has it: {name}" for name in sorted(exported(sys.argv[3]) - names)]
    print(len(rows), "rows:", ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
