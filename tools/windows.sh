#!/usr/bin/env bash
# Builds the tools for Windows and runs the quick check under Wine, on Vulkan and on DX12. What is missing is said, and then
# nothing is done: this is no part of CI. On Debian: apt-get install wine64 gcc-mingw-w64-x86-64 xvfb xauth.
#
# DX12 needs Microsoft's d3dcompiler_47.dll: name its folder by PAGED_ATTENTION_FXC. Wine's own crashes on the kernels.
set -euo pipefail
cd "$(dirname "$0")/.."

target=x86_64-pc-windows-gnu
wine=$(command -v wine || command -v wine64 || true)
for tool in x86_64-w64-mingw32-gcc:gcc-mingw-w64-x86-64 "${wine:-wine}:wine64" xvfb-run:xvfb; do
    command -v "${tool%%:*}" >/dev/null || { echo "missing: ${tool%%:*}; apt-get install ${tool##*:}" >&2; missing=yes; }
done
[ -z "${missing-}" ] || exit 1
[ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || rustup target add "$target"

cargo build --release --locked --target "$target" -p paged-attention
folder=target/$target/release
export WINEPREFIX=${WINEPREFIX:-$PWD/target/wine} WINEDEBUG=${WINEDEBUG:--all}
check() {
    echo "-- $1"
    timeout --kill-after=10 500 xvfb-run -a "$wine" "$folder/paged-attention.exe" check --quick --backend "$1"
}

check vulkan
if [ -n "${PAGED_ATTENTION_FXC-}" ]; then
    cp "$PAGED_ATTENTION_FXC/d3dcompiler_47.dll" "$folder/"
    WINEDLLOVERRIDES=d3dcompiler_47=n check dx12
else
    echo 'skipped dx12: PAGED_ATTENTION_FXC names no folder with d3dcompiler_47.dll' >&2
fi
