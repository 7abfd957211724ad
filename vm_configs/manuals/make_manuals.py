#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the manual pages and the completion of shells from what the programs themselves say.

Usage: make_manuals.py --version V --out FOLDER --configuration causewayd.toml TABLE_PROGRAM...
Each program prints its options as JSON when it is called with --option-table. A page of this folder has the text that no
program knows, and lines that are replaced: @SYNOPSIS@, @OPTIONS@, @COMMANDS@ from the program of the page's name, @KEYS@ from
the comments of the example of the configuration. Text between "@AFTER command@" and the next such line follows that command.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PAGES = ["causeway.1", "causeway-system.1", "causeway-bench.1", "causewayd.8", "causeway-tls.8", "causeway-launcher.8", "causeway-worker.8",
         "causeway-container-hook.8", "causewayd.toml.5"]  # and that of the exporter, which not every build has


def roff(text):
    """Text as roff takes it: a leading dot or apostrophe is no request, and hyphens are the character that was typed."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def read_table(program):
    return json.loads(subprocess.run([program, "--option-table"], check=True, capture_output=True, text=True).stdout)


def value_of(option):
    """The value's name: of one that names its checks, too ("TEXT:{pc,q35}"), the choices or the name alone."""
    name, _, check = option["value"].partition(":")
    return check.strip("{}").replace(",", "|") if check.startswith("{") else name


def option_head(option):
    if option["positional"]:
        return f".I {roff(option['positional'])}" + (" ..." if option["repeatable"] else "")
    names = ", ".join(option["names"])
    value = value_of(option)
    return f".BR \"{roff(names)}\"" + (f" \" \\fI{roff(value)}\\fP\"" if value else "")


def option_lines(options):
    lines = []
    for option in options:
        text = roff(option["description"]).rstrip(".") + "."
        if option["default"]:
            text += f" The default is {roff(option['default'])}."
        lines += [".TP", option_head(option), text]
    return lines


def synopsis(name, table):
    words = [f".B {roff(name)}"]
    for option in table["options"]:
        if option["positional"] or option["names"] == ["-h", "--help"]:
            continue
        value = value_of(option)
        words.append(f".RB [ {roff(option['names'][-1])}" + (f" \" \\fI{roff(value)}\\fP\"]" if value else " ]"))
    for option in (each for each in table["options"] if each["positional"]):
        words.append(f".I {roff(option['positional'])}" + (" ..." if option["repeatable"] else ""))
    if table["commands"]:
        words.append(".I command\n.RI [ options ]")
    return [".nh", ".ad l", *words, ".ad b", ".hy"]


def command_lines(name, table, after):
    lines = []
    for command in table["commands"]:
        known = command["name"] in after
        lines += [f".SS {roff(command['name'])}", *synopsis(f"{name} {command['name']}", command), ".PP",
                  roff(command["description"]).rstrip(".") + "."]
        if known:
            lines += [".PP", *after.pop(command["name"])]
        lines += option_lines(command["options"])
    if after:
        sys.exit(f"make_manuals.py: {name} has no command {sorted(after)[0]}, of which its page tells.")
    return lines


def read_keys(text):
    """The file's keys: (table, key, value, text), in its order. What follows a # on a key's line tells of the key, and so does a
    line of its own before it. Such a line may have been commented out."""
    table, before, keys = "", "", []
    for line in text.splitlines():
        bare = re.sub(r"^# ?(?=[\[a-z][\w\[]*(\]| =))", "", line)
        if head := re.match(r"\[+(\w+)\]+", bare):
            table, before = head[0], before
            keys.append((table, "", "", before))
            before = ""
        elif key := re.match(r"(\w+) = (\"[^\"]*\"|\[(?:\"[^\"]*\"|[^\"\]])*\]|[^#\s]+)\s*(?:#\s*(.*))?$", bare):
            keys.append((table, key[1], key[2], " ".join(filter(None, [before, key[3]]))))
            before = ""
        elif line.startswith("#"):
            before = " ".join(filter(None, [before, line.lstrip("# ")]))
        else:
            before = ""
    return keys


def key_lines(text):
    lines = [".SH KEYS AT THE TOP"]
    for table, key, value, words in read_keys(text):
        words = words.strip()
        words = words[:1].upper() + words[1:]
        if words and words[-1] not in ".!?":
            words += "."
        if key:
            lines += [".TP", f".BR \"{roff(key)}\" \" = {roff(value).replace(chr(34), chr(34) * 2)}\""]
        else:
            lines += [f".SH KEYS OF {table}"]
        lines += [roff(words)] if words else []
    return lines


