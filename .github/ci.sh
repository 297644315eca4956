#!/usr/bin/env bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# What a CI job does, whichever CI it is: docs/ci.md says how to call it. All input comes in variables of the environment, so
# that nothing a stranger chose (a branch's name, a title) is ever part of a script.
#
#   ci.sh prepare   what a job needs that may be missing: ccache, leave for bubblewrap to confine builds and for guests to use KVM
#   ci.sh keys      names for the caches, as outputs
#   ci.sh plan      how many shards there are, and how many runs are to come, as outputs
#   ci.sh base      the commit that HEAD of the repository TREE is COUNT commits above, as outputs; of 0 commits none
#   ci.sh measure   one shard, or all; ends with the exit code of `cargo xtask vm-test`. With BASE the series BASE..HEAD of the
#                   repository TREE is measured, and a SUITE or CONFIG inside TREE is read from BASE
#   ci.sh merge     all runs below RUNS as one; ends with its exit code
#   ci.sh keep      every run.json below RUNS on the branch `runs` of the repository REMOTE, which is made if it is not there.
#                   With TOKEN git speaks to GitHub as its bearer
#   ci.sh report    the run RUN as annotations in the log and Markdown in the step's summary; ends with 0 whatever it
#                   says, and with 1 if it cannot be read
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=${RUNNER_TEMP:-$PWD}/tramplab
cache=${TRAMPLAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tramplab}

die() {
    [ -z "${GITHUB_ACTIONS:-}" ] || echo "::error title=tramplab::$1"
    echo "error: $1" >&2
    exit 2
}

# This repository's command, or a program of it that is built already.
tramplab() {
    if [ -n "${TRAMPLAB_PROGRAM:-}" ]; then (cd "$here" && "$TRAMPLAB_PROGRAM" "$@"); else (cd "$here" && cargo xtask "$@"); fi
}

output() {
    if [ -n "${GITHUB_OUTPUT:-}" ]; then echo "$1=$2" >>"$GITHUB_OUTPUT"; else echo "$1=$2"; fi
}

# Between the two nothing that a guest or a compiler prints is taken for a command of GitHub's runner.
without_commands() {
    local token code=0
    if [ -z "${GITHUB_ACTIONS:-}" ]; then
        "$@"
        return
    fi
    token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    mkdir -p "$work"
    echo "::stop-commands::$token"
    { "$@" 2>&1 >&3 | tee "$work/stderr" >&2; } 3>&1 || code=$?
    echo "::$token::"
    return "$code"
}

# Why a command left nothing to report, as an annotation: else it stands in the log alone.
annotate() {
    local why
    [ -n "${GITHUB_ACTIONS:-}" ] || return 0
    why=$(sed -n '/^error: /{s///p;q}' "$work/stderr" | tr -d '[:cntrl:]')
    echo "::error title=tramplab::${why//'%'/%25}"
}

sudo_if_needed() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo --non-interactive "$@"; fi
}

prepare() {
    if ! command -v ccache >/dev/null && command -v apt-get >/dev/null; then
        sudo_if_needed apt-get install --yes --no-install-recommends ccache || echo "without ccache kernels are built whole"
    fi
    # Ubuntu keeps user namespaces from programs it has no profile for.
    local restricted=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
    if [ -e "$restricted" ] && [ "$(cat "$restricted")" != 0 ]; then
        sudo_if_needed sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 || echo "builds cannot be confined here"
    fi
    # GitHub's machines have KVM, for root. Elsewhere its permissions are the owner's choice.
    if [ -n "${GITHUB_ACTIONS:-}" ] && [ "${RUNNER_ENVIRONMENT:-}" = github-hosted ] && [ -e /dev/kvm ] && [ ! -w /dev/kvm ]; then
        sudo_if_needed chmod 666 /dev/kvm || echo "guests run without KVM here"
    fi
}

# What is read of a hash is enough to tell things apart.
digest() {
    sha256sum | cut -c 1-16
}

