#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Write the seeds of every fuzz target, made from data recorded in the repository.

Usage: seed.py FOLDER

Writes FOLDER/TARGET/SEED. A reader accepts each seed; harness/cli/tests/corpora.rs checks it.
"""

import json
import struct
import sys
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "harness/analysis/src/branch/testdata"
OUT = Path(sys.argv[1])
# Bytes. libFuzzer is run with shorter inputs, and cuts longer ones.
LONGEST_TEXT = 16000

# In the order of src/trace.rs.
FUNCTIONS = [
    "entry_SYSCALL_64", "sys_probe", "traced", "bpf_trampoline_", "bpf_prog_",
    "__static_call_return0", "bpf_get_branch_snapshot", "intel_pmu_snapshot_branch_stack",
    "asm_sysvec_", "asm_exc_", "vectors", "fprobe_handler", "__switch_to_asm",
]
TRACED, PROGRAM, OTHER = 2, 4, 11
FAR = 224
KINDS = [
    "call", "ret", "cond", "jump", "ind_call", "ind_jump", "syscall", "sysret", "int", "interrupt",
    "iret",
]
MECHANISMS = ["fentry", "fexit", "kprobe.multi", "kretprobe.multi", "kprobe.session", "tp_btf"]
# In the order of the numbers in the plugin's file.
FILE_KINDS = [
    "cond", "jump", "ind_jump", "call", "ind_call", "ret", "syscall", "sysret", "iret", "int",
    "interrupt",
]


def seed(target, name, data):
    folder = OUT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def files(*patterns):
    """The files that match, in order. A pattern without a match is stale, and an error."""
    for pattern in patterns:
        found = [path for path in sorted(ROOT.glob(pattern)) if path.is_file()]
        if not found:
            sys.exit(f"error: no file matches {pattern}; correct it in {__file__}")
        yield from found


def texts(target, *patterns, without=()):
    for path in files(*patterns):
        is_seed = not any(word in path.name for word in without)
        if is_seed and path.stat().st_size < LONGEST_TEXT:
            seed(target, path.name, path.read_bytes())


def series(name, pattern):
    """The patches of a series as one mailbox."""
    mails = [path.read_bytes() for path in files(pattern)]
    mails = [mail.partition(b"\n")[2] if mail.startswith(b"From ") else mail for mail in mails]
    seed("mbox", name, b"\n".join(b"From 0000 Mon Sep 17 00:00:00 2001\n" + m for m in mails))


def flow(recorded, name):
    """A recorded trace as records among the functions of src/trace.rs."""
    reply = recorded["reply"]
    records = recorded["records"]
    # Longer ones exceed libFuzzer's -max_len.
    if reply["mechanism"] not in MECHANISMS or len(records) > 600:
        return
    symbols = sorted(recorded["symbols"], key=lambda symbol: symbol["start"])
    addresses = sorted({address for record in records for address in record[:2]})

    def function(symbol):
        if symbol["start"] == reply["function"]["start"]:
            return TRACED
        known = [i for i, n in enumerate(FUNCTIONS) if symbol["name"].startswith(n)]
        number = known[0] if known else OTHER
        # The reply to a trigger names its program; other programs run beside it.
        is_another = "program" in reply and symbol["name"] != reply["program"]["name"]
        return OTHER if number == PROGRAM and is_another else number

    def place(address):
        if address < 1 << 63:
            return 0xFF, address & 0xFF
        holder = [s for s in symbols if s["start"] <= address < s["end"]]
        if not holder:
            return OTHER, 1
        # One byte holds the offset. Far addresses are numbered, so that their order stays.
        start, end = holder[-1]["start"], holder[-1]["end"]
        offset = address - start
        if offset >= FAR:
            offset = min(FAR + [a for a in addresses if start + FAR <= a < end].index(address), 255)
        return function(holder[-1]), offset

    out = bytearray([0, MECHANISMS.index(reply["mechanism"]), reply["hits"], 0xFE, 32])
    for record in records:
        source, target, kind = record[0], record[1], record[2]
        instructions = record[3] if len(record) > 3 else 1
        number = KINDS.index(kind)
        out += bytes([number, *place(source), *place(target), min(instructions, 0xEF)])
    seed("trace", name, bytes(out))


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def trace_file(recorded, name):
    records = recorded["records"][:60]
    out = bytes([0, 1, 0]) + varint(len(recorded["records"])) + varint(len(records))
    for source, target, kind in (record[:3] for record in records):
        out += varint(source) + varint(target) + bytes([FILE_KINDS.index(kind), 1, 0])
    seed("trace", name, b"F" + out)


def counts():
    """The plugin's file of counts without its header and checksum, in postcard."""
    base = 0xFFFF_FFFF_8100_0000

    def call(parent, thread, source, to, kind):
        above = b"\0" if parent is None else b"\1" + varint(parent)
        return above + varint(thread) + varint(source) + varint(to) + bytes([kind]) + varint(3)

    threads = [(b"tramplab-agent", 1, 1), (b"", 0, 0)]
    paths = [
        call(None, 0, 0, 0, 0), call(0, 0, base, base + 0x100, 0),
        call(1, 0, base + 0x110, base + 0x200, 2), call(2, 0, base + 0x230, base + 0x300, 0),
        call(None, 1, 0, 0, 0), call(4, 1, 0, base + 0x100, 1),
    ]
    # Path, address, executions, instructions. The first two are blocks of one function.
    blocks = [
        (1, base + 0x108, 3, 9), (1, base + 0x118, 2, 4), (3, base + 0x300, 1, 4),
        (5, base + 0x500, 2, 2), (0, 0, 1, 50)]
    body = b"\1\1" + varint(0) + varint(1) + varint(0)
    body += varint(len(threads))
    body += b"".join(varint(len(c)) + c + varint(pid) + bytes([m]) for c, pid, m in threads)
    body += varint(len(paths)) + b"".join(paths)
    body += varint(len(blocks)) + b"".join(b"".join(map(varint, block)) for block in blocks)
    # Of each block the number of its events, then event and times: none are counted, or some.
    some = varint(len(blocks)) + varint(2) + varint(0) + varint(7) + varint(8) + varint(9)
    some += varint(0) * (len(blocks) - 1)
    for name, events in [("counts", varint(0)), ("events", some)]:
        seed("counts", name, body + events + varint(0))


