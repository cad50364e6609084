# The only entry a newcomer needs. `make help` lists what there is.

CARGO ?= cargo
TARGE := target/release/targe
# What `make demo` passes on, e.g. ARGS="--lun ram:512M".
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test doc build tidy packages

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build  ## build and serve the default disk; prints the lines to paste
	$(TARGE) serve $(ARGS)

test: packages  ## everything CI runs
	tests/everything

doc:  ## the documentation of every room, warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace --locked

tidy:  ## the rules of the house that the compiler cannot see
	$(CARGO) xtask tidy

build:  ## the release binary
	$(CARGO) build --release --locked --package targe

packages:  ## install, or name, the foreign programs the tests need
	@tests/foreign/packages
