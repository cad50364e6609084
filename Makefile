# The only entry a newcomer needs. `make help` lists what there is.

CARGO ?= cargo
TARGE := target/release/targe
# What packages contain and benchmarks measure.
DIST := target/dist/targe
# What `make demo` passes on, e.g. ARGS="--lun ram:512M".
ARGS ?=
# Where the demonstration keeps its disk and its state, for root as for any other user.
DEMO ?= out/demo

.DEFAULT_GOAL := help
# The simulation, with the checks of a debug build; the profile `dev` optimizes the crates that it runs. `tests/everything` names the
# programs of the test build, so that nothing is built for them. One program for all: it plants bugs with PLANTED=1 alone.
SIM ?= $(CARGO) run --locked --quiet --package targe-sim --features planted
RISK ?= $(SIM) --bin targe-risk-simulation
# The crate that `make check` checks, such as CRATE=iscsi; all of them without it.
CRATE ?=
PACKAGE = $(if $(filter targe targe-% xtask,$(CRATE)),$(CRATE),targe-$(CRATE))
# Which target the rigs judge: targe, or tgt to try the rigs themselves.
SERVER ?= targe
# The rigs are pytest's: Debian's, for Debian's Python has the plugins that they need. What else it is given, e.g. ARGS="-k CHAP".
PYTEST := /usr/bin/python3 -m pytest
# What `make bench` and `make bench-hyperscsi` measure, and beside which other binary of targe.
PLAN ?= bench/speed.toml
HYPERSCSI_PLAN ?= bench/hyperscsi.toml
BESIDE ?=
# The laboratory makes network namespaces: as root, or as root of a user namespace, where the kernel counts no system calls.
AS_ROOT := $(shell test "$$(id -u)" = 0 || echo unshare --map-root-user)
.PHONY: help demo check test sim-planted-worlds sanitize package sim sim-planted risk-simulation test-initiator test-iscsi-client-rs test-libiscsi test-guest test-discs test-bacula test-qemu test-ipxe test-configured test-wireshark test-crash test-power test-attach test-luks test-tape test-hostile test-reload test-debian test-changes test-changes-long test-upgrade test-upgrade-long test-metrics test-csi test-csi-sanity test-hyperscsi test-second test-recovery test-lab conform fuzz bench bench-tape bench-hyperscsi doc build build-dist deb tidy packages dist test-nbd test-spdk

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build  ## build and serve a disk in out/demo; prints the lines to paste
	env -u XDG_RUNTIME_DIR $(TARGE) serve --state-dir $(DEMO) $(ARGS)

check:  ## format, clippy, unit tests and tidy, for the daily loop: CRATE=iscsi for one crate
	$(CARGO) fmt --all --check
ifeq ($(CRATE),)
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test-build -- --skip planted_bugs_are_found
else
	$(CARGO) clippy --package $(PACKAGE) --all-targets --locked -- -D warnings
	$(CARGO) test --package $(PACKAGE) --locked
endif
	$(CARGO) xtask tidy

test: packages  ## everything CI runs
	tests/everything

sim:  ## worlds from seeds: SEEDS=2000 runs so many, FRESH=3000 so many that follow from the commit, SEED=7 replays one and prints all of it, FABRIC=iscsi, hyperscsi, tape or tape-iscsi only that, SPECIAL=0 no reloads, short memory or harmful media
	$(SIM)

sim-planted: sim-planted-worlds  ## bugs planted on purpose: the simulator must find each within SEEDS, tests the ones of a unit
	$(CARGO) test-build --tests -- planted_bugs_are_found

sim-planted-worlds:
	PLANTED=1 $(SIM)

risk-simulation:  ## PDUS=1000000 damaged PDUs between both ends in memory, from SEED=1: both digests must detect every one of them
	$(RISK)

test-libiscsi: build packages  ## libiscsi's suite on every configuration
	$(PYTEST) tests/foreign/libiscsi --server $(SERVER) $(ARGS)

test-guest: build packages  ## the Linux kernel's initiator, in a QEMU guest
	$(PYTEST) tests/foreign/guest --server $(SERVER) $(ARGS)

