//! The `paged-attention` binary: see [`cli`].

mod cli;

fn main() -> std::process::ExitCode {
    #[cfg(target_os = "linux")]
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // Mesa's loader prints `error: XDG_RUNTIME_DIR is invalid or not set` to stderr, which concerns nobody here.
        // SAFETY: no thread but this one exists yet, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", std::env::temp_dir()) };
    }
    cli::main()
}
