#!/bin/sh
# Installs what building and running this project needs, where it is missing, then runs the command it was given:
#
#     tools/setup.sh [--lint] [--browser] [COMMAND [ARGUMENT...]]
#
# It needs: a C linker, Rust, and on Linux the Vulkan loader and a Vulkan driver. Where a driver is installed, whatever
# it is, no other is added; without one, Mesa's lavapipe computes on the CPU. --lint asks for rustfmt and clippy as well,
# --browser for Chromium, in which tests open pages and compute with WebGPU.
# PAGED_ATTENTION_NO_INSTALL=1 only reports what is missing.
set -eu

cd "$(dirname "$0")/.."

say() {
    printf 'setup: %s\n' "$*" >&2
}

die() {
    say "$*"
    exit 1
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# --- What is there --------------------------------------------------------------------------------------------------

# A compiler without the C library's start files cannot link either, so a program is really linked.
can_link() {
    have cc || return 1
    out=$(mktemp) || return 1
    status=0
    echo 'int main(void) { return 0; }' | cc -x c - -o "$out" >/dev/null 2>&1 || status=1
    rm -f "$out"
    return "$status"
}

# Whether `cargo` in the PATH is as new as Cargo.toml asks for.
recent_cargo() {
    found=$(cargo --version 2>/dev/null) || return 1
    found=${found#cargo }
    at_least "${found%% *}" "$wanted_rust"
}

at_least() {
    major=${1%%.*} minor=${1#*.} wanted_major=${2%%.*} wanted_minor=${2#*.}
    minor=${minor%%.*} wanted_minor=${wanted_minor%%.*}
    [ "$major" -gt "$wanted_major" ] || { [ "$major" -eq "$wanted_major" ] && [ "$minor" -ge "$wanted_minor" ]; }
}

# Puts a recent cargo first in the PATH, if there is one where rustup puts it. A toolchain that was installed beside an
# older default is chosen for the command below only; the default stays the user's.
find_cargo() {
    recent_cargo && return 0
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    export PATH
    recent_cargo && return 0
    have rustup || return 1
    users_choice=${RUSTUP_TOOLCHAIN-}
    export RUSTUP_TOOLCHAIN=stable
    recent_cargo && return 0
    RUSTUP_TOOLCHAIN=$users_choice
    [ -n "$users_choice" ] || unset RUSTUP_TOOLCHAIN
    return 1
}

has_loader() {
    # ldconfig is in no ordinary user's PATH on Debian.
    known=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null) || known=
    case $known in *libvulkan.so.1*) return 0 ;; esac
    old_ifs=$IFS
    IFS=:
    for dir in ${LD_LIBRARY_PATH-}; do
        [ -n "$dir" ] && [ -e "$dir/libvulkan.so.1" ] && IFS=$old_ifs && return 0
    done
    IFS=$old_ifs
    for file in /usr/lib/libvulkan.so.1 /usr/lib64/libvulkan.so.1 /usr/lib/*/libvulkan.so.1 \
        /usr/local/lib/libvulkan.so.1; do
        [ -e "$file" ] && return 0
    done
    return 1
}

# Whether any manifest that the loader reads is there. A list in the environment replaces the loader's directories.
has_driver() {
    listed=${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}
    if [ -n "$listed" ]; then
        old_ifs=$IFS
        IFS=:
        for file in $listed; do
            [ -e "$file" ] && IFS=$old_ifs && return 0
        done
        IFS=$old_ifs
        die "VK_DRIVER_FILES or VK_ICD_FILENAMES names no file that exists ($listed), so the Vulkan loader finds no" \
            "driver; correct or unset it"
    fi
    for file in /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json /usr/local/share/vulkan/icd.d/*.json \
        /usr/local/etc/vulkan/icd.d/*.json "${XDG_DATA_HOME:-$HOME/.local/share}"/vulkan/icd.d/*.json; do
        [ -e "$file" ] && return 0
    done
    return 1
}

# The names under which cli/src/browser looks for one.
has_browser() {
    have chromium || have chromium-browser || have google-chrome || have chrome
}

# --- What is missing ------------------------------------------------------------------------------------------------

# Debian packages, and the same in words for other systems.
packages=
missing=
need() {
    missing="$missing
  - $1"
    shift
    packages="$packages $*"
}

rustup_url=https://sh.rustup.rs
rustup_command="curl --proto '=https' --tlsv1.2 -sSf $rustup_url | sh"

install_packages() {
    [ -n "$missing" ] || return 0
    if ! have apt-get; then
        say "missing:$missing"
        [ -n "$report_only" ] || die "install these with your system's package manager, then run this again"
        return 0
    fi
    apt="apt-get -q -o DPkg::Lock::Timeout=300"
    by_hand="apt-get update && apt-get install -y --no-install-recommends$packages"
    if [ -n "$report_only" ]; then
        say "missing:$missing"
        say "to install it: $by_hand"
        return 0
    fi
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        # Without a terminal nobody could type a password.
        if have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
            as_root=sudo
        else
            say "missing:$missing"
            die "this takes root, and sudo cannot be used here; run this as root, then try again: $by_hand"
        fi
    fi
    say "installing, for they are missing:$missing"
    # A source that fails need not be the one that has the packages.
    # shellcheck disable=SC2086 # options, one word each
    $as_root $apt update </dev/null >&2 || say "apt-get update failed; trying to install all the same"
    # shellcheck disable=SC2086 # as above, and one word per package
    $as_root env DEBIAN_FRONTEND=noninteractive $apt install -y --no-install-recommends $packages </dev/null >&2 ||
        die "apt-get could not install$packages; see above"
}

install_rust() {
    if [ -n "$report_only" ]; then
        say "missing: Rust $wanted_rust or newer; to install it: $rustup_command"
        return 0
    fi
    # An old or empty rustup gets a toolchain; its default is left alone.
    if have rustup; then
        say "installing Rust's stable toolchain, for $wanted_rust or newer is needed"
        rustup toolchain install stable --profile minimal --no-self-update </dev/null >&2 ||
            die "rustup could not install the stable toolchain; see above"
    else
        say "installing Rust with rustup into ${CARGO_HOME:-$HOME/.cargo}, for $wanted_rust or newer is needed"
        script=$(mktemp)
        trap 'rm -f "$script"' EXIT
        curl --proto '=https' --tlsv1.2 -sSf --retry 3 "$rustup_url" -o "$script" ||
            die "$rustup_url cannot be reached; install Rust $wanted_rust or newer in another way, then run this again"
        # Rust of the system, too old for us, is no reason to stop: it stays what it is.
        RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$script" -y --profile minimal --default-toolchain stable \
            --no-modify-path </dev/null >&2 || die "rustup could not be installed; see above"
        rm -f "$script"
        say "to use cargo by yourself: PATH=\"${CARGO_HOME:-$HOME/.cargo}/bin:\$PATH\""
    fi
    find_cargo || die "Rust was installed, but no cargo of $wanted_rust or newer is found; update rustup's stable toolchain"
}

# --- In this order: what apt has, Rust, its components ----------------------------------------------------------------

lint=
browser=
while :; do
    case ${1-} in
    --lint) lint=yes ;;
    --browser) browser=yes ;;
    *) break ;;
    esac
    shift
done
report_only=
[ "${PAGED_ATTENTION_NO_INSTALL:-0}" = 0 ] || report_only=yes
wanted_rust=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' Cargo.toml)
: "${HOME:=/root}"

rust_found=yes
find_cargo || rust_found=

system=$(uname -s)
case $system in
Linux)
    can_link || need 'a C linker, cc, with the C library' gcc libc6-dev
    has_loader || need 'the Vulkan loader, libvulkan.so.1' libvulkan1
    [ -z "$browser" ] || has_browser || need 'a browser, Chromium' chromium
    has_driver || need "a Vulkan driver: your GPU's, or Mesa's lavapipe for the CPU" mesa-vulkan-drivers
    if [ -z "$rust_found" ] && ! have rustup; then
        have curl || need 'curl, to fetch Rust' curl
        [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -n "${SSL_CERT_FILE-}" ] || ! have apt-get ||
            need 'certificates, to fetch Rust' ca-certificates
    fi
    install_packages
    ;;
Darwin)
    [ -z "$browser" ] || has_browser || die 'no chromium, google-chrome or chrome in the PATH; install one'
    can_link || die 'a C linker is missing; install it with: xcode-select --install'
    ;;
*)
    # Windows under MSYS or the like: drivers come with the system, Rust with its own installer.
    [ -n "$rust_found" ] || [ -n "$report_only" ] || die "Rust $wanted_rust or newer is missing; see https://rustup.rs"
    ;;
esac
[ -n "$rust_found" ] || install_rust

if [ -n "$lint" ] && { ! cargo fmt --version || ! cargo clippy --version; } >/dev/null 2>&1; then
    if [ -n "$report_only" ] || ! have rustup; then
        say 'missing: rustfmt and clippy; to install them: rustup component add rustfmt clippy'
    else
        rustup component add rustfmt clippy </dev/null >&2 || die 'rustup could not add rustfmt and clippy; see above'
    fi
fi

[ $# -gt 0 ] || exit 0
[ -n "$rust_found" ] || have cargo || die "without Rust there is nothing to run"
# Mesa complains about a session that a server does not have, in words that look like a failure of ours.
if [ "$system" = Linux ] && [ -z "${XDG_RUNTIME_DIR-}" ]; then
    export XDG_RUNTIME_DIR="${TMPDIR:-/tmp}"
fi
exec "$@"
