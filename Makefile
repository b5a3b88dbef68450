# `make bench` and `make test` do everything from a fresh checkout on; tools/setup.sh installs what is missing.
# ARGS goes to the benchmark, or to `cargo test`: make bench ARGS="--quick --json bench.json"

ARGS =

# Optimised, because a software driver is slow enough, yet with the checks of a debug build in this crate's own code.
OWN = profile.release.package.wgpu-paged-attention
CHECKED = --config $(OWN).debug-assertions=true --config $(OWN).overflow-checks=true

help:
	@echo "make bench   measure paged attention on this machine's GPU        ARGS=\"--help\" lists options"
	@echo "make test    run all tests                                        ARGS=\"--test kernels\" runs one file"
	@echo "make check   formatting, clippy and documentation, warnings denied"
	@echo "make setup   only install what is missing; PAGED_ATTENTION_NO_INSTALL=1 makes it only report"

bench:
	@tools/setup.sh cargo run --release -- bench $(ARGS)

test:
	@tools/setup.sh cargo test --release $(CHECKED) $(ARGS)

check:
	@tools/setup.sh --lint cargo fmt --check
	@tools/setup.sh cargo clippy --release --all-targets -- -D warnings
	@tools/setup.sh cargo clippy --release --no-default-features --lib -- -D warnings
	@RUSTDOCFLAGS="-D warnings" tools/setup.sh cargo doc --release --no-deps

setup:
	@tools/setup.sh

.PHONY: help bench test check setup
