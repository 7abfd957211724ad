#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rows of ivshmem_ring/nvml_calls.def as text, and that the guest's libnvidia-ml.so.1 exports their names.

Usage: nvml_rows_test.py <repository> <libnvidia-ml.so.1> [<another libnvidia-ml.so.1, whose names must all exist>]
"""
import pathlib
import re
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "unit"))
import rows as reader

ROW = re.compile(r"NVML_(CALL|GUEST|LOCAL|DENY|LACK)\((nvml\w+)(?:, (.*))?\)$")
# What must never reach the host's library, whatever a row says.
CHANGES = re.compile(r"(Set|Reset|Clear|Create|Destroy|Remove|Modify|Freeze|Update|Activate)[A-Z]\w*")
# What programs look up first and cannot do without (NVIDIA's tools, PyTorch, NCCL, XLA, nvtop).
NEEDED = """nvmlInit_v2 nvmlShutdown nvmlErrorString nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2
nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetHandleByUUID nvmlDeviceGetName nvmlDeviceGetUUID nvmlDeviceGetPciInfo_v3
nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetComputeRunningProcesses
nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetNvLinkState
nvmlDeviceGetNvLinkCapability nvmlDeviceGetP2PStatus nvmlDeviceGetFieldValues nvmlDeviceGetGpuFabricInfoV
nvmlSystemGetCudaDriverVersion_v2 nvmlSystemGetDriverVersion nvmlDeviceGetCudaComputeCapability""".split()


def main():
    repository, library = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rows, problems = reader.read_rows(repository, "ivshmem_ring/nvml_calls.def", "ivshmem_ring/nvml", ROW)
    problems += [f"{name} changes the host's GPU and would be sent" for name, (kind, _) in rows.items()
                 if kind in ("CALL", "GUEST") and CHANGES.search(name)]
    problems += [f"programs need {name}" for name in NEEDED if rows.get(name, ("",))[0] not in ("CALL", "GUEST", "LOCAL")]
    names = reader.exported(library, "nvml")
    problems += [f"a row that is not exported: {name}" for name in sorted(rows.keys() - names)]
    problems += [f"exported without a row: {name}" for name in sorted(names - rows.keys())]
    if len(sys.argv) > 3:
        problems += [f"NVIDIA's library has it: {name}" for name in sorted(reader.exported(sys.argv[3], "nvml") - names)]
    return reader.report(rows, problems)


if __name__ == "__main__":
    sys.exit(main())
