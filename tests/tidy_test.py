#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the tree as a whole: entries, include rule, sizes, licence lines, wording, links, named files, repeated lines and
formatting.

Usage: tidy_test.py [ROOT]. Prints one line for each violation and exits 1 when there is any.
"""

import json
import pathlib
import re
import subprocess
import sys

import repeated_lines

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

TOP_LEVEL = {
    "CMakeLists.txt", "CMakePresets.json", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", "docs",
    "guest_lib", "host_backend", "ivshmem_ring", "kernel_module", "tests", "tools", "vm_configs",
}

# Which other folders a folder's files may include from; its own is always allowed. tests/ may include all.
MAY_INCLUDE = {
    "guest_lib": {"ivshmem_ring"},
    "host_backend": {"ivshmem_ring"},
    "ivshmem_ring": set(),
    "kernel_module": set(),
    "tools": {"host_backend", "ivshmem_ring"},
}
# The same between the parts of host_backend, each with all its folders. The worker is the one that a hostile guest reaches; it knows nothing of the daemon.
HOST_MAY_INCLUDE = {"worker": {"common", "granted", "sandbox"}, "common": set(), "sandbox": {"common"}, "granted": {"common"},
                    "launcher": {"common", "sandbox"}, "daemon": {"common", "granted", "launcher", "sandbox"}, "command": {"common"},
                    "tls": {"common", "daemon"}}
# The module's interface to user space is plain C, made to be included by those who call the module.
SHARED_HEADER = re.compile(r"^kernel_module/\w*uapi\.h$")

CPP = {".cc", ".cpp", ".cu", ".h", ".c", ".def"}
CODE = CPP | {".py", ".sh", ".cmake"}

# Absolute paths below folders that belong to one machine or one person.
ABSOLUTE_PATH = re.compile(r"(?<![\w.)\]}>*/~$@%-])/(home|root|Users|work|workspace|builds?|src)/[A-Za-z][\w.-]*")
FORBIDDEN = [
    (re.compile(r"\b(TODO|FIXME|XXX)\b"), "unfinished work is refused with an error, not marked in a comment"),
    (re.compile(r"\b[Ii]ssue #?\d"), "a tracker's numbers mean nothing to a reader of the tree"),
    (re.compile(r"/tmp/[a-z]+-?build|/tmp/build"), "a path of one machine"),
    (re.compile(r"[ \t]+$"), "trailing blanks"),
    (re.compile(r"^(<<<<<<<|>>>>>>>) "), "a merge was left unfinished"),
]


# A file of the tree that a comment or a document names. Includes are the compiler's to check.
NAMED_FILE = re.compile(r"(?<![\w./-])((?:guest_lib|host_backend|ivshmem_ring|kernel_module|tests|tools|vm_configs|docs)/"
                        r"[\w./-]*\w\.(?:h|cc|cu|c|py|sh|md|def|cmake|toml|txt|svg))\b")
# These tell of files that were, or make up some.
NAME_OTHER_FILES = re.compile(r"CHANGELOG\.md|tests/(structure\w*|repeated_lines_test|tidy_rules_test)\.py")
# A test that waits has a bound, and so has the benchmark. These files give it to all loops of yields.
YIELD = re.compile(r"\b(this_thread::yield|sched_yield|pthread_yield)\b")
MAY_YIELD = {"tests/yield_until.h", "tests/tidy_test.py", "tests/tidy_rules_test.py", "tools/bench/probe/probe_time.cc",
             "tools/bench/remote/bare_socket.cc"}
# A loop that only waits: between two looks it pauses, or it does nothing and looks at what another thread writes. What bounds
# it stands in its condition: a clock, a count, or a peer whose death ends it.
PAUSE = (r"(?:(?:std::)?(?:this_thread::)?(?:yield|sleep_for|sleep_until)|sched_yield|usleep|nanosleep|SleepMs|_mm_pause)"
         r"\([^;]*\)\s*;")
CONDITION = r"(?:[^(){};]|\((?:[^(){};]|\((?:[^(){};]|\([^(){};]*\))*\))*\))*"
WAITING_LOOP = re.compile(rf"(?<!\}} )\bwhile \(({CONDITION})\)\s*(?:{PAUSE}|\{{\s*{PAUSE}\s*\}}|(;|continue\s*;|\{{\s*\}}))")
LOOK = re.compile(r"\bload\(|\bLoadAcquire\(|volatile|^!?\*\w+")
BOUND = re.compile(r"\b(now|Now|NowMs|NowUs|Over|kill)\(|\+\+|--")
MAY_SPIN = re.compile(r"tests/(bench|programs|software_gpu)/.*")  # what measures how long it takes; what is no test


class Report:
    """Collects the violations; each is one line with its place."""

    def __init__(self):
        self.count = 0

    def add(self, place, text):
        self.count += 1
        print(f"{place}: {text}")


UNITED_NAME = re.compile(r"(?P<constant>constexpr |const )|(?:struct|class|enum class|union) (?P<type>\w+)(?: [:{].*)?$")
# The sources that CMakeLists.txt leaves out of that (SKIP_UNITY_BUILD_INCLUSION).
NEVER_UNITED = {"proc_address.cc"}


def tree_files(root):
    """Every file that git tracks or would track; all files when the tree is no checkout."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, check=False)
    if listing.returncode == 0:
        names = sorted({name for name in listing.stdout.decode().split("\0") if name})
    else:
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not is_hidden_or_build(path, root))
    return [name for name in names if (root / name).is_file()]


