#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the corpus of the worker's fuzzers from what real clients say. To be run again when the wire changes.

Example: ninja -C build recording_worker && tests/fuzz/record_corpus.py --build build --out build/recorded
The conformance programs and the CUDA programs run through Causeway on the software GPU, with a worker that writes its
sessions down (recording_transport.cc). Each session is cut into scripts (script.h): for every operation, some of the
messages that were answered with success, and before them all that they rely on: the messages that made their handles,
addresses, memory and blobs. tests/fuzz/run.sh --minimise then keeps what reaches more.
The recordings lie beside the worker, in WORKER.raw; --cut-only takes those that are there already.
"""

import argparse
import collections
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time

HEADER = struct.Struct("<IHHQQQQII")  # RecordHeader, PostedHeader
HEAD = struct.Struct("<HHBBHHHIQQQ")  # script.h MessageHead
RECORDED = struct.Struct("<IIII")
POSTED, REQUEST, REPLY = range(3)
KINDS, MOST_INDEX = 25, 1 << 22
WINDOW, HOST_MEMORY = 0x2000_0000_0000, 0x4000_0000_0000
PLACE_MARK = 0x5107a0
MOST_MESSAGES, MOST_BYTES = 90, 90 << 10
A_PROGRAM_S = 120
MOST_OF_A_SESSION = 4000


def op_numbers(root):
    """Operations by name, in the order of calls.def, as Op numbers them."""
    names = re.findall(r"^OPERATION\((\w+)", (root / "ivshmem_ring/operations.def").read_text(), re.M)
    numbers = {name: number for number, name in enumerate(names)}
    number = 32
    for include in re.findall(r'#include "(ivshmem_ring/calls/\w+\.def)"', (root / "ivshmem_ring/calls.def").read_text()):
        for name in re.findall(r"^(?:CALL|GUEST|CUSTOM)\((\w+)", (root / include).read_text(), re.M):
            number += 1
            numbers[name] = number
    return numbers


class Message:
    def __init__(self, kind, channel, record, bulk):
        _, self.op, self.flags, self.sequence, self.context, first, second, third, fourth = HEADER.unpack_from(record)
        if kind == POSTED:
            self.stream, self.event, self.thread, self.bulk_bytes = first, second, third, 0
        else:
            self.main_sequence, self.bulk_bytes, self.result = first, third, fourth
            self.stream, self.event, self.thread = 0, 0, 0
        self.kind, self.channel, self.body, self.bulk = kind, channel, bytearray(record[HEADER.size:]), bytearray(bulk)
        self.reply = None  # of a request: its record
        self.needs = set()  # messages, by their place in the session
        self.likes = set()  # the same, where there is room
        self.makes_place = 0


def read_raw(path):
    """The requests and posted messages of a session in order, as far as they are looked at."""
    data, at, messages = path.read_bytes(), 0, []
    waiting = collections.defaultdict(collections.deque)
    while at + RECORDED.size <= len(data) and len(messages) < MOST_OF_A_SESSION:
        kind, channel, record_bytes, bulk_bytes = RECORDED.unpack_from(data, at)
        at += RECORDED.size
        record, bulk = data[at:at + record_bytes], data[at + record_bytes:at + record_bytes + bulk_bytes]
        at += record_bytes + bulk_bytes
        if len(record) < HEADER.size:
            break
        message = Message(kind, channel, record, bulk)
        if kind == REPLY:
            if waiting[channel]:
                waiting[channel].popleft().reply = message
        else:
            if kind == REQUEST:
                waiting[channel].append(message)
            messages.append(message)
    return as_executed(messages)


def as_executed(messages):
    """A channel's thread takes a request before it waits for what was posted ahead of it, and so do the recordings."""
    posted = collections.deque(message for message in messages if message.kind == POSTED)
    executed, count = [], 0
    for message in messages:
        due = message.main_sequence if message.kind == REQUEST else message.sequence + 1
        while posted and count < due:
            executed.append(posted.popleft())
            count += 1
        if message.kind == REQUEST:
            executed.append(message)
    return executed