def reply(response):
    return {"reply": {"id": 1, "result": {"Ok": response}}}


def messages():
    stack = [2**63 + 16, 2**63 + 9]
    sampled = {
        "command": "tramplab-agent", "pid": 1, "measured": True, "stack": stack, "count": 4}
    phase = {
        "wall_ns": 9, "cpu_ns": 8, "waits": [{"stack": stack, "ns": 5, "count": 1}],
        "samples": {"event": "cpu-clock", "period": 10, "lost": 0, "stacks": [sampled]},
        "counters": [{"event": "task-clock", "count": 7}],
    }
    symbol = {"name": "vfs_read", "module": None, "start": 2**63, "end": 2**63 + 64}
    other = {"name": "vfs_write", "module": "m", "start": 2**63 + 64, "end": 2**63 + 80}
    events = {
        "ready": {"ready": {"version": 6, "release": "6.12", "uptime_ns": 5}},
        "heartbeat": {"heartbeat": {"uptime_ns": 5}},
        "output": {"output": {"id": 1, "text": "ok 1 a\n"}},
        "failed": {"reply": {"id": 1, "result": {"Err": {"failed": "\u001b[31mno"}}}},
        "facts": reply({"facts": {
            "release": "6.12", "version": "#1", "machine": "x86_64", "cpus": 1, "memory_kib": 9,
            "clocksource": "tsc", "btf_bytes": 1, "ftrace_functions": 1, "btf_functions": 1,
            "mitigations": ["a: b"], "cmdline": "x"}}),
        "resolve": reply({"resolve": {"symbols": [symbol, other]}}),
        "explain": reply({"explain": {
            "rounds": 1, "functions": 1, "links": 1, "attach": phase, "detach": phase}}),
        "attach": reply({"attach": {
            "mechanism": "fentry", "functions": ["a"],
            "refused": [{"function": "b", "reason": "c"}], "programs": 1, "links": 1,
            "rounds": [{"load_ns": 1, "attach_ns": 2, "detach_ns": 3, "memory_kib": -4}],
            "stopped": {"wanted": 2, "attached": 1, "detached": 1, "seconds": 3}}}),
        "exec": reply({"exec": {"end": {"exited": 0}, "dropped": 0}}),
        "done": reply("done"),
        "request": {"id": 1, "command": {"resolve": {"addresses": [2**63]}}},
        "inject": {"id": 1, "command": {"inject": "panic"}},
        "orders": ["facts", "release"],
    }
    stream = b""
    for name, event in events.items():
        payload = json.dumps(event, separators=(",", ":")).encode()
        seed("frames", name, payload)
        stream += struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    seed("frames", "stream", stream[:600])
    for name in ["6.12-fentry", "7.2-fsession"]:
        entries = [[2**63, 2**63 + 8, 0]]
        snapshots = [{"point": "entry", "result": 48, "entries": entries}]
        answer = json.loads((TRACES / f"{name}.json").read_text())["reply"]
        answer["hardware"] = [{"branch_sample_type": 1, "snapshots": snapshots}]
        answer["pmu"] = {"depth": 32, "refused": None}
        seed("frames", f"waste-{name}", json.dumps(reply({"lbr_waste": answer})).encode())


