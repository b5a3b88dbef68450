//! The kernels under the GPU makers' compilers, without their GPUs; `docs/GPU-COMPILERS.md` is what it writes.

#[cfg(target_os = "linux")]
mod bounds;
#[cfg(target_os = "linux")]
mod chips;
#[cfg(target_os = "linux")]
mod command;
#[cfg(target_os = "linux")]
mod dxc;
#[cfg(target_os = "linux")]
mod grid;
#[cfg(target_os = "linux")]
mod listing;
#[cfg(target_os = "linux")]
mod measure;
#[cfg(target_os = "linux")]
mod page;
#[cfg(target_os = "linux")]
mod plant;
#[cfg(target_os = "linux")]
mod row;
#[cfg(target_os = "linux")]
mod texts;
#[cfg(target_os = "linux")]
mod translate;
#[cfg(target_os = "linux")]
mod vulkan;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    command::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("skipped: the compilers run on Linux alone");
}