def is_handle(word):
    kind, index = word >> 56, word & 0xffffffff
    return 1 <= kind < KINDS and index < MOST_INDEX


# Eight bytes that may be a handle, or an address, wherever they stand in a message.
HANDLE_AT = re.compile(rb"(?=(..[\x00-\x3f]\x00...[\x01-\x18]))", re.S)
ADDRESS_AT = re.compile(rb"(?=(....(?:[^\x00].|\x00[^\x00])\x00\x00))", re.S)


def words(data, pattern):
    return [(found.start(), int.from_bytes(found.group(1), "little")) for found in pattern.finditer(bytes(data))]


def whole_words(data):
    return [(at, int.from_bytes(data[at:at + 8], "little")) for at in range(0, min(len(data), 256) - 7, 8)]


class Session:
    """What each message relies on, with the addresses of that run taken out."""

    def __init__(self, messages, ops):
        self.messages, self.ops = messages, ops
        self.name = {number: name for name, number in ops.items()}
        self.move_addresses()
        self.find_needs()

    def move_addresses(self):
        """The window and registered memory go where the fuzzers' processes have nothing."""
        moved, next_host = [], HOST_MEMORY
        for message in self.messages:
            name = self.name.get(message.op, "")
            if name == "kAgreeOnAddresses" and len(message.body) >= 8:
                window = struct.unpack_from("<Q", message.body)[0]
                if window:
                    moved.append((window, window + (64 << 30), WINDOW))
            if name == "kRegisterHost" and len(message.body) >= 16:
                address, size = struct.unpack_from("<QQ", message.body)
                if not any(begin <= address < end for begin, end, _ in moved):
                    moved.append((address & ~0xfff, (address + size + 0xfff) & ~0xfff, next_host))
                    next_host += 1 << 30
            for data in (message.body,) if moved else ():
                for at, word in words(data, ADDRESS_AT):
                    for begin, end, to in moved:
                        if begin <= word < end:
                            data[at:at + 8] = (word - begin + to).to_bytes(8, "little")
                            break

    def find_needs(self):
        made, used, values, blobs, arenas, always = {}, {}, {}, collections.defaultdict(list), [], []
        places = {}
        for index, message in enumerate(self.messages):
            name = self.name.get(message.op, "")
            named = [message.context]
            if message.kind == POSTED:
                named += [message.stream, message.event]
            named += [word for data in (message.body, message.bulk[:512])
                      for _, word in words(data, HANDLE_AT) if is_handle(word)]
            for handle in named:
                if not is_handle(handle):
                    continue
                if handle in made:
                    message.needs.add(made[handle])
                    # Nodes and the like come alive by what was done with their owner: the latest few of those.
                    message.likes.update(used[handle][-2:])
                    used[handle].append(index)
                else:
                    made[handle], used[handle] = index, []
            # Addresses that the host has chosen.
            skip = -1
            for at, word in words(message.body, ADDRESS_AT):
                near = [one for block in (word >> 24, (word >> 24) - 1) for one in values.get(block, ())
                        if one[0] <= word < one[0] + (1 << 24)]
                if at < skip or not near:
                    continue
                value, maker, which = max(near, key=lambda one: (one[1], one[0]))
                message.needs.add(maker)
                if maker not in places and len(places) < 30:
                    places[maker] = 1 + 8 * len(places)
                if maker in places:
                    place = PLACE_MARK << 40 | (places[maker] + which) << 32 | (word - value)
                    message.body[at:at + 8] = place.to_bytes(8, "little")
                skip = at + 8
            if name in ("kOpen", "kAgreeOnAddresses"):
                always.append(index)
            if name == "kAddArena":
                arenas.append((index, *struct.unpack_from("<QQ", message.body)))
            if name in ("kAddArena", "kDropArena", "kRegisterHost", "kUnregisterHost"):
                message.needs.update(always)
            # The GPU calls the guest by words of its slot, which are registered with the first arena.
            if arenas and re.search("HostNode|HostFunc|AddNode|GraphInstantiate|GraphExecUpdate|GraphExecNode", name):
                message.needs.add(arenas[0][0])
            offsets = words(message.body, ADDRESS_AT) + [(at, word) for at, word in whole_words(message.body)] if arenas else []
            for begin, offset, size in arenas:
                if any(offset <= (word - WINDOW if word >= WINDOW else word) < offset + size
                       for _, word in offsets):
                    message.needs.add(begin)
            if name in ("kBeginBlob", "kAppendBlob"):
                message.needs.update(blobs[message.channel][-1:] if name == "kAppendBlob" else [])
                blobs[message.channel].append(index)
            elif message.kind == REQUEST:
                message.needs.update(blobs.pop(message.channel, []))
            if message.reply is not None and message.reply.result == 0:
                for which, at in enumerate(range(0, min(len(message.reply.body), 64) - 7, 8)):
                    word = int.from_bytes(message.reply.body[at:at + 8], "little")
                    if word >> 32 != 0 and word >> 48 == 0:
                        values.setdefault(word >> 24, []).append((word, index, which))
        for maker, place in places.items():
            self.messages[maker].makes_place = place

    def closure(self, index, likes):
        wanted, queue = set(), [index]
        while queue:
            one = queue.pop()
            if one not in wanted:
                wanted.add(one)
                queue.extend(self.messages[one].needs)
                queue.extend(self.messages[one].likes if likes else ())
        return wanted

    def script(self, index):
        """The message and all that it relies on; None where that is too much."""
        wanted = self.closure(index, True)
        if len(wanted) > MOST_MESSAGES:
            wanted = self.closure(index, False)
            for like in sorted(self.messages[index].likes, reverse=True):
                more = wanted | self.closure(like, False)
                wanted = more if len(more) <= MOST_MESSAGES else wanted
        if len(wanted) > MOST_MESSAGES:
            return None
        channels, parts = {}, [struct.pack("<QBB6x", index, 0, 255)]
        for one in sorted(wanted):
            message = self.messages[one]
            posted = message.kind == POSTED
            link = 0 if posted else 1 + channels.setdefault(message.channel, len(channels)) % 2
            parts.append(HEAD.pack(message.op, message.flags, link, message.makes_place, message.thread & 0xff,
                                   len(message.body), len(message.bulk), message.bulk_bytes, message.context,
                                   message.stream, message.event))
            parts += [bytes(message.body), bytes(message.bulk)]
        data = b"".join(parts)
        return data if len(data) <= MOST_BYTES else None


