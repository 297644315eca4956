#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes the first inputs of every target from what the repository has recorded: seed.py CORPUS-FOLDER."""

import json
import struct
import sys
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "harness"
OUT = Path(sys.argv[1])

# As in src/trace.rs.
FUNCTIONS = [
    "entry_SYSCALL_64", "sys_probe", "traced", "bpf_trampoline_", "bpf_prog_", "__static_call_return0",
    "bpf_get_branch_snapshot", "intel_pmu_snapshot_branch_stack", "asm_sysvec_", "asm_exc_", "vectors", "fprobe_handler",
]
KINDS = ["call", "ret", "cond", "jump", "ind_call", "ind_jump", "syscall", "sysret", "int", "interrupt", "iret"]
FILE_KINDS = ["cond", "jump", "ind_jump", "call", "ind_call", "ret", "syscall", "sysret", "iret", "int", "interrupt"]
MECHANISMS = ["fentry", "fexit", "kprobe_multi", "kretprobe_multi", "kprobe_session", "tp_btf"]


def seed(target, name, data):
    folder = OUT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def texts(target, *patterns):
    for pattern in patterns:
        # What makes the mails is none.
        for path in sorted(path for path in ROOT.glob(pattern) if path.name != "make.sh"):
            if path.is_file() and path.stat().st_size < 16000:
                seed(target, path.name, path.read_bytes())


def flow(recorded, name):
    """A recorded trace as records among the functions that the target knows; the ones it does not know are `fprobe_handler`."""
    reply = recorded["reply"]
    symbols = sorted(recorded["symbols"], key=lambda symbol: symbol["start"])

    def place(address):
        if address < 1 << 63:
            return 0xFF, address & 0xFF
        holder = [s for s in symbols if s["start"] <= address < s["end"]]
        if not holder:
            return 11, 1
        symbol, offset = holder[-1], address - holder[-1]["start"]
        if symbol["start"] == reply["function"]["start"]:
            function = 2
        else:
            known = [i for i, n in enumerate(FUNCTIONS) if symbol["name"].startswith(n)]
            function = known[0] if known else 11
        return function, min(offset, 255)

    mechanism = reply["mechanism"].replace(".", "_")
    mechanism = MECHANISMS.index(mechanism) if mechanism in MECHANISMS else 0
    out = bytearray([0, mechanism, reply["hits"], 0xFE, 32])
    for record in recorded["records"][:600]:
        source, target, kind = record[0], record[1], record[2]
        instructions = record[3] if len(record) > 3 else 1
        out += bytes([KINDS.index(kind), *place(source), *place(target), min(instructions, 0xEF)])
    seed("trace", name, bytes(out))


def trace_file(recorded, name):
    out = struct.pack("<IIIIQQ", 0, 1, 0, 0, len(recorded["records"]), min(60, len(recorded["records"])))
    for record in recorded["records"][:60]:
        out += struct.pack("<QQBBBBI", record[0], record[1], FILE_KINDS.index(record[2]), 0, 0, 0, 1)
    seed("trace", name, b"F" + out)


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def counts():
    """Postcard, as the plugin writes it."""
    base = 0xFFFF_FFFF_8100_0000
    call = lambda parent, thread, source, to, kind: (
        (b"\0" if parent is None else b"\1" + varint(parent)) + varint(thread) + varint(source) + varint(to) + bytes([kind]) + varint(3)
    )
    threads = [(b"tramplab-agent", 1, 1), (b"", 0, 0)]
    paths = [
        call(None, 0, 0, 0, 0), call(0, 0, base, base + 0x100, 0), call(1, 0, base + 0x110, base + 0x200, 2),
        call(2, 0, base + 0x230, base + 0x300, 0), call(None, 1, 0, 0, 0), call(4, 1, 0, base + 0x100, 1),
    ]
    blocks = [(1, base + 0x108, 3, 9), (3, base + 0x300, 1, 4), (5, base + 0x500, 2, 2), (0, 0, 1, 50)]
    body = b"\1\1" + varint(0) + varint(1) + varint(0)
    body += varint(len(threads)) + b"".join(varint(len(c)) + c + varint(pid) + bytes([m]) for c, pid, m in threads)
    body += varint(len(paths)) + b"".join(paths)
    body += varint(len(blocks)) + b"".join(b"".join(map(varint, block)) for block in blocks) + varint(0)
    seed("counts", "counts", body)


