#!/usr/bin/env bash
# Builds the tools for Windows and runs the quick check under Wine, on Vulkan and on DX12, where Windows' own compiler, FXC,
# compiles the kernels: `make windows`.
#
# It takes Debian on an x86-64, root and a gigabyte more than tools/gpu-compilers/setup.sh, in whose folder Wine 10 and
# Mesa 26 run: Wine 8 lacks a library that every Rust program needs, and on DX12 its kernels write nothing. FXC comes from a
# Python wheel, or from the folder that PAGED_ATTENTION_FXC names; Wine's own crashes on the kernels. The linker,
# gcc-mingw-w64-x86-64, is the one package that the system itself gets. No part of CI.
set -euo pipefail
cd "$(dirname "$0")/.."

root=${PAGED_ATTENTION_GPU_ROOT:?run make windows, which makes the folder that this names}
target=x86_64-pc-windows-gnu
place=$root/windows
mkdir -p "$place"

install() {
    if [ "${PAGED_ATTENTION_NO_INSTALL:-0}" != 0 ]; then
        echo "missing: ${packages[*]}; apt-get install them, or let PAGED_ATTENTION_NO_INSTALL be 0" >&2
        exit 1
    fi
    "$@" apt-get update -q </dev/null >&2
    "$@" apt-get install -y -q --no-install-recommends "${packages[@]}" </dev/null >&2
}

fetch_fxc() {
    local wheels=$place/wheels
    rm -rf "$wheels"
    python3 -m pip download -q --no-deps --only-binary :all: --platform win_amd64 --implementation cp \
        --python-version 3.12 --abi cp312 -d "$wheels" kivy_deps.angle==0.5.0 >&2 &&
        python3 -m zipfile -e "$wheels"/*.whl "$wheels" &&
        mv "$wheels"/*.data/data/share/angle/bin/d3dcompiler_47.dll "$place" || return 1
    rm -rf "$wheels"
}

packages=(gcc-mingw-w64-x86-64)
command -v x86_64-w64-mingw32-gcc >/dev/null || install env
packages=(wine wine64 xvfb xauth)
if ! chroot "$root" sh -c 'command -v wine' >/dev/null; then
    install chroot "$root" env DEBIAN_FRONTEND=noninteractive
fi
if [ -n "${PAGED_ATTENTION_FXC-}" ]; then
    cp "$PAGED_ATTENTION_FXC/d3dcompiler_47.dll" "$place/"
elif [ ! -e "$place/d3dcompiler_47.dll" ]; then
    fetch_fxc || {
        echo 'missing: d3dcompiler_47.dll; let PAGED_ATTENTION_FXC name a folder that has it' >&2
        exit 1
    }
fi
[ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || rustup target add "$target"
cargo build --release --locked --target "$target" -p paged-attention
cp "target/$target/release/paged-attention.exe" "$place/"

# In name spaces of its own, so that nothing of Wine is left behind. The shell is there because an X server tells no first
# process that it is ready.
check() {
    echo "-- $1"
    timeout --signal=KILL 300 unshare --fork --pid --kill-child --mount-proc --root="$root" \
        env -i PATH=/usr/bin:/bin HOME=/windows WINEPREFIX=/windows/prefix WINEDEBUG=-all XDG_RUNTIME_DIR=/tmp \
        WINEDLLOVERRIDES=d3dcompiler_47=n VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.json \
        sh -c 'cd /windows && xvfb-run -a wine paged-attention.exe check --quick --backend "$1"; exit $?' sh "$1"
}

check vulkan
check dx12
