# `make bench` and `make test` do everything from a fresh checkout on; tools/setup.sh installs what is missing.
# ARGS goes to the benchmark, or to `cargo test`: make bench ARGS="--quick --json bench.json"

ARGS =

# Optimised, because a software driver is slow enough, yet with the checks of a debug build in the project's own code.
CHECKED = $(foreach package,wgpu-paged-attention paged-attention,$(foreach check,debug-assertions overflow-checks,\
	--config profile.release.package.$(package).$(check)=true))

help:
	@echo "make bench   measure paged attention on this machine's GPU        ARGS=\"--help\" lists options"
	@echo "make test    run all tests                                        ARGS=\"--test device kernels\" runs some"
	@echo "make check   formatting, clippy and documentation, warnings denied"
	@echo "make setup   only install what is missing; PAGED_ATTENTION_NO_INSTALL=1 makes it only report"

bench:
	@tools/setup.sh cargo run --release -- bench $(ARGS)

test:
	@tools/setup.sh cargo test --release $(CHECKED) $(ARGS)

check:
	@tools/setup.sh --lint cargo fmt --all --check
	@tools/setup.sh cargo clippy --release --workspace --all-targets -- -D warnings
	@tools/setup.sh cargo clippy --release --no-default-features --lib -- -D warnings
	@RUSTDOCFLAGS="-D warnings" tools/setup.sh cargo doc --release --no-deps

setup:
	@tools/setup.sh

.PHONY: help bench test check setup
