#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes a stored run of a recorded one: python3 store.py RUN/run.json [CELL...] > testdata/NAME.json

Nothing is made up: cells are left out (kept are those whose names end in one of CELL), and so are the ends of lists, source
lines, and what says on whose machine it was recorded.
"""

import json
import sys

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
    waste = measurement.get("lbr_waste", {})
    for point in waste.get("points", []):
        # All that any filter's count rests on.
        ends = [{record["from"]["symbol"], record["to"]["symbol"]} for record in point["records"]]
        del point["records"][1 + max(i for i, names in enumerate(ends) if waste["function"]["name"] in names):]
    for summary in measurement.get("attach", {}).get("explained", []):
        del summary["functions"][COSTS:]
        del summary["waits"][WAITS:]


run = json.load(open(sys.argv[1]))
if sys.argv[2:]:
    run["cells"] = [cell for cell in run["cells"] if name(cell).endswith(tuple(sys.argv[2:]))]
for cell in run["cells"]:
    trim(cell)
run.pop("lines", None)
run["host"]["cpu"] = "Example CPU @ 2.00GHz"
run["suite"]["file"] = run["suite"]["file"].rsplit("/", 1)[-1]
command = run["command"]
if "--runs" in command:
    at = command.index("--runs")
    del command[at:at + 2]
run["command"] = [word.rsplit("/", 1)[-1] if word.endswith(".yaml") else word for word in command]
json.dump(run, sys.stdout, indent=1)
print()
