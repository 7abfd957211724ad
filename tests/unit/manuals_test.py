#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manual pages and the completion of shells against the programs: what --help lists is in both, and nothing else is.

Usage: manuals_test.py MANUALS_DIR PROGRAM_DIR. Prints each difference, and exits 1 when there is any; 77 without man and
mandoc.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MANUALS, PROGRAMS = (pathlib.Path(argument) for argument in sys.argv[1:3])
PAGES = {"causeway": "causeway.1", "causeway-system": "causeway-system.1", "causewayd": "causewayd.8", "causeway-bench": "causeway-bench.1",
         "causeway-tls": "causeway-tls.8"}
# Of programs that nobody calls by hand: they have no options that a page could list.
INNER = ["causeway-launcher.8", "causeway-worker.8", "causeway-container-hook.8"]
if (MANUALS / "causeway-exporter.8").exists():
    PAGES["causeway-exporter"] = "causeway-exporter.8"
problems = []


def expect_same(what, found, wanted):
    for name in sorted(set(wanted) - set(found)):
        problems.append(f"{what} lacks {name}")
    for name in sorted(set(found) - set(wanted)):
        problems.append(f"{what} has {name}, which there is not")


def output_of(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, **more).stdout


def help_of(program, *command):
    """(options, commands) that the program's help lists."""
    text = output_of(PROGRAMS / program, *command, "--help")
    options = set()
    for line in re.findall(r"^  (-\S.*)$", text, re.M):
        names = re.match(r"-[-\w,]+", line)[0].split(",")
        options.update(names)
    _, _, tail = text.partition("\nSubcommands:\n")
    return options, re.findall(r"^  (\w+) ", tail, re.M)


def rendered(page):
    return output_of("mandoc", "-T", "utf8", "-O", "width=200", MANUALS / page)


def plain(text):
    return re.sub(r".\x08", "", text)


def sections(text, indent):
    """Heading to text, of the headings that are indented so far."""
    parts = re.split(rf"^ {{{indent}}}(\S.*)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def options_in(text):
    found = set()
    for line in re.findall(r"^ +(-\S.*)$", text, re.M):
        found.update(re.findall(r"(?:^|, )(-[-\w]+)", line))
    return found


def completed(program, *words):
    script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _causeway; printf "%s\\n" "${COMPREPLY[@]}"'
    # In a guest, causeway-system is the command.
    file = "causeway-guest.bash" if program == "causeway-system" else "causeway.bash"
    return output_of("bash", "--norc", "-c", script, "bash", MANUALS / file, program.removesuffix("-system"), *words).split()


def check_programs():
    for program, page in PAGES.items():
        top = sections(plain(rendered(page)), 0)
        options, commands = help_of(program)
        expect_same(f"{page}, OPTIONS,", options_in(top["OPTIONS"]), options)
        expect_same(f"bash's completion of {program}", [w for w in completed(program, "-") if w[0] == "-"], options)
        if not commands:
            continue
        told = sections(top["COMMANDS"], 3)
        expect_same(f"{page}, COMMANDS,", told, commands)
        expect_same(f"bash's completion of {program}'s commands", [w for w in completed(program, "") if w[0] != "-"], commands)
        for command in commands:
            options, _ = help_of(program, command)
            expect_same(f"bash's completion of {program} {command}", completed(program, command, "-"), options)
            if command != "bench":
                expect_same(f"{page}, {command},", options_in(told[command]), options)


def check_values():
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "a_file").touch()
        (pathlib.Path(folder) / "a_folder").mkdir()
        for words, wanted in [(["xml", "--machine", ""], ["pc", "q35"]),
                              (["trace", "--out", folder + "/"], [folder + "/a_file", folder + "/a_folder"]),
                              (["run", "--guest-library", folder + "/"], [folder + "/a_folder"]),
                              (["bench", "--native", folder + "/a_fi"], [folder + "/a_file"])]:
            expect_same(f"bash's completion of causeway {' '.join(words)}", completed("causeway", *words), wanted)
        expect_same("bash's completion after --", [w for w in completed("causeway", "run", "--", "bas") if w == "bash"], ["bash"])
    if shutil.which("fish"):
        listed = output_of("fish", "-c", f"source {MANUALS / 'causeway.fish'}; complete -C 'causeway status --'")
        expect_same("fish's completion of causeway status", [line.split("\t")[0] for line in listed.splitlines()],
                    [each for each in help_of("causeway", "status")[0] if each.startswith("--")])


def known_keys(table):
    """Those that causewayd says it knows in that table, when it meets one that it does not know."""
    needed = {"[[vm]]": 'name = "a"\nregion_file = "/dev/shm/a"', "[[user]]": "uid = 1", "[[gpu]]": 'uuid = "GPU-00000000-0000-0000-0000-000000000001"', "[tcp]": 'listen = "127.0.0.1:1"',
              "[tls]": 'listen = ["127.0.0.1:1"]', "[[remote]]": 'name = "a"'}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"{table}\nno_such_key = 1\n{needed.get(table, '')}\n")
        file.flush()
        done = subprocess.run([PROGRAMS / "causewayd", "--check", "--config", file.name], capture_output=True, text=True, timeout=60,
                              check=False)
    known = re.search(r"known here are ([\w, ]+)\.", done.stderr)
    if not known:
        problems.append(f"causewayd names no known keys of {table or 'the top'}: {done.stderr.strip()}")
        return []
    return known[1].split(", ")


def check_keys():
    told = {}
    for head, text in sections(plain(rendered("causewayd.toml.5")), 0).items():
        if head.startswith("KEYS"):
            told[head.partition("KEYS OF ")[2]] = re.findall(r"^ +(\w+) = ", text, re.M)
    # The names of the tables are known at the top.
    told[""] += [table.strip("[]") for table in told if table]
    for table, keys in told.items():
        expect_same(f"causewayd.toml(5), {table or 'the top'},", keys, known_keys(table))


def check_format():
    for page in [*PAGES.values(), *INNER, "causewayd.toml.5"]:
        lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", MANUALS / page], capture_output=True, text=True, timeout=60, check=False)
        warnings = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", MANUALS / page], capture_output=True, text=True, timeout=60,
                                  check=False, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANPAGER": "cat", "MANWIDTH": "120"})
        for text in (lint.stdout + lint.stderr, warnings.stderr):
            if text.strip():
                problems.append(f"{page}: {text.strip()}")
        if page.rpartition(".")[0].upper().removesuffix("-SYSTEM") not in warnings.stdout:
            problems.append(f"{page}: man shows nothing")


def main():
    if not shutil.which("man") or not shutil.which("mandoc"):
        print("man and mandoc are missing: vm_configs/install_dependencies.sh installs them.")
        sys.exit(77)
    check_programs()
    check_values()
    check_keys()
    check_format()
    print("\n".join(problems) or f"{len(PAGES) + len(INNER) + 1} pages and the completion say what the programs say.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