keys() {
    local system kernel arch=${ARCH:-own}
    # A key has no comma.
    arch=${arch//,/+}
    # shellcheck source=/dev/null
    system=$(. /etc/os-release && echo "$ID-$VERSION_ID")-$(uname -m)
    kernel=$(printf '%s' "${KERNEL:-}" | tr -c 'A-Za-z0-9.-' _)-$arch-$(cat "$here"/configs/kconfig/* | digest)
    output cache "$cache"
    output target "$here/target"
    output cargo "tramplab-cargo-$system-$(cat "$here/Cargo.lock" <(cargo --version) | digest)"
    # What is newest at Debian changes: a cache, which is never written twice, is made anew each week.
    output fetched "tramplab-fetched-$system-$arch-$(date -u +%G-%V)-$(cat "$here"/kernels/*.yaml | digest)"
    output fetched-like "tramplab-fetched-$system-$arch-"
    output ccache "tramplab-ccache-$system-$kernel-${BASE:-none}"
    output built "tramplab-built-$system-$kernel-${BASE:-none}-${HEAD:-none}"
    output built-like "tramplab-built-$system-$kernel-${BASE:-none}-"
}

plan() {
    local kernels arches
    [[ "${SHARDS:?}" =~ ^[1-9][0-9]?$ ]] || die "shards is \`$SHARDS\`: expected a number from 1 to 99"
    kernels=$(jq --exit-status 'if type == "array" then length else error end' <<<"${KERNELS:?}") ||
        die "kernels is \`$KERNELS\`: expected a list of names as JSON, such as [\"tree\"]"
    arches=$(jq --exit-status 'if type == "array" then length else error end' <<<"${ARCHES:?}") ||
        die "arches is \`$ARCHES\`: expected a list of names as JSON, such as [\"x86_64\"]"
    output shards "$(jq --null-input --compact-output --argjson of "$SHARDS" '[range($of) + 1 | "\(.)/\($of)"]')"
    output expect "$((kernels * arches * SHARDS))"
}

base() {
    local head base=
    head=$(git -C "${TREE:?}" rev-parse --verify HEAD)
    if [ "${COUNT:?}" != 0 ]; then
        base=$(git -C "$TREE" rev-parse --quiet --verify "HEAD~$COUNT") ||
            die "the commit below the $COUNT of the pull request was not fetched: \`depth\` must be more than $COUNT"
    fi
    output base "$base"
    output head "$head"
}

# The path below TREE of a file that lies there, or nothing. No link in TREE, which a pull request may have made, is followed.
in_tree() {
    local path root
    [ -n "${TREE:-}" ] && [ -d "$TREE" ] || return 0
    path=$(realpath --canonicalize-missing --no-symlinks -- "$1")
    for root in "$(realpath --no-symlinks -- "$TREE")" "$(realpath -- "$TREE")"; do
        if [[ "$path" == "$root"/* ]]; then
            printf '%s' "${path#"$root"/}"
            return
        fi
    done
    [[ "$(realpath --canonicalize-missing -- "$1")" != "$root"/* ]] ||
        die "\`$1\` leads into $TREE by a link: name the file as it is called there"
}

# Mode, type and id of a file of a commit.
object_of() {
    git -C "$TREE" --literal-pathspecs ls-tree --full-tree "$1" -- "$2" | cut -f 1
}

# Reads the file that judges, a suite or a configuration, into `judge`. With BASE one that lies in TREE is the base's: a pull
# request does not choose what it is measured by. That its own differs is said in `notes`.
judge_of() {
    local what=$1 path base head
    judge=$2
    path=$(in_tree "$judge") || {
        echo "$path"
        exit 2
    }
    if [ -z "$path" ] || [ -z "${BASE:-}" ]; then
        judge=$(realpath -e "$judge") || die "the $what \`$2\` is not there: expected $3"
        return
    fi
    base=$(object_of "$BASE" "$path") || die "the base $BASE is not in $TREE: fetch more of its history (\`depth\`)"
    head=$(object_of "${HEAD:?}" "$path") || die "the head $HEAD is not in $TREE: fetch it"
    [[ "$base" == 100[67][45][45]\ blob\ * ]] ||
        die "the $what \`$path\` is no file in the base $BASE, which it is read from: merge it before it is used"
    judge=$work/base/$path
    mkdir -p "$(dirname "$judge")"
    git -C "$TREE" cat-file blob "${base##* }" >"$judge" || die "the $what \`$path\` of the base $BASE cannot be read"
    if [ "$base" != "$head" ]; then
        notes+=(--note "the $what $path is the one of the base ${BASE:0:12}; the head ${HEAD:0:12} has $(
            if [ -z "$head" ]; then echo "none"; else echo "another, which judges nothing here"; fi
        )")
    fi
}

# Nothing else is read from files that a pull request may have changed.
refuse_in_tree() {
    local path
    [ -n "${BASE:-}" ] || return 0
    path=$(cd "$here" && [ -e "${1#*=}" ] && realpath --no-symlinks -- "${1#*=}") || return 0
    path=$(in_tree "$path") || {
        echo "$path"
        exit 2
    }
    [ -z "$path" ] || die "\`$1\` is a file of $TREE, which the series may change: only SUITE and CONFIG are read from the base"
}

# As a string of YAML's.
yaml() {
    printf "'%s'" "${1//\'/\'\'}"
}

# `tree` is the repository TREE at the commit BASE, `tree:clang-19` the same built with another compiler, `tree` without BASE the
# commit HEAD; everything else is what --kernel takes.
kernel_arguments() {
    local toolchain=gcc name=tree tree config=$1
    case "$KERNEL" in
    tree) ;;
    tree:*)
        toolchain=${KERNEL#tree:}
        name=tree-$toolchain
        ;;
    *)
        printf '%s\n' --kernel "$KERNEL"
        return
        ;;
    esac
    [[ "$toolchain" =~ ^[a-z0-9-]+$ ]] || die "\`$KERNEL\`: expected tree, or tree: and a compiler such as clang-19"
    mkdir -p "$work"
    tree=$(realpath -e "${TREE:?}") || die "the repository \`$TREE\` is not there"
    {
        echo 'arch: [x86_64, arm64]'
        echo "git: { repository: $(yaml "$tree"), ref: $(yaml "${BASE:-${HEAD:?}}") }"
        echo "toolchain: $toolchain"
        [ -z "$config" ] || echo "config: [$(yaml "$config")]"
    } >"$work/$name.yaml"
    printf '%s\n' --kernel "$work/$name.yaml"
    [ -z "${BASE:-}" ] || printf '%s\n' --series "$BASE..${HEAD:?}"
}

measure() {
    local arguments=() extra=() part=() notes=() kernel suite=${SUITE:-ci} config= judge word runs code=0 run=
    runs=$(realpath -m "${RUNS:-$work/runs}")
    case "$suite" in
    */* | *.yaml | *.yml)
        judge_of suite "$suite" "a name in configs/suites/, or a file"
        suite=$judge
        ;;
    esac
    if [ -n "${CONFIG:-}" ]; then
        judge_of configuration "$CONFIG" "a file"
        config=$judge
    fi
    arguments=(--suite "$suite" --runs "$runs")
    if [ -n "${KERNEL:-}" ]; then
        refuse_in_tree "$KERNEL"
        kernel=$(kernel_arguments "$config") || {
            echo "$kernel"
            exit 2
        }
        mapfile -t -O "${#arguments[@]}" arguments <<<"$kernel"
    fi
    [ -z "${ARCH:-}" ] || arguments+=(--arch "$ARCH")
    [ "${UNCONFINED:-false}" = true ] || arguments+=(--confined)
    # Of all lines: an end that is none of `-d` is no failure.
    read -r -d '' -a extra <<<"${ARGUMENTS:-}" || true
    for word in "${extra[@]}"; do refuse_in_tree "$word"; done
    # Not the CPU's own records, where guests can have them: budgets and other shards are of virtual ones.
    [[ " ${extra[*]}" == *" --branches"* ]] || arguments+=(--branches virtual)
    arguments+=("${notes[@]}" "${extra[@]}")
    case "${SHARD:-}" in
    '') ;;
    # All kernels are built, QEMU and the agent too: the shards find them in the caches.
    none) part=(--no-run) ;;
    *) part=(--partition "slice:$SHARD") ;;
    esac
    # A run of an earlier call is none of this one's.
    rm -f "$runs/latest"
    without_commands tramplab vm-test --setup "${arguments[@]}" "${part[@]}" || code=$?
    if [ "${SHARD:-}" = none ] && [ "$code" = 3 ]; then
        # A kernel does not build: the report of that is a run. One that passes is none: whatever was in the way is gone, and the
        # shards measure.
        code=0
        without_commands tramplab vm-test "${arguments[@]}" || code=$?
        [ "$code" != 0 ] || rm -f "$runs/latest"
    fi
    [ ! -e "$runs/latest" ] || run=$(realpath "$runs/latest")
    [ "$code" = 0 ] || [ -n "$run" ] || annotate
    output run "$run"
    output code "$code"
    return "$code"
}

