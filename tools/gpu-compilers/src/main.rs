//! The kernels under the GPU makers' compilers, without their GPUs; `docs/GPU-COMPILERS.md` is what it writes.

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("skipped: the compilers run on Linux alone");
}
