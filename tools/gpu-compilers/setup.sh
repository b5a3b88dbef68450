#!/bin/sh
# A folder with Mesa's GPU drivers and devices for them that are not there, then the command it was given:
#
#     tools/gpu-compilers/setup.sh [COMMAND [ARGUMENT...]]
#
# It takes Debian, root, and about two minutes and a gigabyte for target/gpu-compilers/root, or where
# PAGED_ATTENTION_GPU_ROOT says. The system itself stays as it is. Without Debian or root nothing is run, which is
# no failure unless PAGED_ATTENTION_REQUIRE_COMPILERS=1.
set -eu

cd "$(dirname "$0")/../.."
here=tools/gpu-compilers
root=${PAGED_ATTENTION_GPU_ROOT:-$PWD/target/gpu-compilers/root}
release=trixie
# The folder is made anew when this changes, and when the library for Intel does.
contents="4 $release $(cksum <$here/fake_i915.c)"

say() {
    printf 'gpu-compilers: %s\n' "$*" >&2
}

# What is missing keeps the command from being run.
skip() {
    if [ "${PAGED_ATTENTION_REQUIRE_COMPILERS:-0}" != 0 ]; then
        say "$*"
        exit 1
    fi
    say "skipped: $*"
    exit 0
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# The mirror that this system's apt takes Debian from.
find_mirror() {
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -m1 -E '/debian/?$'
}

inside() {
    chroot "$root" /usr/bin/env DEBIAN_FRONTEND=noninteractive "$@" </dev/null >&2
}

# Microsoft's compiler as a library for Linux: no package of Debian has it, but this wheel.
fetch_dxc() {
    [ "$(uname -m)" = x86_64 ] && have python3 || return 1
    wheels=$root/tmp/wheels
    python3 -m pip download -q --no-deps --only-binary :all: --implementation cp --python-version 3.11 --abi cp311 \
        --platform manylinux_2_28_x86_64 -d "$wheels" compushady-lrtu==0.18.0 >&2 &&
        python3 -m zipfile -e "$wheels"/*.whl "$wheels" &&
        mv "$wheels/compushady/backends/libdxcompiler_x86_64.so" "$root/usr/lib/libdxcompiler.so" || return 1
    rm -rf "$wheels"
}

[ "$(uname -s)" = Linux ] && have apt-get || skip "the compilers come from Debian's packages; this system has no apt-get"
[ "$(id -u)" -eq 0 ] || skip 'debootstrap and chroot take root; run this as root'
have debootstrap || apt-get install -y -q --no-install-recommends debootstrap </dev/null >&2 ||
    skip 'debootstrap is missing and could not be installed; apt-get install debootstrap'
have cc || skip 'a C compiler is missing; apt-get install gcc libc6-dev'

if [ "$(cat "$root/.contents" 2>/dev/null)" != "$contents" ]; then
    say "making $root"
    mirror=$(find_mirror) || skip "apt here takes nothing from a mirror of Debian; add one to its sources"
    if [ ! -e "$root/usr/bin/apt-get" ] || [ -e "$root/debootstrap" ]; then
        rm -rf "$root"
        mkdir -p "$root"
        debootstrap --variant=minbase "$release" "$root" "$mirror" >&2 ||
            skip "debootstrap could not get Debian $release from $mirror; see above"
    fi
    # Backports have a Mesa that is a year younger, and the libraries that stand for devices.
    printf 'deb %s %s main\n' "$mirror" "$release" "$mirror" "$release-backports" >"$root/etc/apt/sources.list"
    [ ! -e /etc/resolv.conf ] || cp /etc/resolv.conf "$root/etc/"
    inside apt-get update -q || skip "$mirror cannot be reached; see above"
    inside apt-get install -y -q --no-install-recommends -t "$release-backports" \
        mesa-vulkan-drivers mesa-drm-shim libvulkan1 libdrm-dev spirv-tools || skip 'a package could not be installed; see above'
    cc -shared -fPIC -O1 -Wall -I "$root/usr/include/libdrm" -o "$root/usr/lib/fake_i915.so" $here/fake_i915.c -ldl ||
        skip "$here/fake_i915.c could not be compiled; see above"
    mkdir -p "$root/gpu"
    for node in card0 renderD128; do
        truncate -s 32G "$root/gpu/$node"
    done
    fetch_dxc || say 'left out: DXC, which a Python wheel has; it takes python3, pip and an x86-64'
    rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists"
    mkdir -p "$root/var/cache/apt/archives/partial" "$root/var/lib/apt/lists/partial"
    printf '%s\n' "$contents" >"$root/.contents"
fi

[ $# -gt 0 ] || exit 0
export PAGED_ATTENTION_GPU_ROOT="$root"
if [ -z "${DXCOMPILER-}" ] && [ -e "$root/usr/lib/libdxcompiler.so" ]; then
    export DXCOMPILER="$root/usr/lib/libdxcompiler.so"
fi
exec "$@"