def profiles():
    def node(parent, function, interrupt, own):
        return {"parent": parent, "thread": 0, "function": function, "interrupt": interrupt,
                "own": own, "calls": 0}

    profile = {
        "schema": 1, "cell": "x86_64/6.12/tcg/attach/fentry/1", "phase": "attach",
        "unit": "samples", "sampling": {"event": "cpu-clock", "period": 10, "lost": 0},
        "threads": [{"command": "tramplab-agent", "pid": 1, "measured": True}],
        "functions": [
            {"name": "a", "space": "kernel"}, {"name": "b", "space": {"module": "bpf"}},
            {"name": "[user]", "space": "user"}],
        "nodes": [
            node(None, 0, False, 3), node(0, 1, False, 4), node(1, 0, True, 1),
            node(None, 2, False, 9)],
    }
    seed("perf", "profile", json.dumps(profile).encode())
    head = [1, 0, 1, 0, 9, 9, 1, 0, 0, 1, 2, 1, 0, 0, 1, 1, 1, 6]
    seed("perf", "tree", bytes(head + [0, 0, 5, 0, 8, 7, 0, 16, 1, 1, 12, 9] * 5))


for path in files("harness/analysis/src/branch/testdata/*.json"):
    recorded = json.loads(path.read_text())
    # Two traces have a trampoline without a symbol, which `flow` cannot place.
    if "hits" in recorded["reply"] and not path.stem.startswith("6.12-trigger-k"):
        flow(recorded, path.stem)
for name in ["6.12-fexit", "7.2-arm64-fentry"]:
    trace_file(json.loads((TRACES / f"{name}.json").read_text()), f"file-{name}")
counts()
messages()
profiles()
MAILS = "harness/kernel/src/series/testdata"
texts("mbox", f"{MAILS}/*.patch", f"{MAILS}/*.diff", f"{MAILS}/*.eml", f"{MAILS}/*.mbox",
      f"{MAILS}/quilt/series", f"{MAILS}/b4/*.mbx", f"{MAILS}/*/makefile.patch")
series("format-patch", f"{MAILS}/format-patch/*")
for folder in [*ROOT.glob("kernels/patches/*/"), ROOT / "harness/cli/tests/bad-series"]:
    series(folder.name, f"{folder.relative_to(ROOT)}/*.patch")
texts("yaml", "configs/suites/*.yaml", "kernels/*.yaml", "harness/testdata/*.yaml")
# No reader accepts anything on the console of a kernel that stays healthy.
texts("ktap", "harness/suite/src/tree_tests/testdata/*", "harness/kernel/src/tree_tests/testdata/*",
      "harness/vm/src/testdata/*.log", without=["lives", "process", "dumps"])
texts("kallsyms", "selftests/guest/tests/kallsyms.txt")
for path in files("harness/suite/src/program/testdata/*.o"):
    seed("object", path.stem, path.read_bytes())
