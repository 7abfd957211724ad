# SPDX-License-Identifier: Apache-2.0
"""Reads the code base as a graph: files, units, folders, and what includes and calls what.

A unit is a header and a source file of one name in one folder. Includes are read from the text; calls from the symbols of
compiled objects, so that a call counts where it is made, whichever header declares it. A call through a pointer or a
virtual function is no edge: such a hook is how a lower folder tells a higher one.
"""
import collections
import pathlib
import re
import subprocess

# What these files define are functions of the C library, where that lacks them or before it: a call of memfd_create() uses
# no folder of ours.
C_LIBRARY = {"guest_lib/old_glibc/newer_functions.cc", "host_backend/worker/slices/noted_ioctl.cc"}

TREES = ("ivshmem_ring", "guest_lib", "host_backend")
SUFFIXES = {".h", ".cc"}
# Which trees' objects a tree's calls may end in. The two sides are never in one program.
LINKED = {"ivshmem_ring": {"ivshmem_ring"}, "guest_lib": {"guest_lib", "ivshmem_ring"},
          "host_backend": {"host_backend", "ivshmem_ring"}}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.DOTALL)
SCOPE = re.compile(r'\b(namespace|class|struct|union|enum)\b[^()]*$|extern\s*"C"\s*$')
OBJECT_FOLDER = re.compile(r"^(.*?)/CMakeFiles/[^/]+\.dir/(.*)\.o$")


def folder_of(name):
    return name.rpartition("/")[0]


def without_comments(text):
    return COMMENT.sub(lambda match: match.group(1) or " ", text)


class Code:
    """The files of the three trees with their text, their includes, and their calls once read_calls was called.

    `moves` maps files to other places, in which they are counted: so a plan can be measured before it is carried out.
    """

    def __init__(self, root, moves=None):
        self.root = pathlib.Path(root)
        self.text = {}
        for tree in TREES:
            for path in sorted((self.root / tree).rglob("*")):
                if path.suffix in SUFFIXES and path.is_file():
                    self.text[str(path.relative_to(self.root))] = path.read_text(encoding="utf-8")
        self.stripped = {name: without_comments(text) for name, text in self.text.items()}
        self.includes = {name: [other for other in INCLUDE.findall(text) if other in self.text and other != name]
                         for name, text in self.text.items()}
        self.place = {name: (moves or {}).get(name, name) for name in self.text}
        self.unit = {name: place.rpartition(".")[0] for name, place in self.place.items()}
        self.units = sorted(set(self.unit.values()))
        self.calls = collections.defaultdict(set)  # (unit, unit) -> names of functions and variables
        self.uncompiled = []
        self._bodies, self._reachable = {}, {}

    def include_edges(self):
        """(unit, unit) -> the headers by which the first includes the second."""
        edges = collections.defaultdict(set)
        for name, others in self.includes.items():
            for other in others:
                if self.unit[name] != self.unit[other]:
                    edges[self.unit[name], self.unit[other]].add(other)
        return edges

    def lines(self, name):
        """Lines of a file: all of them, and those that are neither blank nor comment alone."""
        code = sum(1 for line in self.stripped[name].splitlines() if line.strip())
        return len(self.text[name].splitlines()), code

    def body(self, name):
        if name not in self._bodies:
            self._bodies[name] = bodies(self.stripped[name])
        return self._bodies[name]

    def reachable_headers(self, name):
        if name in self._reachable:
            return self._reachable[name]
        seen, todo = set(), [name]
        while todo:
            for other in self.includes.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        self._reachable[name] = seen
        return seen

    def read_calls(self, build):
        """Fills calls from the objects of a build folder; sources without an object are listed in uncompiled."""
        objects = find_objects(pathlib.Path(build), self.text)
        self.uncompiled = sorted(name for name in self.text if name.endswith(".cc") and name not in objects)
        defined, undefined = read_symbols(objects)
        owners = collections.defaultdict(set)
        for name, symbols in defined.items():
            for symbol in symbols if name not in C_LIBRARY else ():
                owners[symbol].add(name)
        wanted = sorted({symbol for symbols in undefined.values() for symbol in symbols if symbol in owners})
        plain = dict(zip(wanted, demangle(wanted)))
        for name, symbols in undefined.items():
            headers = self.reachable_headers(name)
            for symbol in symbols:
                for owner in self.nearest(name, owners.get(symbol, ())):
                    for caller in self.callers(name, headers, plain[symbol], owner):
                        if caller != self.unit[owner]:
                            self.calls[caller, self.unit[owner]].add(plain[symbol])

    def nearest(self, name, owners):
        """Of the files that define a symbol those that can be in one program with a caller. Two programs may each have a
        function of one name: then it is that of the caller's folder, or of the unit whose header it includes."""
        owners = [owner for owner in owners if owner.split("/")[0] in LINKED[name.split("/")[0]]]
        if len(owners) > 1:
            headers = {self.unit[header] for header in self.reachable_headers(name)}
            near = [owner for owner in owners if self.unit[owner] in headers]
            near = near or [owner for owner in owners if folder_of(self.unit[owner]) == folder_of(self.unit[name])]
            owners = near or owners
        return owners

    def callers(self, name, headers, symbol, owner):
        """The units that make a call which an object contains: that of the source, or, where the source does not name the
        function, those of the headers whose inline functions do and which know the owner's header."""
        word = base_name(symbol)
        named = re.compile(rf"(?<!Op::)\b{re.escape(word)}\b") if word else None
        own = [file for file in (name, name.rpartition(".")[0] + ".h") if file in self.stripped]
        if named is None or any(named.search(self.stripped[file]) for file in own):
            return {self.unit[name]}
        declared = owner.rpartition(".")[0] + ".h"
        known = [header for header in headers if owner.split("/")[0] in LINKED[header.split("/")[0]] and
                 (declared not in self.text or declared in self.reachable_headers(header))]
        inline = {self.unit[header] for header in known if named.search(self.body(header))}
        if not inline and "~" in symbol:  # a destructor is called by what has such a member
            inline = {self.unit[header] for header in known if named.search(self.stripped[header])}
        inline.discard(self.unit[owner])
        return inline or {self.unit[name]}


