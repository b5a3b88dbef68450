#!/usr/bin/env bash
# The full check on every software driver that can be had:
#
#     tools/drivers.sh [--quick]
#
# Mesa's lavapipe with vectors of 128, 256, 512 and 1024 bits, which are subgroups of 4, 8 and 16 lanes and none; Chromium's
# SwiftShader; and the lavapipe of a newer Mesa, if target/gpu-compilers/root has one. What is not there is skipped with a
# word, and is an error where CI=true, except for the newer Mesa. --quick runs the quick check; without it, a quick check of
# the forms of the kernels that a driver could run and does not comes after the full one. A driver that takes minutes longer than
# a quiet machine of two cores needs is stopped; PAGED_ATTENTION_PATIENCE=5 gives each five times as long on a busy one.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=()
[ "${1-}" != --quick ] || quick=(--quick)
program=$PWD/target/release/paged-attention
root=${PAGED_ATTENTION_GPU_ROOT:-$PWD/target/gpu-compilers/root}
patience=${PAGED_ATTENTION_PATIENCE:-1}
failed=0
results=

# NAME SECONDS COMMAND...: what it prints is shown at once, for a driver that hangs must be seen to hang.
run() {
    local name=$1 limit=$2 status=0 start=$SECONDS
    shift 2
    printf -- '-- %s\n' "$name"
    timeout --kill-after=10 "$((limit * patience))" "$@" || status=$?
    [ "$status" = 0 ] || failed=1
    results+=$(printf '%-40s exit %3d  %4d s' "$name" "$status" "$((SECONDS - start))")$'\n'
}

# The same, of a program and its arguments, or of a command that ends in them.
check() {
    local name=$1 limit=$2
    shift 2
    run "$name" "$limit" "$@" "${quick[@]}"
    [ -n "${quick[*]}" ] || run "$name, every form" "$limit" "$@" --quick --every-form
}

missing() {
    printf 'skipped %s: %s\n' "$1" "$2" >&2
    [ "${CI:-}" != true ] || failed=1
}

if "$program" devices | grep -qi llvmpipe; then
    for bits in 128 256 512 1024; do
        check "lavapipe, $bits bits" 600 env LP_NATIVE_VECTOR_WIDTH=$bits "$program" check --adapter llvmpipe
    done
else
    missing lavapipe 'no adapter is called llvmpipe; install mesa-vulkan-drivers'
fi

swiftshader=
for folder in /usr/lib/chromium /usr/lib/chromium-browser /opt/google/chrome; do
    [ ! -e "$folder/vk_swiftshader_icd.json" ] || swiftshader=$folder/vk_swiftshader_icd.json
done
if [ -n "$swiftshader" ]; then
    check SwiftShader 300 env VK_DRIVER_FILES="$swiftshader" "$program" check --adapter swiftshader
else
    missing SwiftShader 'it comes with Chromium; tools/setup.sh --browser installs that'
fi

# Only root may enter another root.
if [ -e "$root/usr/share/vulkan/icd.d/lvp_icd.json" ] && [ "$(id -u)" = 0 ]; then
    cp "$program" "$root/tmp/paged-attention"
    check 'lavapipe of a newer Mesa' 600 chroot "$root" env VK_DRIVER_FILES=/usr/share/vulkan/icd.d/lvp_icd.json \
        XDG_RUNTIME_DIR=/tmp MESA_SHADER_CACHE_DIR=/tmp/shader-cache /tmp/paged-attention check
    rm "$root/tmp/paged-attention"
else
    echo "skipped the newer Mesa: $root has none, or this user is not root; make gpu-compilers" >&2
fi

printf '\n%s' "$results"
exit "$failed"
