# Sandstack: what people and CI run. `make help` lists it.
#
# Everything is built with the `dev` profile, so that tests and the demo share one build; `install`
# alone builds for release.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := build
MAKEFLAGS += --no-builtin-rules

# Where cargo puts what it builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# For `make install`.
PREFIX ?= /usr/local
DESTDIR ?=
# For `make demo`: a project directory; without one, a copy of this one.
PROJECT ?=
# For `make test`: seconds, and arguments to `cargo test` in place of `--workspace`.
TEST_TIMEOUT ?= 1800
TEST_ARGS ?=
# For `make build` and `make demo`: what is built. Tests are built with more features of some crates
# than programs alone; after `make test`, BUILD=--all-targets finds everything there.
BUILD ?= --bins

# For `make bench`: rows (default all, with the costs), peers, rounds, where inputs and places are, and
# further options of the program; `target/release/bench --help` lists them.
ROWS ?=
PEERS ?=
ROUNDS ?= 5
BENCH_DIR ?= $(TARGET)/bench
BENCH_ARGS ?=
BASELINE ?= benches/baseline.json

PROGRAMS := sandbox-gateway sandbox-holder sandbox-fs sandbox-manager-cli sandbox-runtime-cli \
	sandbox-observability-cli sandbox-mcp

# rust-toolchain.toml names a toolchain that rustup fetches if it can. Where it is not installed and
# the stable one is at least as new, that one does as well, network or not.
ifndef RUSTUP_TOOLCHAIN
PINNED := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
FALLBACK := $(shell command -v rustup >/dev/null || exit 0; \
	rustup toolchain list 2>/dev/null | grep -q '^$(PINNED)-' && exit 0; \
	stable=$$(rustc +stable --version 2>/dev/null | cut -d ' ' -f 2); \
	[ -n "$$stable" ] && printf '%s\n' $(PINNED) "$$stable" | sort -CV && echo stable)
ifneq ($(FALLBACK),)
export RUSTUP_TOOLCHAIN := $(FALLBACK)
endif
endif

# For `make conformance`: directories in which suites were built, operations of fsx, random programs that
# a view and the disk are compared by, and further options of the program.
XFSTESTS ?=
PJDFSTEST_C ?=
UNIONMOUNT ?=
FSX_OPERATIONS ?= 1000000
ORACLE_CASES ?= 1000
CONFORMANCE_ARGS ?=

.PHONY: help setup fetch build holder-static test demo bench bench-check bench-baseline cases conformance docs \
	lint install clean

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Installs what building, tests and the demo need (as root, with apt), or says what is missing
	@.ci/setup

fetch: ## Downloads the crates that Cargo.lock names
	@cargo fetch --locked

build: setup ## Builds every program
	@cargo build --workspace $(BUILD)

# glibc, linked statically: runs in a container of any libc or none. Built in a directory of its own,
# since the same program linked dynamically is beside the others; the gateway looks for it there too.
holder-static: setup ## Builds the holder that goes into containers
	@cargo rustc -p sandstack-holder --bin sandbox-holder --target-dir $(TARGET)/static -- \
		-C target-feature=+crt-static
	install -D -m 0755 $(TARGET)/static/debug/sandbox-holder $(TARGET)/debug/sandbox-holder-static

test: setup holder-static ## Runs all tests; root also runs those that mount and those with Docker
	@TEST_TIMEOUT=$(TEST_TIMEOUT) .ci/test $(TEST_ARGS)

demo: build holder-static ## Shows several sessions at work on one project (PROJECT=DIR)
	@project='$(PROJECT)'
	if [ -z "$$project" ]; then
		project=$(TARGET)/demo-project
		rm -rf "$$project"
		mkdir -p "$$project"
		tar --exclude=./target --exclude='./$(TARGET)' --exclude=./.git -c . | tar -x -C "$$project"
	fi
	$(TARGET)/debug/demo "$$project"

# Release programs alone: debug assertions would cost more than what is measured.
bench: setup ## Compares views with overlayfs and others (ROWS=, PEERS=, ROUNDS=; as root)
	@cargo build --release -p sandstack-benches -p sandstack-gateway -p sandstack-holder -p sandstack-cli --bins
	$(TARGET)/release/bench --dir '$(BENCH_DIR)' --rows '$(ROWS)' --peers '$(PEERS)' --rounds $(ROUNDS) $(BENCH_ARGS)

bench-check: ## Tells what `make bench` last found worse than the baseline (BASELINE=)
	@$(TARGET)/release/bench check --results '$(BENCH_DIR)/results.json' --baseline '$(BASELINE)'

bench-baseline: ## Takes what `make bench` last found into the baseline
	@$(TARGET)/release/bench check --update --results '$(BENCH_DIR)/results.json' --baseline '$(BASELINE)'

# Scripts of faults come with none of this: CASES is a directory of them.
cases: ## Runs scripts of faults on views and sandboxes (CASES=DIR; as root)
	@cargo build --workspace --all-targets
	xfstests/cases '$(CASES)'

# What is not installed is said to be so; with CI=true that is a failure. docs/conformance.md has more.
conformance: setup ## Holds views to suites of others (XFSTESTS=DIR; as root, with pjdfstest and fsx in PATH)
	@cargo build --workspace --all-targets
	status=0
	SANDSTACK_TEST_CASES=$(ORACLE_CASES) SANDSTACK_TEST_SCALE=full \
		cargo test --workspace --test suite -- oracle scale many_files_are_removed || status=1
	$(TARGET)/debug/conformance all --operations $(FSX_OPERATIONS) $(if $(XFSTESTS),--xfstests '$(XFSTESTS)') \
		$(if $(PJDFSTEST_C),--pjdfstest-c '$(PJDFSTEST_C)') $(if $(UNIONMOUNT),--unionmount '$(UNIONMOUNT)') \
		$(CONFORMANCE_ARGS) || status=1
	exit $$status

docs: ## Writes docs/operations.md anew from the catalogue
	@UPDATE_EXPECTED=1 cargo test -q -p sandstack-xfstests --test house operations_page

lint: ## Checks format, lints and documentation
	@cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	# With private items, since those who change a package read them; so links to them are right.
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' \
		cargo doc --workspace --no-deps --document-private-items
	# Licences, sources and duplicates, where cargo-deny is installed.
	if cargo deny --version >/dev/null 2>&1; then cargo deny --offline --log-level error check bans licenses sources; fi

install: setup ## Builds for release and installs under PREFIX (default /usr/local)
	@cargo build --release --workspace --bins
	cargo rustc --release -p sandstack-holder --bin sandbox-holder --target-dir $(TARGET)/static -- \
		-C target-feature=+crt-static
	install -d '$(DESTDIR)$(PREFIX)/bin'
	install -m 0755 $(PROGRAMS:%=$(TARGET)/release/%) '$(DESTDIR)$(PREFIX)/bin'
	install -m 0755 $(TARGET)/static/release/sandbox-holder '$(DESTDIR)$(PREFIX)/bin/sandbox-holder-static'

clean: ## Removes everything that was built
	@.ci/docker down
	cargo clean