def bodies(text):
    """What a header's functions and macros hold: its text without declarations, namespaces and classes themselves."""
    out = [line for line in text.splitlines() if line.lstrip().startswith("#define")]
    depth, start, head = 0, 0, 0
    for match in re.finditer(r"[{};]", text):
        char, place = match.group(), match.start()
        if depth == 0 and char == "{" and SCOPE.search(text[head:place]):
            pass
        elif char == "{":
            start = place if depth == 0 else start
            depth += 1
        elif char == "}" and depth > 0:
            depth -= 1
            if depth == 0:
                out.append(text[start:place])
        if depth == 0:
            head = place + 1
    return "\n".join(out)


def base_name(symbol):
    """The identifier by which a source would name a demangled symbol, or None for operators."""
    plain = re.sub(r"\[abi:\w+\]", "", symbol)
    plain = re.sub(r"^(vtable|typeinfo|typeinfo name|VTT|guard variable|TLS \w+ function|construction vtable) for ", "", plain)
    depth, out = 0, []
    plain = plain.replace("(anonymous namespace)", "anonymous")
    if "operator" in plain:
        return None
    for char in plain:
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
        elif char == "(" and depth == 0:
            break
        elif depth == 0:
            out.append(char)
    words = re.findall(r"\w+", "".join(out).rpartition("::")[2])
    return words[-1] if words else None


def find_objects(build, known):
    """source file -> object file, from the folders that CMake makes for each target."""
    objects = {}
    for tree in TREES:
        for path in sorted((build / tree).rglob("*.o")):
            match = OBJECT_FOLDER.match(str(path.relative_to(build)))
            if match and f"{match.group(1)}/{match.group(2)}" in known:
                objects[f"{match.group(1)}/{match.group(2)}"] = path
    if not objects:
        raise SystemExit(f"{build} holds no object of a single source of this tree: build it, without CAUSEWAY_UNITE, or leave --build out.")
    return objects


def read_symbols(objects):
    """Strong definitions and undefined symbols by source file."""
    defined, undefined = collections.defaultdict(set), collections.defaultdict(set)
    by_path = {str(path): name for name, path in objects.items()}
    listing = subprocess.run(["nm", "-A", "-P", *by_path], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        place, _, rest = line.partition(": ")
        symbol, kind = rest.split()[:2]
        name = by_path[place]
        if kind in "TDBRSG":
            defined[name].add(symbol)
        elif kind == "U":
            undefined[name].add(symbol)
    return defined, undefined


def demangle(symbols):
    result = subprocess.run(["c++filt"], input="\n".join(symbols) + "\n", capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def cycles(nodes, edges):
    """The sets of nodes that reach each other (strongly connected, of two or more), largest first."""
    after = collections.defaultdict(list)
    for source, target in edges:
        after[source].append(target)
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for start in nodes:
        if start in index:
            continue
        work = [(start, iter(after[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(after[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = take_component(stack, on_stack, node)
                    if len(members) > 1:
                        found.append(members)
    return sorted(found, key=lambda members: (-len(members), members))


def take_component(stack, on_stack, node):
    members = []
    while True:
        member = stack.pop()
        on_stack.discard(member)
        members.append(member)
        if member == node:
            return sorted(members)