test-discs: build packages  ## more programs that burn discs in a QEMU guest, by hand: minutes
	$(PYTEST) tests/foreign/discs --server $(SERVER) $(ARGS)

test-bacula: build packages  ## Bacula with our tape library, in a QEMU guest, by hand
	$(PYTEST) tests/foreign/guest/test_bacula.py --server $(SERVER) $(ARGS)

test-qemu: build packages  ## QEMU's own iSCSI driver
	$(PYTEST) tests/foreign/qemu --server $(SERVER) $(ARGS)

test-iscsi-client-rs: build packages  ## iscsi-client-rs, an initiator library in Rust, by hand: cargo fetches it
	$(PYTEST) tests/foreign/iscsi-client-rs --server $(SERVER) $(ARGS)

test-initiator: build packages  ## our initiator with targets that others wrote, and ours
	$(PYTEST) tests/foreign/initiator $(ARGS)

test-ipxe: build packages  ## iPXE boots a machine from a disk of ours
	$(PYTEST) tests/foreign/ipxe --server $(SERVER) $(ARGS)

test-configured: build packages  ## every advertised configuration with data: devices, O_DIRECT, IPv6, no rights, several reactors, reloads
	$(PYTEST) tests/foreign/configured $(ARGS)

test-wireshark: build packages  ## Wireshark's dissectors over captures of foreign initiators, and over HyperSCSI frames
	$(PYTEST) tests/foreign/wireshark --server $(SERVER) $(ARGS)

test-crash: build packages  ## the target killed while it writes
	$(PYTEST) tests/foreign/crash --server $(SERVER) $(ARGS)

test-power: build packages  ## what is on the medium whenever the power goes, and planted bugs that must be found by it
	$(PYTEST) tests/foreign/power $(ARGS)

test-attach: build packages  ## LUNs as local disks: NBD clients, loop devices over FUSE, fio
	$(PYTEST) tests/foreign/attach --server $(SERVER) $(ARGS)

test-luks: build packages  ## LUKS2 images of ours and of cryptsetup, each opened by the other
	$(PYTEST) tests/foreign/luks $(ARGS)

test-tape: build packages  ## virtual tape cartridges read by a second reader, tape images, imports that are killed
	$(PYTEST) tests/foreign/tape $(ARGS)

test-nbd: build packages  ## LUNs from NBD servers that others wrote, which are killed, stopped and changed meanwhile
	$(PYTEST) tests/foreign/nbd $(ARGS)

test-spdk: build packages  ## LUNs from SPDK's vhost, which is killed and loses targets meanwhile, by hand: SPDK_VHOST names the program
	SPDK_VHOST=$(SPDK_VHOST) $(PYTEST) tests/foreign/nbd/test_spdk.py $(ARGS)

test-recovery: build packages  ## whole disks verified through a proxy that breaks PDUs, at every recovery level
	$(PYTEST) tests/recovery $(ARGS)

test-hyperscsi: build packages  ## HyperSCSI between network namespaces, on cables that are good and bad
	$(PYTEST) tests/foreign/hyperscsi $(ARGS)

test-lab: build packages  ## the experiments of the laboratory, short
	$(PYTEST) tests/foreign/lab $(ARGS)

test-second: build packages  ## HyperSCSI judged by a second implementation of its specification, initiator and target
	$(PYTEST) tests/foreign/second $(ARGS)

test-hostile: build packages  ## peers that mean harm, with the target's memory measured
	$(PYTEST) tests/foreign/hostile $(ARGS)

test-reload: build packages  ## LUNs added, removed and remapped by 1000 random reloads while three hosts write
	$(PYTEST) tests/foreign/reload --rounds 1000 $(ARGS)

test-upgrade: build packages  ## live upgrades while whole disks are verified
	$(PYTEST) tests/foreign/upgrade $(ARGS)

test-upgrade-long: build packages  ## the same, 200 upgrades and 50 that fail; and under fio in a QEMU guest
	$(PYTEST) tests/foreign/upgrade tests/foreign/guest/test_kernel_upgrade.py --upgrades 200 --failures 50 $(ARGS)