def messages():
    reply = lambda response: {"reply": {"id": 1, "result": {"Ok": response}}}
    phase = {
        "wall_ns": 9, "cpu_ns": 8, "waits": [{"stack": [2**63 + 16, 2**63 + 9], "ns": 5, "count": 1}],
        "samples": {"event": "cpu-clock", "period": 10, "lost": 0, "stacks": [
            {"command": "tramplab-agent", "pid": 1, "measured": True, "stack": [2**63 + 16, 2**63 + 9], "count": 4}]},
        "counters": [{"event": "task-clock", "count": 7}],
    }
    symbol = {"name": "vfs_read", "module": None, "start": 2**63, "end": 2**63 + 64}
    events = {
        "ready": {"ready": {"version": 6, "release": "6.12", "uptime_ns": 5}},
        "heartbeat": {"heartbeat": {"uptime_ns": 5}},
        "output": {"output": {"id": 1, "text": "ok 1 a\n"}},
        "failed": {"reply": {"id": 1, "result": {"Err": {"failed": "\u001b[31mno"}}}},
        "facts": reply({"facts": {
            "release": "6.12", "version": "#1", "machine": "x86_64", "cpus": 1, "memory_kib": 9, "clocksource": "tsc", "btf_bytes": 1,
            "ftrace_functions": 1, "btf_functions": 1, "mitigations": ["a: b"], "cmdline": "x"}}),
        "resolve": reply({"resolve": {"symbols": [symbol, {**symbol, "name": "vfs_write", "module": "m", "start": 2**63 + 64, "end": 2**63 + 80}]}}),
        "explain": reply({"explain": {"rounds": 1, "functions": 1, "links": 1, "attach": phase, "detach": phase}}),
        "attach": reply({"attach": {
            "mechanism": "fentry", "functions": ["a"], "refused": [{"function": "b", "reason": "c"}], "programs": 1, "links": 1,
            "rounds": [{"load_ns": 1, "attach_ns": 2, "detach_ns": 3, "memory_kib": -4}],
            "stopped": {"wanted": 2, "attached": 1, "detached": 1, "seconds": 3}}}),
        "exec": reply({"exec": {"end": {"exited": 0}, "dropped": 0}}),
        "moment": reply({"moment": {"realtime_ns": 1, "random": 2}}),
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
        recorded = json.loads((HARNESS / f"src/branch/testdata/{name}.json").read_text())
        hardware = [{"event": 1, "snapshots": [{"point": "entry", "result": 48, "entries": [[2**63, 2**63 + 8, 0]]}]}]
        pmu = {"depth": 32, "refused": None}
        answer = dict(recorded["reply"], hardware=hardware, pmu=pmu)
        seed("frames", f"waste-{name}", json.dumps(reply({"lbr_waste": answer})).encode())


def profiles():
    node = lambda parent, function, interrupt, own: {
        "parent": parent, "thread": 0, "function": function, "interrupt": interrupt, "own": own, "calls": 0}
    profile = {
        "schema": 1, "cell": "x86_64/6.12/tcg/attach/fentry/1", "phase": "attach", "unit": "samples",
        "sampling": {"event": "cpu-clock", "period": 10, "lost": 0},
        "threads": [{"command": "tramplab-agent", "pid": 1, "measured": True}],
        "functions": [{"name": "a", "space": "kernel"}, {"name": "b", "space": {"module": "bpf"}}, {"name": "[user]", "space": "user"}],
        "nodes": [node(None, 0, False, 3), node(0, 1, False, 4), node(1, 0, True, 1), node(None, 2, False, 9)],
    }
    seed("perf", "profile", json.dumps(profile).encode())
    seed("perf", "tree", bytes([1, 0, 1, 0, 9, 9, 1, 0, 0, 1, 2, 1, 0, 0, 1, 1, 1, 6] + [0, 0, 5, 0, 8, 7, 0, 16, 1, 1, 12, 9] * 5))


for path in sorted((HARNESS / "src/branch/testdata").glob("*.json")):
    recorded = json.loads(path.read_text())
    if "hits" in recorded["reply"]:
        flow(recorded, path.stem)
for name in ["6.12-fexit", "7.2-arm64-fentry"]:
    trace_file(json.loads((HARNESS / f"src/branch/testdata/{name}.json").read_text()), f"file-{name}")
counts()
messages()
profiles()
texts("mbox", "harness/src/series/testdata/*.*", "harness/src/series/testdata/*/*", "harness/tests/bad-series/*.patch", "kernels/patches/*/*.patch")
texts("yaml", "configs/suites/*.yaml", "kernels/*.yaml", "harness/src/report/testdata/*.yaml", "kernels/patches/*/series.yaml")
texts("ktap", "harness/src/selftests/testdata/*", "harness/src/vm/testdata/*.log")
texts("kallsyms", "selftests/guest/tests/kallsyms.txt")