def cut(raw, out, ops, each):
    """Scripts of all sessions; returns how many there are, and which operations they end with."""
    count, of_op = 0, collections.Counter()
    for path in sorted(raw.glob("*.raw")):
        messages = read_raw(path)
        if not messages:
            continue
        session, here = Session(messages, ops), collections.Counter()
        for index, message in enumerate(messages):
            good = message.kind == POSTED or (message.reply is not None and message.reply.result == 0)
            key = (message.op, good)
            if of_op[key] >= each or here[key] >= max(1, each // 4):
                continue
            data = session.script(index)
            if data is None:
                continue
            here[key] += 1
            of_op[key] += 1
            name = session.name.get(message.op, str(message.op))
            (out / f"{name}-{path.stem}-{index}").write_bytes(data)
            count += 1
    return count, {op for op, _ in of_op}


def bodies(script, ops, wanted):
    """Heads and bodies of a script's messages of one operation."""
    at, found = 16, []
    while at + HEAD.size <= len(script):
        head = HEAD.unpack_from(script, at)
        at += HEAD.size
        if head[0] == ops[wanted]:
            found.append((head, script[at:at + head[5]]))
        at += head[5] + head[6]
    return found


def derive(out, ops):
    """Messages that the software GPU answers with an error, and the fuzzers' fake driver does not: appended to what has
    made their handles. Returns how many."""
    count = 0

    def append(script, name, like, body):
        nonlocal count
        head = (ops[name], *like[1:5], len(body), 0, 0, *like[8:])
        (out / f"{name}-{count}").write_bytes(script + HEAD.pack(*head) + body)
        count += 1

    for path in sorted(out.glob("cuMipmappedArrayGetLevel-*")):
        script = path.read_bytes()
        head, body = bodies(script, ops, "cuMipmappedArrayGetLevel")[-1]
        level = int.from_bytes(body[:8], "little")
        append(script, "cuArrayGetPlane", head, struct.pack("<QQI", level + 64, level, 0))
    for path in sorted(out.glob("cuModuleGetFunction-*")):
        script = path.read_bytes()
        head, body = bodies(script, ops, "cuModuleGetFunction")[-1]
        for _, texture in bodies(script, ops, "cuModuleGetTexRef"):
            if texture[8:16] == body[:8]:
                append(script, "cuParamSetTexRef", head, body[8:16] + struct.pack("<i", -1) + texture[:8])
    return count


def record(build, worker, raw, only):
    """Runs every program once through a daemon of its own."""
    programs = sorted(path for path in (build / "driver_tests").iterdir() if os.access(path, os.X_OK) and path.is_file())
    listed = build / "programs" / "programs.txt"
    programs += [build / "programs" / name for name in (listed.read_text().split() if listed.exists() else [])]
    with tempfile.TemporaryDirectory(prefix="causeway-record-") as folder:
        config = pathlib.Path(folder, "config.toml")
        config.write_text(f'socket = "{folder}/socket"\nworker = "{worker}"\nspare_workers = 1\n'
                          f'driver_library = "{build}/software_gpu/libcuda.so.1"\nlocal_region_mib = 256\n'
                          f'nvml_library = "{build}/software_gpu/libnvidia-ml.so.1"\n')
        with open(raw / "daemon.log", "w", encoding="utf-8") as log:
            # A confined worker may write no file: its sandbox reports here and forbids nothing.
            daemon = subprocess.Popen([build / "host_backend/causewayd", "--config", config], stdout=log, stderr=log,
                                      env=dict(os.environ, CAUSEWAY_SANDBOX="report"))
        try:
            for _ in range(200):
                if "accepts sessions at" in (raw / "daemon.log").read_text(encoding="utf-8"):
                    break
                time.sleep(0.1)
            for program in programs:
                if only and not any(word in program.name for word in only):
                    continue
                guest = dict(os.environ, CAUSEWAY=f"local:{folder}/socket", LD_LIBRARY_PATH=str(build / "guest_lib"))
                begin, end = time.monotonic(), "ended"
                try:
                    end = subprocess.run([program], env=guest, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         timeout=A_PROGRAM_S, check=False, cwd=program.parent).returncode
                except (subprocess.TimeoutExpired, OSError) as error:
                    end = type(error).__name__
                print(f"{program.name}: {end}, {time.monotonic() - begin:.1f} s", flush=True)
        finally:
            daemon.terminate()
            daemon.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--worker", type=pathlib.Path, help="recording_worker; default: of the build")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--cut-only", action="store_true")
    parser.add_argument("--each", type=int, default=12, help="scripts that end with one operation")
    parser.add_argument("--only", nargs="*", default=[], help="programs whose name has one of these words")
    options = parser.parse_args()
    build = options.build.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    worker = (options.worker or build / "tests/fuzz/recording_worker").resolve()
    raw = worker.with_name(worker.name + ".raw")
    raw.mkdir(exist_ok=True)
    if not options.cut_only:
        record(build, worker, raw, options.only)
    ops = op_numbers(pathlib.Path(__file__).resolve().parents[2])
    count, reached = cut(raw, options.out, ops, options.each)
    count += derive(options.out, ops)
    missing = sorted(name for name, number in ops.items() if number not in reached)
    print(f"{count} scripts; {len(reached)} of {len(ops)} operations; not asked for by any program: {' '.join(missing)}")
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())
