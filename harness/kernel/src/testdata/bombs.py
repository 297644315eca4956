# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes archives of a few MiB that unpack to far more, into the current folder."""

import gzip
import lzma
import os
import subprocess
import tarfile
import zlib


def member(name, size, kind=tarfile.REGTYPE, pax=None):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.pax_headers = size, kind, pax or {}
    return info.tobuf(tarfile.PAX_FORMAT)


def packed_again(path, bytes, times):
    """A gzip file of the same bytes again and again, packed once."""
    with open(path, "wb") as out:
        out.write(gzip.compress(bytes) * times)


# Zeros: a GiB in a MiB.
packed_again("long.tar.gz", member("linux/a", 32 << 20) + bytes(32 << 20), 32)

# A million members: a thousand names of empty files, a thousand times.
packed_again("files.tar.gz", b"".join(member(f"linux/{n}", 0) for n in range(1000)), 1000)

# A file of 1 TiB, all of it a hole.
sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "linux/hole",
          "GNU.sparse.realsize": str(1 << 40)}
table = b"1\n%d\n0\n" % (1 << 40)
with gzip.open("sparse.tar.gz", "wb") as out:
    out.write(member("linux/hole", 512, pax=sparse) + table.ljust(512, b"\0") + bytes(1024))

# A stream whose dictionary has 2 GiB.
filters = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
packed = bytearray(lzma.compress(member("linux/a", 0) + bytes(1024), filters=filters))
# The block's header: its length, flags, filter 0x21 with one property, the size of the dictionary.
assert packed[14] == 0x21 and packed[15] == 1
packed[16] = 38
header = packed[12:12 + (packed[12] + 1) * 4]
header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
packed[12:12 + len(header)] = header
with open("dictionary.tar.xz", "wb") as out:
    out.write(packed)

# A file of 900 GiB in tar's own format: tar only warns that it cannot make the hole.
with open("hole", "wb") as hole:
    os.truncate(hole.fileno(), 900 << 30)
subprocess.run(["tar", "-czSf", "hole.tar.gz", "hole"], check=True)
os.remove("hole")