test-changes: build packages  ## random admin commands, edits by hand, reloads and kills: the file and what runs always agree
	$(PYTEST) tests/foreign/changes $(ARGS)

test-changes-long: build packages  ## the same, 10 000 sequences: hours
	$(PYTEST) tests/foreign/changes --sequences 10000 $(ARGS)

test-metrics: build packages  ## the metrics of a daemon under load, scraped and checked by Prometheus; the API and the status page, the latter in Chromium; hostile HTTP clients
	$(PYTEST) tests/foreign/metrics $(ARGS)

test-csi: build packages  ## the driver of Kubernetes volumes: killed, calls twice and out of order, a full pool, data on a node
	$(PYTEST) tests/foreign/csi/test_csi.py tests/foreign/csi/test_csi_groups.py tests/foreign/csi/test_fencing.py tests/foreign/csi/test_file_systems.py $(ARGS)

test-csi-sanity: build packages  ## csi-sanity, by hand: CSI_SANITY names the program
	$(PYTEST) tests/foreign/csi/test_sanity.py $(ARGS)

test-debian: build packages  ## manual pages, completions and the Debian package: built, installed in a clean root, used, purged; its unit under systemd
	$(PYTEST) tests/foreign/debian $(ARGS)

sanitize:  ## the crates with unsafe code under AddressSanitizer, by hand; needs a nightly toolchain
	tests/sanitize $(ARGS)

fuzz: packages  ## what a hostile peer can send, by libFuzzer, a short time for each target
	$(PYTEST) tests/fuzz $(ARGS)

bench: build-dist packages  ## targe beside tgt and a bare echo, by the laboratory: PLAN=FILE for another plan, BESIDE=BINARY for another build of targe, ARGS="--rival ram"
	@mkdir -p out/bench/bin
	$(if $(BESIDE),ln -sf $(abspath $(BESIDE)) out/bench/bin/targe-other-build)
	PATH="$(CURDIR)/out/bench/bin:$$PATH" $(AS_ROOT) $(DIST) lab targets --plan $(PLAN) --rivals bench/rivals --rival tgt \
		$(if $(BESIDE),--rival other-build) --out out/bench/targets-$$(date +%Y%m%d-%H%M%S) $(ARGS)

bench-tape: build-dist packages  ## tapes and discs of targe beside those of tgt and beside a disk of targe, by hand: ARGS="--folder FOLDER"
	$(CARGO) build --profile dist --locked --package targe-lab --example stream
	bench/tape $(ARGS)

bench-hyperscsi: build-dist packages  ## HyperSCSI beside bare frames, iSCSI and ATA over Ethernet, by the laboratory: HYPERSCSI_PLAN=FILE for another plan
	$(AS_ROOT) $(DIST) lab hyperscsi --plan $(HYPERSCSI_PLAN) --out out/bench/hyperscsi-$$(date +%Y%m%d-%H%M%S) $(ARGS)

conform: build packages  ## RFC 7143 and 7144, SSC, SMC and MMC, case by case, against our own target and initiator
	$(PYTEST) tests/conform/test_conform_target.py --server $(SERVER) $(ARGS)
	$(PYTEST) tests/conform/test_conform_initiator.py $(ARGS)

package: build packages  ## the library as a registry would take it, built from its archives and used from outside
	$(PYTEST) tests/package --build $(ARGS)

doc:  ## the documentation of every crate, warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace --locked

tidy:  ## the project's rules that the compiler cannot see
	$(CARGO) xtask tidy

build:  ## the binary, target/release/targe
	$(CARGO) build --release --locked --package targe

build-dist:  ## the binary with link-time optimization, target/dist/targe, which packages contain and benchmarks measure
	$(CARGO) build --profile dist --locked --package targe

deb: build-dist packages  ## the Debian package, in out/deb
	packaging/make-deb --binary $(DIST) $(ARGS)

dist:  ## static binaries of the last commit, built twice and compared, with a bill of materials and checksums, in out/dist, by hand: ARGS="--once" builds once
	packaging/make-dist $(ARGS)

packages:  ## install, or name, the foreign programs the tests need
	@tests/foreign/packages
