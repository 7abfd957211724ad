# SPDX-License-Identifier: Apache-2.0
"""What the framework scripts share: how numbers are printed, how sections run, how a script is skipped.

A script prints one line for each result, so that compare.py can hold a run through Causeway against a native one,
number by number. Lines that begin with '#' (times, addresses, free memory) are informative and not compared.
CAUSEWAY_SHORT=1 asks for small sizes, for a host or VM where everything is slow.
Import this before the framework: it sets what the frameworks' libraries read when they start.
"""

import faulthandler
import hashlib
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback

SHORT = os.environ.get("CAUSEWAY_SHORT") == "1"
SKIPPED = 77
# "cpu" runs what needs no GPU, to try a script out where there is none.
DEVICE = os.environ.get("CAUSEWAY_DEVICE", "cuda")

# cuBLAS repeats its results only with a fixed workspace. The CPU's part must not depend on the processor's extensions,
# which a VM may lack. NCCL's multicast needs the whole fabric, which other tenants may share.
for variable, value in (("CUBLAS_WORKSPACE_CONFIG", ":4096:8"), ("ATEN_CPU_CAPABILITY", "default"),
                        ("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
                        ("TOKENIZERS_PARALLELISM", "false"), ("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1")):
    os.environ.setdefault(variable, value)

# A script that hangs says where, shortly before compare.py ends it.
if os.environ.get("CAUSEWAY_DUMP_AFTER_S"):
    faulthandler.dump_traceback_later(float(os.environ["CAUSEWAY_DUMP_AFTER_S"]))


def pick(full, short):
    """A size, by how much time there is."""
    return short if SHORT else full


def skip(reason):
    print(f"skipped: {reason}")
    sys.stdout.flush()
    os._exit(SKIPPED)  # a half-imported framework may have started threads


def numpy_of(array):
    """A host copy as a numpy array; bfloat16 and the 8-bit floats come as their raw bytes and a float64 copy."""
    if hasattr(array, "detach"):  # PyTorch
        import torch
        host = array.detach().cpu().contiguous().reshape(-1)
        raw = host.view(torch.uint8).numpy() if host.dtype != torch.bool else host.numpy()
        values = torch.view_as_real(host).reshape(-1) if host.is_complex() else host
        return raw, values.double().numpy(), tuple(array.shape), str(array.dtype).replace("torch.", "")
    import numpy
    host = numpy.ascontiguousarray(array.get() if hasattr(array, "get") else array)
    flat = host.reshape(-1)
    values = flat.view(flat.real.dtype) if numpy.iscomplexobj(flat) else flat
    return flat, values.astype(numpy.float64), tuple(host.shape), str(host.dtype)


def exact_sum(values):
    """The sum as if computed with unbounded precision, the same on every processor; of large arrays every n-th."""
    step = max(1, len(values) // 100000)
    finite = [v for v in values[::step].tolist() if math.isfinite(v)]
    return math.fsum(finite)


def show(name, array):
    """Prints shape, type, checksum of the raw bytes, and the sum as a hexadecimal and a decimal float."""
    raw, values, shape, dtype = numpy_of(array)
    digest = hashlib.sha256(raw.tobytes()).hexdigest()[:16]
    total = exact_sum(values)
    print(f"{name}: {shape} {dtype} {digest} {total.hex()} ~{total:.6g}", flush=True)


def show_rounded(name, values, digits=4):
    """For results that a library does not repeat bit for bit (atomics, several algorithms): rounded decimals."""
    if hasattr(values, "detach") or hasattr(values, "shape"):
        values = numpy_of(values)[1].tolist()
    print(f"{name}: " + " ".join(f"{float(value):.{digits}g}" for value in values), flush=True)


class DoesNotHold(Exception):
    """A script's own sanity check failed."""


def require(condition, text):
    if not condition:
        raise DoesNotHold(text)


def first_line(error):
    """Without what differs from run to run: folders and addresses."""
    text = str(error).strip().splitlines() or [""]
    return re.sub(r"(?<![\w.])/[\w./-]*/", "", re.sub(r"\b0x[0-9a-fA-F]{6,}", "(address)", text[0]))[:200]


def expect_error(name, kinds, action):
    """Runs what must fail; prints the error's type and its message up to anything that names an address or a size."""
    try:
        action()
    except kinds as error:
        print(f"{name}: {type(error).__name__}: {first_line(error).split('. Tried')[0]}", flush=True)
        return error
    raise DoesNotHold(f"{name}: no error was reported")


def child(name, text, environment=None, timeout_s=90):
    """Runs a script of its own, for what breaks a process: prints its lines and how it ended."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        done = subprocess.run([sys.executable, "-c", text], env=dict(os.environ, **(environment or {})), stdout=output,
                              stderr=errors, timeout=timeout_s, check=False)
        output.seek(0), errors.seek(0)
        done.stdout, done.stderr = output.read().decode(errors="replace"), errors.read().decode(errors="replace")
    for line in done.stdout.splitlines():
        print(line if line.startswith("#") else f"{name}: {line}")
    sys.stderr.write(done.stderr)
    print(f"{name}: exit {done.returncode}", flush=True)
    return done


def run(name, sections):
    """Runs every section, also after one failed, and returns the exit code: 0 only if all held."""
    failed = []
    for section in sections:
        label = section.__name__
        print(f"[{label}]", flush=True)
        started = time.monotonic()
        try:
            section()
        except Exception as error:  # pylint: disable=broad-except
            print(f"{label}: FAILED: {type(error).__name__}: {first_line(error)}", flush=True)
            traceback.print_exc()
            failed.append(label)
        print(f"# {label}: {time.monotonic() - started:.2f} s", flush=True)
    print("[end]")
    print(f"{name}: {'failed: ' + ' '.join(failed) if failed else 'done'}", flush=True)
    return 1 if failed else 0


def selected(sections):
    """The sections that CAUSEWAY_SECTIONS names (A,B), all but those (-A,B), or all without it: how a failure is narrowed
    down, and a long script divided."""
    named = os.environ.get("CAUSEWAY_SECTIONS", "")
    names = named.lstrip("-").replace(",", " ").split()
    return [section for section in sections if not names or (section.__name__ in names) != named.startswith("-")]


def finish(name, sections):
    faulthandler.enable()
    code = run(name, selected(sections))
    sys.exit(code)


def require_torch():
    """PyTorch with a GPU, set to repeat itself bit for bit; skips the script where either is missing."""
    try:
        import torch
    except ImportError as error:
        skip(f"PyTorch is not installed ({first_line(error)})")
    if DEVICE != "cpu" and not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is False", flush=True)
        sys.exit(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(10)
    return torch
