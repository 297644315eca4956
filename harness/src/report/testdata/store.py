#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes a stored run of a recorded one: python3 store.py RUN/run.json [CELL...] > testdata/NAME.json

Nothing is made up: cells are left out (kept are those whose names end in one of CELL), and so are the ends of lists, and what
says on whose machine it was recorded.
"""

import json
import sys

RECORDS = 24
COSTS = 12
WAITS = 6


def name(cell):
    test = cell["id"]["test"]
    if isinstance(test, str):
        return test
    [(kind, parameters)] = test.items()
    return "/".join([cell["id"]["kernel"], kind] + [str(value) for value in parameters.values()])


def trim(cell):
    measurement = cell["measurement"] or {}
    for point in measurement.get("lbr_waste", {}).get("points", []):
        del point["records"][RECORDS:]
    for summary in measurement.get("attach", {}).get("explained", []):
        del summary["functions"][COSTS:]
        del summary["waits"][WAITS:]


run = json.load(open(sys.argv[1]))
if sys.argv[2:]:
    run["cells"] = [cell for cell in run["cells"] if name(cell).endswith(tuple(sys.argv[2:]))]
for cell in run["cells"]:
    trim(cell)
run["host"]["cpu"] = "Example CPU @ 2.00GHz"
run["suite"]["file"] = run["suite"]["file"].rsplit("/", 1)[-1]
command = run["command"]
if "--runs" in command:
    at = command.index("--runs")
    del command[at:at + 2]
run["command"] = [word.rsplit("/", 1)[-1] if word.endswith(".yaml") else word for word in command]
json.dump(run, sys.stdout, indent=1)
print()
