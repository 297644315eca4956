# SPDX-License-Identifier: MIT OR Apache-2.0
"""Stand in for QEMU with the same console and link; tell the lie that the first argument names."""

import json
import mmap
import os
import re
import struct
import sys
import threading
import time
import zlib

lie, line = sys.argv[1], " ".join(sys.argv[2:])
link = int(re.search(r"id=agent,fd=(\d+)", line)[1])
console = int(re.search(r"id=console,path=/dev/fd/(\d+)", line)[1])


# Escape sequences, changes of direction, invisible characters.
HIDDEN = "\x1b[2J\x1b]0;title\x07\u009b\u202e\u200b\U000e0041\n"


def send(payload):
    out = struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    while out:
        out = out[os.write(link, out) :]


def say(event):
    send(json.dumps(event).encode())


def ready(release="6.12"):
    version = int(os.environ["VERSION"])
    say({"ready": {"version": version, "release": release, "uptime_ns": 2**64 - 1}})


def requested():
    size, _ = struct.unpack("<II", os.read(link, 8))
    return json.loads(os.read(link, size))


def answer(response):
    say({"reply": {"id": requested()["id"], "result": response}})


def facts(**more):
    known = dict(
        release="6.12", version="#1", machine="x86_64", cpus=1, memory_kib=1, clocksource="tsc",
        btf_bytes=1, ftrace_functions=1, btf_functions=1, mitigations=[], cmdline="")
    return {"Ok": {"facts": {**known, **more}}}


def tried(action):
    try:
        action()
        return "done"
    except OSError as error:
        return os.strerror(error.errno)


def lies():
    if lie == "announces 4 GiB":
        os.write(link, b"\xff" * 8)
    elif lie == "floods":
        ready()
        # The shortest symbols: a frame that takes much more memory once it is parsed.
        symbols = b",".join([b'{"name":"","module":null,"start":0,"end":0}'] * 375000)
        frame = b'{"reply":{"id":1,"result":{"Ok":{"resolve":{"symbols":[' + symbols + b"]}}}}}"
        while True:
            send(frame)
    elif lie == "begins with a long text":
        say({"output": {"id": 7, "text": "\x1b[2J" * 1000000}})
    elif lie == "has long names":
        ready()
        symbol = {"name": "a" * 4000000, "module": None, "start": 2**63, "end": 2**64 - 1}
        answer({"Ok": {"resolve": {"symbols": [symbol]}}})
    elif lie == "has too many facts":
        ready()
        answer(facts(mitigations=[""] * 4000000))
    elif lie == "answers another":
        ready()
        say({"reply": {"id": 99, "result": {"Ok": "done"}}})
    elif lie == "prints without end":
        while True:
            os.write(console, b"\x1b[31m" * 13000)
    elif lie == "never ends its output":
        ready()
        number = requested()["id"]
        while True:
            say({"output": {"id": number, "text": "ok 1 x\n" * 1000}})
    elif lie == "beats without end":
        ready()
        while True:
            say({"heartbeat": {"uptime_ns": 0}})
    elif lie == "hides its words":
        ready(f"6.12{HIDDEN}")
        os.write(console, f"[    1.0] a line {HIDDEN}of the console\n".encode())
        answer(facts(
            release=f"6.12{HIDDEN}", version=HIDDEN, mitigations=[f"Mitigation: {HIDDEN}"],
            cmdline=HIDDEN, clocksource=f"tsc{HIDDEN}"))
        name, module = f"vfs_read{HIDDEN}", f"ext4{HIDDEN}"
        symbol = {"name": name, "module": module, "start": 2**63, "end": 2**64 - 1}
        answer({"Ok": {"resolve": {"symbols": [symbol]}}})
        answer({"Err": {"failed": f"no {HIDDEN}such thing"}})
    elif lie == "takes what it can":
        file = tried(lambda: os.ftruncate(2, 1 << 40))
        memory = tried(lambda: mmap.mmap(-1, 1 << 38))
        ready(f"{file}, {memory}")
    else:
        sys.exit(f"no such lie: {lie}")
    time.sleep(600)


# Ends by itself if the harness is killed.
threading.Thread(target=lies, daemon=True).start()
time.sleep(120)
