#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own NVRTC keeps in the guest's files what it compiled, and finds it there.

Usage: compile_cache_nvrtc_test.py LIBNVRTC CAUSEWAY SOFTWARE_GPU. Whether code was found shows in the files: what was found
has been used lately.
"""
import ctypes
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = b'extern "C" __global__ void scale(float* a, float f) { a[threadIdx.x] = sinf(a[threadIdx.x]) * f; }'
LONG_AGO_S = 1000


def compile_here(nvrtc_path):
    """In the guest process: the hash of the code."""
    nvrtc = ctypes.CDLL(nvrtc_path)

    def check(result):
        assert result == 0, f"NVRTC answered {result}"

    program = ctypes.c_void_p()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"scale.cu", 0, None, None))
    options = (ctypes.c_char_p * 1)(b"-arch=sm_90")
    check(nvrtc.nvrtcCompileProgram(program, 1, options))
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    code = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetCUBIN(program, code))
    print(hashlib.sha256(code.raw).hexdigest())


class Guest:
    def __init__(self, nvrtc, causeway, driver, folder):
        self.command = [causeway, "run", "--driver", driver, "--", sys.executable, __file__, nvrtc]
        self.environment = dict(os.environ, CUDA_CACHE_PATH=str(folder))
        self.environment.pop("CUDA_CACHE_DISABLE", None)
        self.files = folder / "causeway"

    def compile(self, **variables):
        done = subprocess.run(self.command, env=dict(self.environment, **variables), capture_output=True, text=True,
                              timeout=100, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]

    def sizes(self):
        return {path.name: path.stat().st_size for path in self.files.iterdir()} if self.files.exists() else {}

    def age(self):
        for path in self.files.iterdir():
            os.utime(path, (LONG_AGO_S, LONG_AGO_S))

    def used(self):
        return {path.name for path in self.files.iterdir() if path.stat().st_mtime > 2 * LONG_AGO_S}


def test(nvrtc, causeway, driver):
    with tempfile.TemporaryDirectory() as folder:
        guest = Guest(nvrtc, causeway, driver, pathlib.Path(folder))
        code = guest.compile(CUDA_CACHE_DISABLE="1")
        assert not guest.sizes(), "CUDA_CACHE_DISABLE=1, and yet there are files"

        assert guest.compile() == code, "the first compilation with the cache gave other code"
        kept = guest.sizes()
        assert kept, "nothing was kept"

        guest.age()
        assert guest.compile() == code, "what was found is other code"
        assert guest.sizes() == kept and guest.used(), "nothing was found"

        for path in guest.files.iterdir():
            os.truncate(path, path.stat().st_size // 2)
        assert guest.compile() == code, "halves of files were used"
        assert guest.sizes() == kept, "what could not be used was not replaced"


if __name__ == "__main__":
    if len(sys.argv) == 2:
        compile_here(sys.argv[1])
    else:
        test(*sys.argv[1:4])
        print("NVRTC finds what it compiled before")