def make_page(name, tables, configuration, version):
    program = name.rsplit(".", 1)[0]
    table = tables.get(program)
    lines, after, current = [], {}, None
    for line in (HERE / name).read_text().splitlines():
        if match := re.fullmatch(r"@(?:AFTER (\S+)|END)@", line):
            current = match[1]
            if current:
                after[current] = []
        elif current:
            after[current].append(line)
        else:
            lines.append(line.replace("@VERSION@", version))
    # Commands come before their texts in the page, so they are put in when all texts are known.
    shown = {"causeway-bench": "causeway bench", "causeway-system": "causeway"}.get(program, program)
    makers = {"@SYNOPSIS@": lambda: synopsis(shown, table), "@OPTIONS@": lambda: option_lines(table["options"]),
              "@COMMANDS@": lambda: command_lines(shown, table, after), "@KEYS@": lambda: key_lines(configuration)}
    return "\n".join(out for line in lines for out in (makers[line]() if line in makers else [line])) + "\n"


def completion_words(table):
    return " ".join(name for option in table["options"] for name in option["names"])


def completion_values(where, table):
    """Lines of a shell's case: what may follow the options of one command that take a value."""
    lines = []
    for option in table["options"]:
        if not option["value"] or option["positional"]:
            continue
        name, _, check = option["value"].partition(":")
        kind = "words " + check.strip("{}").replace(",", " ") if check.startswith("{") else \
            {"FILE": "file", "SOCKET": "file", "FOLDER": "folder"}.get(name, "other")
        lines.append(f"    {'|'.join(f'{where}:{each}' for each in option['names'])}) kind='{kind}' ;;")
    return lines


def bash_completion(tables):
    """One function for all programs: which command is meant, then what its option takes, then its options."""
    values, words, places = [], [], []
    commands = {}
    for program, table in tables.items():
        commands[program] = [each["name"] for each in table["commands"]]
        for name, each in [("", table)] + [(each["name"], each) for each in table["commands"]]:
            if program == "causeway" and name == "bench":
                each = tables["causeway-bench"]
            where = f"{program} {name}".strip()
            values += completion_values(f"'{where}'", each)
            own = completion_words(each)
            words.append(f"    '{where}') words='{' '.join([own] + (commands[program] if not name else []))}' ;;")
            kinds = {option["positional"]: "domain" if option["positional"] == "DOMAIN" else "command"
                     for option in each["options"] if option["positional"] in ("DOMAIN", "command")}
            places += [f"    '{where}') kind='{kind}' ;;" for kind in kinds.values()]
    text = (HERE / "completion.bash").read_text()
    parts = {"@VALUES@": values, "@WORDS@": words, "@PLACES@": places,
             "@COMMANDS@": [f"    {program}) commands=' {' '.join(names)} ' ;;" for program, names in commands.items() if names],
             "@PROGRAMS@": ["complete -F _causeway " + " ".join(tables)]}
    return "\n".join(out for line in text.splitlines() for out in parts.get(line.strip(), [line])) + "\n"


def fish_completion(tables):
    lines = ["# SPDX-License-Identifier: Apache-2.0", "# Completion of Causeway's programs, made from their own options."]
    quote = lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    for program, table in tables.items():
        names = " ".join(each["name"] for each in table["commands"])
        for command in [table] + table["commands"]:
            inner = command is not table
            source = tables["causeway-bench"] if inner and command["name"] == "bench" else command
            condition = f" -n '__fish_seen_subcommand_from {command['name']}'" if inner else \
                (f" -n 'not __fish_seen_subcommand_from {names}'" if names else "")
            if inner:
                lines.append(f"complete -c {program} -n 'not __fish_seen_subcommand_from {names}' -f -a {command['name']} "
                             f"-d {quote(command['description'])}")
            for option in source["options"]:
                if option["positional"]:
                    continue
                flags = "".join(f" -l {n[2:]}" if n.startswith("--") else f" -s {n[1:]}" for n in option["names"])
                kind = option["value"].partition(":")
                value = "" if not option["value"] else \
                    f" -x -a {quote(kind[2].strip('{}').replace(',', ' '))}" if kind[2].startswith("{") else \
                    " -r" if kind[0] in ("FILE", "FOLDER", "SOCKET") else " -x"
                lines.append(f"complete -c {program}{condition}{flags}{value} -d {quote(option['description'])}")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    for name in ("--version", "--out", "--configuration"):
        parser.add_argument(name, required=True)
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()
    tables = {pathlib.Path(program).name: read_table(program) for program in options.programs}
    # On a host, the command becomes that program for some of its own commands.
    elsewhere = {each["name"]: each for each in tables["causeway-system"]["commands"]}
    tables["causeway"]["commands"] = [elsewhere.get(each["name"], each) for each in tables["causeway"]["commands"]]
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    configuration = pathlib.Path(options.configuration).read_text()
    for page in PAGES + (["causeway-exporter.8"] if "causeway-exporter" in tables else []):
        (out / page).write_text(make_page(page, tables, configuration, options.version))
    for name, completed in [("causeway", {key: table for key, table in tables.items() if key != "causeway-system"}),
                            ("causeway-guest", {"causeway": tables["causeway-system"]})]:
        (out / f"{name}.bash").write_text(bash_completion(completed))
        (out / f"{name}.fish").write_text(fish_completion(completed))


if __name__ == "__main__":
    main()