def is_hidden_or_build(path, root):
    first = path.relative_to(root).parts[0]
    return first.startswith(".git") or first.startswith("build")


def read_text(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def check_top_level(names, report):
    for entry in sorted({name.split("/")[0] for name in names}):
        if entry not in TOP_LEVEL and not entry.startswith("."):
            report.add(entry, "is not one of the top-level entries of this project")


def check_includes(name, text, report):
    folder = name.split("/")[0]
    if folder not in MAY_INCLUDE:
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if not match:
            continue
        target = match.group(1)
        other = target.split("/")[0]
        known = other in MAY_INCLUDE or other == "tests"
        if ".." in target.split("/"):
            report.add(f"{name}:{number}", f'"{target}": include paths start at the root of the tree')
        if folder == other == "host_backend":
            part, other_part = (path.split("/")[1] if path.count("/") > 1 else "" for path in (name, target))
            if part != other_part and other_part not in HOST_MAY_INCLUDE.get(part, ()):
                report.add(f"{name}:{number}", f"{folder}/{part} must not include from {target}")
        if not known or other == folder or other in MAY_INCLUDE[folder] or SHARED_HEADER.match(target):
            continue
        report.add(f"{name}:{number}", f"{folder} must not include from {other} ({target})")


def is_code(name):
    path = pathlib.PurePath(name)
    return path.suffix in CODE or path.name == "CMakeLists.txt" or name.startswith(".ci/")


def check_text(name, text, report):
    lines = text.splitlines()
    if is_code(name):
        if len(lines) > MAX_FILE_LINES:
            report.add(name, f"has {len(lines)} lines; the limit is {MAX_FILE_LINES}")
        if text and not text.endswith("\n"):
            report.add(name, "does not end with a newline")
    suffix = pathlib.PurePath(name).suffix
    if suffix in CPP | {".py", ".sh"}:
        licence = "GPL-2.0" if name.startswith("kernel_module/") else "Apache-2.0"
        wanted = f"SPDX-License-Identifier: {licence}"
        if not any(wanted in line for line in lines[:3]):
            report.add(name, f"has no '{wanted}' in its first three lines")
    if name in ("tests/tidy_test.py", "LICENSE"):
        return
    for number, line in enumerate(lines, 1):
        for pattern, reason in FORBIDDEN:
            if pattern.search(line):
                report.add(f"{name}:{number}", f"{reason}: {line.strip()[:80]}")
        for match in ABSOLUTE_PATH.finditer(line):
            report.add(f"{name}:{number}", f"a path of one machine: {match.group(0)}...")


# recv without room for descriptors closes those of a stranger in the calling thread, and such a close may take hours. recvmsg has it
# (worker_fd.h). The second asks the kernel, not a peer.
RECEIVE = re.compile(r"(?<![\w.>])(::)?(recv|recvfrom|recvmsg)\(")
MAY_RECEIVE = {"host_backend/daemon/loop/worker_fd.cc", "host_backend/daemon/scopes/tcp_peer.cc"}


def united_names(text):
    """The constants and types of a source's unnamed namespaces, each with the namespace around it: sources of a folder share these
    names where they are compiled together (CAUSEWAY_UNITE)."""
    inside, around = False, ""
    for line in text.splitlines():
        if line == "namespace {":
            inside = True
        elif line == "}  // namespace":
            inside = False
        elif opened := re.match(r"namespace ([\w:]+) {", line):
            around = opened[1]
        elif inside and (found := UNITED_NAME.match(line)):
            given = re.findall(r"\b(k[A-Z]\w*)\s*(?:\[.*?\]\s*)?[={]", line) if found["constant"] else [found["type"]]
            yield from ((around, each) for each in given)


def check_united(root, names, report):
    """Sources of a folder are compiled together by the first command and under sanitizers, and not in other builds."""
    first = {}
    for name in names:
        path = pathlib.PurePath(name)
        if path.suffix != ".cc" or path.parts[0] not in MAY_INCLUDE or path.name in NEVER_UNITED:
            continue
        for given in united_names(read_text(root / name) or ""):
            other = first.setdefault((path.parent, given), name)
            if other != name:
                report.add(name, f"{given[1]} is a name of {other} too: sources of a folder are compiled together (CAUSEWAY_UNITE)")


def check_receives(name, text, report):
    """The daemon receives by ReceiveFromStranger alone."""
    if not name.startswith("host_backend/daemon/") or name in MAY_RECEIVE:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if RECEIVE.search(line):
            report.add(f"{name}:{number}", "the daemon receives by ReceiveFromStranger (host_backend/daemon/loop/worker_fd.h)")


def check_waits(name, text, report):
    """Loops without a bound in tests and in the benchmark: what never comes shall end them."""
    if name.split("/")[0] not in ("tests", "tools") or pathlib.PurePath(name).suffix not in CPP:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if name not in MAY_YIELD and YIELD.search(line):
            report.add(f"{name}:{number}", "a loop of yields in a test has a bound: use tests/yield_until.h")
    for loop in WAITING_LOOP.finditer(text):
        condition, nothing = loop.groups()
        if BOUND.search(condition) or MAY_SPIN.fullmatch(name) or (nothing and not LOOK.search(condition)):
            continue
        if not YIELD.search(loop.group(0)):
            report.add(f"{name}:{text.count(chr(10), 0, loop.end(1)) + 1}",
                       f"a loop that only waits has a bound (tests/yield_until.h): {condition.strip()[:60]}")


def anchors_of(text):
    """What a link can name behind #: the headings, as the usual forges spell them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


def check_links(root, names, report):
    """Links between the documents lead to a file that exists, and to a heading that it has."""
    texts = {name: read_text(root / name) or "" for name in names if name.endswith(".md")}
    for name, text in texts.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
            if re.match(r"\w+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = ((root / name).parent / path).resolve() if path else root / name
            other = str(file.relative_to(root)) if file.is_relative_to(root) else ""
            if not file.exists():
                report.add(name, f"the link to {target} leads nowhere")
            elif anchor and other in texts and anchor not in anchors_of(texts[other]):
                report.add(name, f"{other} has no heading for the link to {target}")


def check_named_files(name, text, known, report):
    if NAME_OTHER_FILES.fullmatch(name):
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#include"):
            continue
        for path in NAMED_FILE.findall(line):
            if path not in known:
                report.add(f"{name}:{number}", f"there is no {path}")


def run_tool(command, root, report):
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        report.add(command[0], "is not installed: run vm_configs/install_dependencies.sh")
        return None


def check_functions(root, names, report):
    sources = [name for name in names if pathlib.PurePath(name).suffix in {".cc", ".cpp", ".cu", ".h", ".c", ".py", ".sh"}]
    command = ["ctags", "--output-format=json", "--fields=+ne", "--langmap=C++:+.cu.h", "--kinds-C++=f", "--kinds-C=f",
               "--kinds-Python=fm", "--kinds-Sh=f", "-f", "-"]
    result = run_tool(command + sources, root, report)
    if result is None:
        return
    if result.returncode != 0 or '"_type": "tag"' not in result.stdout:
        report.add("ctags", f"found no function (universal-ctags with JSON is needed): {result.stderr.strip()[:200]}")
        return
    for line in result.stdout.splitlines():
        tag = json.loads(line)
        if "end" in tag and tag["end"] - tag["line"] + 1 > MAX_FUNCTION_LINES:
            length = tag["end"] - tag["line"] + 1
            report.add(f"{tag['path']}:{tag['line']}",
                       f"{tag['name']} has {length} lines; the limit is {MAX_FUNCTION_LINES}")


def start_format(root, names):
    """clang-format takes as long as all other checks together, and runs beside them. None where it is not installed."""
    # The kernel module follows the kernel's style and is checked only where it brings a .clang-format of its own.
    own_style = (root / "kernel_module/.clang-format").exists()
    sources = [
        name for name in names if pathlib.PurePath(name).suffix in CPP - {".def"}
        and (own_style or not name.startswith("kernel_module/"))
    ]
    try:
        return subprocess.Popen(["clang-format", "--dry-run", "--Werror"] + sources, cwd=root, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        return None


def check_format(formatter, report):
    if formatter is None:
        report.add("clang-format", "is not installed: run vm_configs/install_dependencies.sh")
        return
    _, said = formatter.communicate()
    if formatter.returncode == 0:
        return
    wrong = sorted({line.split(":")[0] for line in said.splitlines() if "error:" in line})
    for name in wrong or ["clang-format"]:
        report.add(name, "is not formatted: run clang-format -i on it" if wrong else said.strip()[:200])


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    report = Report()
    names = tree_files(root)
    formatter = start_format(root, names)
    check_top_level(names, report)
    known = set(names)
    for name in names:
        text = read_text(root / name)
        if text is None:
            continue
        check_includes(name, text, report)
        check_text(name, text, report)
        check_waits(name, text, report)
        check_receives(name, text, report)
        check_named_files(name, text, known, report)
    check_links(root, names, report)
    check_united(root, names, report)
    repeated_lines.check(root, names, report.add)
    check_functions(root, names, report)
    check_format(formatter, report)
    print(f"tidy: {len(names)} files, {report.count} violations")
    return 1 if report.count or not names else 0


if __name__ == "__main__":
    sys.exit(main())
