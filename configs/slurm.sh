#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Measure a suite on the nodes of a Slurm cluster:
#
#   slurm.sh SHARDS FOLDER [OPTIONS OF vm-test]
#
# All nodes must see FOLDER, the cache (TRAMPLAB_CACHE) and this script. Waits for the verdict, prints the report, and exits
# with its code. sbatch reads SBATCH_PARTITION, SBATCH_ACCOUNT and its other variables for each job.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The program that TRAMPLAB_PROGRAM names, else this repository's, else the installed one.
tramplab() {
    if [ -n "${TRAMPLAB_PROGRAM:-}" ]; then
        "$TRAMPLAB_PROGRAM" "$@"
    elif [ -e "$here/Cargo.toml" ]; then
        # Not `cargo xtask` in the repository: paths are relative to where the user is.
        cargo run --quiet --manifest-path "$here/harness/cli/Cargo.toml" --bin tramplab -- "$@"
    elif [ -x "$here/../../bin/tramplab" ]; then
        "$here/../../bin/tramplab" "$@"
    else
        command tramplab "$@"
    fi
}

# Kernels are built and fetched once, before the shards need them.
prepare() {
    tramplab vm-test "$@" --no-run
}

measure() {
    local runs=$1/$SLURM_ARRAY_TASK_ID
    shift
    # Slurm starts a shard again whose node died. Its results are kept, and only the rest is measured.
    [ ! -e "$runs/latest/run.json" ] || set -- --rerun "$(realpath "$runs/latest")" "$@"
    tramplab vm-test "$@" --runs "$runs" --partition "slice:$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
}

merge() {
    local found=()
    mapfile -t found < <(find "$2" -mindepth 3 -maxdepth 3 -name run.json | sort)
    [ "${#found[@]}" != 0 ] || { echo "error: no shard left a run in $2; read $2/*.log" >&2 && exit 3; }
    rm -rf "$2/merged"
    local code=0
    tramplab merge --expect "$1" --into "$2/merged" "${found[@]}" || code=$?
    echo "$code" >"$2/code"
}

submit() {
    local shards=$1 folder prepared measured
    mkdir -p "$2"
    folder=$(realpath "$2")
    shift 2
    [ -z "$(find "$folder" -maxdepth 2 -name latest)" ] || { echo "error: $folder has runs already; name a new folder" >&2 && exit 2; }
    prepared=$(job prepare --output "$folder/prepare.log" -- prepare "$@")
    measured=$(job measure --output "$folder/%a.log" --array "1-$shards" --requeue --open-mode append \
        --dependency "afterok:$prepared" --kill-on-invalid-dep yes -- measure "$folder" "$@")
    echo "jobs $prepared, $measured: logs in $folder" >&2
    # Its exit code says whether the job ran; the verdict is in a file.
    job merge --output "$folder/merge.log" --dependency "afterany:$measured" --wait -- merge "$shards" "$folder" >&2 || true
    [ -n "$(find "$folder" -mindepth 3 -maxdepth 3 -name run.json)" ] || cat "$folder/prepare.log" >&2 || true
    [ ! -e "$folder/merge.log" ] || cat "$folder/merge.log"
    [ -e "$folder/code" ] || { echo "error: the shards were not merged; read the logs in $folder" >&2 && return 3; }
    return "$(cat "$folder/code")"
}

# Submits a step of this script. Prints the job's number.
job() {
    local name=$1 options=()
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    sbatch --parsable --job-name "tramplab-$name" "${options[@]}" --wrap "exec bash ${here@Q}/configs/slurm.sh --step ${*@Q}"
}

case "${1:-}:$#" in
--step:*) shift && "$@" ;;
[1-9]*:[2-9] | [1-9]*:[1-9][0-9]*) submit "$@" ;;
*)
    echo "usage: slurm.sh SHARDS FOLDER [OPTIONS OF vm-test]" >&2
    exit 2
    ;;
esac