merge() {
    local found=() code=0
    [[ "${EXPECT:?}" =~ ^[1-9][0-9]*$ ]] || die "EXPECT is \`$EXPECT\`: expected the number of runs that are to come"
    mapfile -t found < <(find "$(realpath "${RUNS:?}")" -maxdepth 3 -name run.json | sort)
    [ "${#found[@]}" != 0 ] || die "none of $EXPECT runs has come: the jobs that measure did not get as far"
    rm -rf "$work/merged"
    without_commands tramplab merge --expect "$EXPECT" --into "$work/merged" "${found[@]}" || code=$?
    [ ! -e "$work/merged/run.json" ] || output run "$work/merged"
    output code "$code"
    return "$code"
}

keep() {
    local kept=$work/kept found=() file id started
    mapfile -t found < <(find "$(realpath "${RUNS:?}")" -maxdepth 3 -name run.json | sort)
    [ "${#found[@]}" != 0 ] || die "there is no run.json below $RUNS to keep: nothing was measured"
    if [ -n "${TOKEN:-}" ]; then
        # Neither in a file nor on a command line.
        export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=http.https://github.com/.extraheader
        GIT_CONFIG_VALUE_0="AUTHORIZATION: basic $(printf 'x-access-token:%s' "$TOKEN" | base64 --wrap 0)"
        export GIT_CONFIG_VALUE_0
    fi
    rm -rf "$kept"
    if [ -n "$(git ls-remote --heads "${REMOTE:?}" refs/heads/runs)" ]; then
        git clone --quiet --depth 1 --single-branch --branch runs "$REMOTE" "$kept"
    else
        git init --quiet --initial-branch runs "$kept"
        git -C "$kept" remote add origin "$REMOTE"
    fi
    for file in "${found[@]}"; do
        id=$(jq --raw-output .id "$file")
        started=$(jq --raw-output .started "$file")
        [[ "$id" =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ && "$started" =~ ^[0-9]{4}- ]] ||
            die "$file has no id and start of a run: was it written by vm-test?"
        mkdir -p "$kept/${started:0:4}/$id"
        cp "$file" "$kept/${started:0:4}/$id/run.json"
    done
    git -C "$kept" add --all
    # A job that is run again keeps nothing twice.
    git -C "$kept" diff --cached --quiet && return
    git -C "$kept" -c user.name=tramplab -c user.email=tramplab@localhost commit --quiet \
        --message "runs: Keep ${#found[@]} of $(date -u +%F)"
    git -C "$kept" push --quiet origin HEAD:refs/heads/runs
}

report() {
    local code=0
    if [ -z "${RUN:-}" ]; then
        echo "there is no run to report"
        return
    fi
    # The exit code is the run's own, which is no news here, unless there was nothing to read.
    tramplab report "$RUN" --format github || code=$?
    if [ "$code" != 2 ] && [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
        tramplab report "$RUN" --format github-summary --listing >>"$GITHUB_STEP_SUMMARY" || code=$?
    fi
    [ "$code" != 2 ]
}

case "${1:-}" in
prepare | keys | plan | base | measure | merge | keep | report) "$1" ;;
*) die "usage: ci.sh prepare|keys|plan|base|measure|merge|keep|report" ;;
esac
