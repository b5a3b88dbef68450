# `make bench` and `make test` do everything from a fresh checkout on; tools/setup.sh installs what is missing.
# ARGS goes to the benchmark, or to `cargo test`: make bench ARGS="--quick --json bench.json"

ARGS =

# Optimised, because a software driver is slow enough, yet with the checks of a debug build in the project's own code.
CHECKED = $(foreach package,wgpu-paged-attention paged-attention paged-attention-gpu-compilers,$(foreach check,debug-assertions overflow-checks,\
	--config profile.release.package.$(package).$(check)=true))

# Mesa's software driver keeps the kernels it compiled; beside the build, every run finds them and `cargo clean` drops them.
export MESA_SHADER_CACHE_DIR ?= $(CURDIR)/target/shader-cache

help:
	@echo "make bench      measure paged attention on this machine's GPU        ARGS=\"--help\" lists options"
	@echo "make test       run all tests                                        ARGS=\"--test device kernels\" runs some"
	@echo "make test-long  the same with far more random cases, and the device tests for every size of subgroup"
	@echo "make check      formatting, clippy and documentation, warnings denied"
	@echo "make drivers    full check on lavapipe's vector widths, SwiftShader, a newer Mesa   ARGS=--quick"
	@echo "make targets    compile for Windows, macOS and aarch64, without linking             ARGS=TARGET"
	@echo "make windows    quick check under Wine, on Vulkan and on DX12"
	@echo "make burn       the cache inside burn, on burn's tensors; make cubecl: on cubecl's memory alone"
	@echo "make gpu-compilers  what five makers' compilers make of the kernels               ARGS=--quick"
	@echo "make setup      only install what is missing; PAGED_ATTENTION_NO_INSTALL=1 makes it only report"

bench:
	@tools/setup.sh cargo run --release -- bench $(ARGS)

test:
	@tools/setup.sh cargo test --release $(CHECKED) $(ARGS)

# Lavapipe compiles in a third less time, and runs slower, where it does not optimise: the tests have many small kernels.
# `make drivers` runs what it optimised.
test: export GALLIVM_PERF ?= nopt

# Hours on a few cores. Mesa's subgroups are as wide as the vectors it is told to use.
test-long: export PAGED_ATTENTION_MODEL_OPS = 30000000
test-long: export PAGED_ATTENTION_ROUNDS = 240
test-long: export PAGED_ATTENTION_FUZZ_ROUNDS = 5000
test-long: test
	@for bits in 128 256 512 1024; do \
		LP_NATIVE_VECTOR_WIDTH=$$bits $(MAKE) test ARGS="--test device" || exit 1; \
	done

check:
	@tools/setup.sh --lint cargo fmt --all --check
	@tools/setup.sh --lint cargo fmt --manifest-path examples/burn/Cargo.toml --check
	@tools/setup.sh cargo clippy --release --all-targets -- -D warnings
	@tools/setup.sh cargo clippy --release -p wgpu-paged-attention --no-default-features --lib -- -D warnings
	@RUSTDOCFLAGS="-D warnings" tools/setup.sh cargo doc --release --no-deps -p wgpu-paged-attention --no-default-features --lib

drivers:
	@tools/setup.sh cargo build --release
	@tools/setup.sh tools/drivers.sh $(ARGS)

targets:
	@tools/setup.sh tools/targets.sh $(ARGS)

windows:
	@PAGED_ATTENTION_REQUIRE_COMPILERS=1 tools/setup.sh tools/gpu-compilers/setup.sh tools/windows.sh

# burn takes 7 minutes of CPU time to build, cubecl 4: CI runs cubecl only, through the code in which the library meets both.
BURN = tools/setup.sh cargo run --locked --manifest-path examples/burn/Cargo.toml --target-dir target/burn

burn:
	@$(BURN) $(ARGS)

cubecl:
	@$(BURN) --no-default-features --bin handles $(ARGS)

# Debian and root; elsewhere it says what is missing. ARGS=--write-bounds accepts what it finds.
gpu-compilers:
	@tools/setup.sh tools/gpu-compilers/setup.sh cargo run --release --bin paged-attention-gpu-compilers -- \
		--bounds tools/gpu-compilers/bounds.toml --page docs/GPU-COMPILERS.md $(ARGS)

setup:
	@tools/setup.sh

.PHONY: help bench test test-long check drivers targets windows burn cubecl gpu-compilers setup
