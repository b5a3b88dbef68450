#!/usr/bin/env bash
# Compiles library, tools and the tools' tests for other systems, without linking them: no SDK is needed.
#
#     tools/targets.sh [TARGET...]
#
# The standard library of a target comes from rustup, or is built from rust-src. Where neither is to be had, the target is
# skipped with a word on a user's machine, and is an error where CI=true. PAGED_ATTENTION_NO_INSTALL=1 downloads nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- x86_64-pc-windows-gnu aarch64-apple-darwin aarch64-unknown-linux-gnu
sysroot=$(rustc --print sysroot)

# Sets `std` to the options of cargo with which the target's standard library is found.
find_std() {
    std=()
    [ -d "$sysroot/lib/rustlib/$1/lib" ] && return 0
    if [ "${PAGED_ATTENTION_NO_INSTALL:-0}" = 0 ] && command -v rustup >/dev/null; then
        rustup target add "$1" && return 0
    fi
    # A compiler of the stable channel builds its own library only with this word, and only from its own sources.
    export RUSTC_BOOTSTRAP=1
    std=(-Zbuild-std)
    [ -d "$sysroot/lib/rustlib/src/rust/library/std" ]
}

for target in "$@"; do
    SECONDS=0
    if ! find_std "$target"; then
        echo "skipped $target: neither its standard library nor rust-src is there; rustup target add $target" >&2
        [ "${CI:-}" != true ] || exit 1
        continue
    fi
    # The library's own tests need a benchmark harness with a C part, and so a C compiler of the target. --release finds
    # what the other checks have built for this machine.
    RUSTFLAGS="-D warnings" cargo check --release --locked --quiet --target "$target" "${std[@]}" -p paged-attention --all-targets
    printf '%s: compiles (%d s)\n' "$target" "$SECONDS"
done
