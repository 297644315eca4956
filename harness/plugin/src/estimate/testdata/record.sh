#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Record aligned.txt and crossing.txt: Cachegrind's numbers of walk.c, then lackey's trace.
# Recorded with gcc 12.2.0 and valgrind 3.19.0 on x86-64. Needs gawk, which reads hexadecimals.
#
# An access is lackey's letter, the size, and the distance of the address from the expected one: an
# instruction is expected behind the last one, data where the last data of the same letter was. All
# numbers are hexadecimal. `I3` is the next instruction, of 3 bytes; `L8-40` loads 8 bytes, 64 below
# the last load.
set -euo pipefail
cd "$(dirname "$0")"

dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
# The arguments and the environment move the stack: both tools get the same.
run() { env -i PATH="$PATH" valgrind -q "$@" "$dir/walk"; }

record() {
    gcc -O1 -static -nostdlib -no-pie "${@:2}" -o "$dir/walk" walk.c
    {
        for caches in "--I1=1024,2,64 --D1=1024,2,64 --LL=8192,4,64" \
            "--I1=32768,8,64 --D1=32768,8,64 --LL=1048576,16,64"; do
            # shellcheck disable=SC2086
            run --tool=cachegrind --cache-sim=yes $caches --cachegrind-out-file="$dir/out"
            grep -E '^(desc|events|summary):' "$dir/out"
        done
        run --tool=lackey --basic-counts=no --trace-mem=yes --log-fd=1 | gawk -F '[ ,]+' '
            function put(token) {
                if (length(line token) > 100) { print line; line = "" }
                line = line token
            }
            {
                letter = $1 == "" ? $2 : $1
                address = strtonum("0x" $(NF - 1))
                distance = address - expected[letter]
                expected[letter] = letter == "I" ? address + $NF : address
                token = letter sprintf("%x", $NF)
                if (distance > 0) token = token sprintf("+%x", distance)
                if (distance < 0) token = token sprintf("-%x", -distance)
                put(token)
            }
            END { print line }'
    } >"$1"
}

record aligned.txt
record crossing.txt -DCROSSING
