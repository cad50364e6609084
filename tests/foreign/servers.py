"""Targets under test: describe what to export, start it, get URLs, stop or kill it.

`Export` says what every rig needs in words that fit any target; each class here turns it into the commands or the
configuration of one product. Rigs never name a product themselves, so that a rig tried on one judges the other.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass

import ending
import media
import tgt_devices
from listening import free_port, listeners, listens

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(ROOT, "out")
# Debian's programs for administrators stand where an ordinary user's PATH does not lead.
os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
IQN = "iqn.2026-11.org.targe:rig"
# Loaded here: in a child nothing may be loaded, as another thread may hold what that needs.
LIBC = ctypes.CDLL(None)
CLONE_NEWNET = 0x40000000
# After so long without an open port, or without its end after SIGTERM, a target hangs, seconds. At its end it makes its files durable,
# for which it waits with all who write to the machine's disk.
START_MAX_S = 60
STOP_MAX_S = 60
# Longest the kernel takes to close the listening sockets of a process that was killed, seconds.
CLOSE_MAX_S = 60
MIB = 1 << 20
# What is wanted of header and data digests.
DIGEST_POLICIES = {"offered": ("offer", "offer"), "required": ("require", "require"), "header": ("require", "offer")}


@dataclass(frozen=True)
class Lun:
    """One logical unit. `thin` files start as one hole, others are written full of zeros. `atomic`: what atomic writes are
    multiples of, if anything. `encrypted`: whether what it holds is stored encrypted. `writable`: the kind of a disc that
    hosts write. `claims`: what the unit says of itself otherwise than as it comes, as keys of targe's configuration; other
    products say what they say. `slots` and `cartridges` are those of a library; `size` is the capacity of each cartridge."""
    medium: str = "file"
    size: int = 100 * MIB
    thin: bool = True
    readonly: bool = False
    removable: bool = False
    write_cache: bool = True
    block: int = 512
    physical: int = 4096
    atomic: int = 0
    encrypted: bool = False
    writable: str = ""
    claims: tuple = ()
    slots: int = 4
    cartridges: int = 3


@dataclass(frozen=True)
class Export:
    """One target with its units and who may reach it. `incoming` is what the initiator proves, `outgoing` what the
    target proves in return, each (name, secret). `digests`: "offered", "required", or
    "header" (that one required). `announce`: the host SendTargets names
    instead of the address it was asked on. `level` and `connections`: the highest ErrorRecoveryLevel and the most
    connections of a session, as far as the target has them."""
    luns: tuple = (Lun(),)
    incoming: tuple = None
    outgoing: tuple = None
    digests: str = "offered"
    announce: str = None
    level: int = 0
    connections: int = 1


class Server:
    """A target process with its own folder, listening on one free port of 127.0.0.1 and 127.0.0.2."""

    first_lun = 0

    def __init__(self, folder, export):
        self.folder = os.path.abspath(folder)
        self.export = export
        self.iqn = IQN
        self.port = None
        self.process = None
        os.makedirs(self.folder, exist_ok=True)
        # What an earlier run left in the log is not this one's.
        self.log_begins = os.path.getsize(self.log_path()) if os.path.exists(self.log_path()) else 0

    def log_path(self):
        return os.path.join(self.folder, "server.log")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, failed, *_):
        # How it ends is judged, unless something worse is being told already.
        with contextlib.suppress(*[Exception] if failed else []):
            self.stop()

    def url(self, unit=0, host="127.0.0.1", query=""):
        name = ""
        if self.export.incoming:
            name = "%".join(self.export.incoming) + "@"
        return f"iscsi://{name}{host}:{self.port}/{self.iqn}/{self.first_lun + unit}{query}"

    def medium_path(self, unit=0):
        return os.path.join(self.folder, f"lun{unit}.img")

    def medium_digest(self, unit=0):
        with open(self.medium_path(unit), "rb") as medium:
            return hashlib.file_digest(medium, "sha256").hexdigest()

    def make_media(self):
        for unit, lun in enumerate(self.export.luns):
            if lun.medium in ("file", "disc", "tape", "changer") or self.every_medium_is_a_file:
                media.make(self, unit, lun)

    def start(self, fresh=True):
        """Start serving; `fresh` makes new media, otherwise those of the last start are used again."""
        if fresh:
            self.make_media()
        if self.port is None:
            self.port = free_port()
        # The kernel closes what io_uring of a killed process held a moment after its end: a client would still connect to that.
        deadline = time.monotonic() + CLOSE_MAX_S
        while ("127.0.0.1", self.port) in listeners("self") and time.monotonic() < deadline:
            time.sleep(0.002)
        with open(self.log_path(), "ab") as log:
            self.process = subprocess.Popen(
                self.command(), cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        deadline = time.monotonic() + START_MAX_S
        while not (listens("127.0.0.1", self.port) and self.portals() <= listeners(self.process.pid)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{type(self).__name__} did not start; {self.log_tail()}")
            time.sleep(0.002)
        self.set_up()

    def portals(self):
        """The addresses, beside the port of 127.0.0.1, where the server listens once it has started."""
        return set()

    def set_up(self):
        """Whatever must be told to a running server before it is of use."""

    def alive(self):
        return self.process is not None and self.process.poll() is None and listens("127.0.0.1", self.port)

    def stop(self):
        """Ask to end; returns the exit code. A server that does not end in time is killed and that is an error."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{type(self).__name__} did not end within {STOP_MAX_S} s of SIGTERM") from None
        finally:
            self.process = None

    def version(self):
        """Which one it is, if its name does not say."""
        return ""

    def cause_of_death(self):
        """What a server that died by itself died of, and what it said last, in one line."""
        code = self.process.poll() if self.process else None
        how = f"it died of {signal.Signals(-code).name}; " if code is not None and code < 0 else ""
        return how + "its log ends: " + " / ".join(self.log_tail(4).splitlines()[1:])

    def kill(self):
        """SIGKILL, as a crash would have it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def log_tail(self, lines=15):
        with open(self.log_path(), errors="replace") as log:
            return "its log ends:\n" + "".join(log.readlines()[-lines:])

    def environment(self):
        return dict(os.environ)


class Tgt(Server):
    """Debian's tgtd. It has no memory backend (a file stands in) and counts units from 1: unit 0 is its own."""

    first_lun = 1
    every_medium_is_a_file = True

    def make_media(self):
        for unit, lun in enumerate(self.export.luns):
            tgt_devices.make_medium(self, unit, lun)

    def command(self):
        portals = ",".join(f"portal={host}:{self.port}" for host in ("127.0.0.1", "127.0.0.2"))
        return ["/usr/sbin/tgtd", "-f", "--iscsi", portals]

    def environment(self):
        # Relative to the folder, where both tgtd and tgtadm run: a socket path has room for 107 bytes only.
        return dict(os.environ, TGT_IPC_SOCKET="tgt")

    def admin(self, *arguments):
        command = ["tgtadm", "--lld", "iscsi", *arguments]
        subprocess.run(command, cwd=self.folder, env=self.environment(), check=True, timeout=START_MAX_S, capture_output=True)

    def set_up(self):
        on_target = ("--mode", "target", "--tid", "1")
        self.admin("--op", "new", *on_target, "-T", self.iqn)
        for unit, lun in enumerate(self.export.luns):
            which = ("--mode", "logicalunit", "--tid", "1", "--lun", str(self.first_lun + unit))
            if lun.medium in tgt_devices.TYPES:
                tgt_devices.serve(self, which, unit, lun)
                continue
            self.admin("--op", "new", *which, "-b", self.medium_path(unit), "-y", "rdwr", "--blocksize", str(lun.block))
            exponent = (lun.physical // lun.block).bit_length() - 1
            flags = f"thin_provisioning={int(lun.thin)},removable={int(lun.removable)},lbppbe={exponent}"
            self.admin("--op", "update", *which, "--params", f"{flags},readonly={int(lun.readonly)}")
        for key, policy in zip(("HeaderDigest", "DataDigest"), DIGEST_POLICIES[self.export.digests]):
            value = "CRC32C,None" if policy == "offer" else "CRC32C"
            self.admin("--op", "update", *on_target, "-n", key, "-v", value)
        for account, direction in ((self.export.incoming, ()), (self.export.outgoing, ("--outgoing",))):
            if account:
                name, secret = account
                self.admin("--op", "new", "--mode", "account", "--user", name, "--password", secret)
                self.admin("--op", "bind", "--mode", "account", "--tid", "1", "--user", name, *direction)
        self.admin("--op", "bind", *on_target, "-I", "ALL")

    def stop(self):
        # tgtd ignores SIGTERM while a session lives and keeps no state: end it the hard way.
        self.kill()
        return 0


class Targe(Server):
    """Ours: the release binary with a configuration of its own."""

    every_medium_is_a_file = False
    # How it waits for what happens: "auto", "uring" or "epoll".
    reactor = "auto"
    binary = os.environ.get("TARGE", os.path.join(ROOT, "target", "release", "targe"))

    def command(self):
        return [self.binary, "serve", "--config", self.config_path()]

    def config_path(self):
        return os.path.join(self.folder, "targe.toml")

    def start(self, fresh=True):
        if fresh:
            shutil.rmtree(os.path.join(self.folder, "state"), ignore_errors=True)
        if self.port is None:
            self.port = free_port()
        self.write_config()
        super().start(fresh)

    def secret_path(self):
        """A secret for encrypted media, made once."""
        path = os.path.join(self.folder, "secret")
        if not os.path.exists(path):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(os.urandom(32))
        return path

    def write_config(self):
        # Closed to others, as targe asks of a file that holds secrets.
        with open(os.open(self.config_path(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write("\n".join(self.config_lines()) + "\n")

    def config_lines(self):
        yield from ('state_dir = "state"', 'admin_socket = "admin/admin.sock"', f'reactor = "{self.reactor}"', "max_connections = 4000",
                    "max_sessions = 4000")
        for host in ("127.0.0.1", "127.0.0.2"):
            yield from ("[[portal]]", f'listen = "{host}:{self.port}"')
            if self.export.announce:
                yield f'announce = "{self.export.announce}:{self.port}"'
        header, data = DIGEST_POLICIES[self.export.digests]
        yield from ("[session]", f'header_digest = "{header}"', f'data_digest = "{data}"',
                    f"error_recovery_level = {self.export.level}", f"max_connections = {self.export.connections}")
        yield from ("[[target]]", f'name = "{self.iqn}"', "max_sessions = 4000")
        if self.export.incoming:
            yield from ("[target.auth]", 'user = "{}"\nsecret = "{}"'.format(*self.export.incoming))
            if self.export.outgoing:
                yield 'mutual_user = "{}"\nmutual_secret = "{}"'.format(*self.export.outgoing)
        for unit, lun in enumerate(self.export.luns):
            yield from ("[[target.lun]]", f"lun = {unit}", f'type = "{lun.medium}"')
            yield from (f"{key} = {toml(value)}" for key, value in lun.claims if key != "worm")
            yield f'path = "{self.medium_path(unit)}"' if lun.medium in media.WITH_PATH else f"size = {lun.size}"
            if lun.medium in ("disc", "tape", "changer"):
                yield from ["ro = true"] * lun.readonly
                continue
            if lun.medium != "block":
                yield f'provisioning = "{"thin" if lun.thin else "full"}"'
            yield from (f"bs = {lun.block}", f"physical_bs = {lun.physical}", f"ro = {toml(lun.readonly)}")
            yield from (f"removable = {toml(lun.removable)}", f"write_cache = {toml(lun.write_cache)}", *[f"atomic_bs = {lun.atomic}"] * bool(lun.atomic))
            if lun.encrypted:
                yield f'encrypt = "{self.secret_path()}"'

    def portals(self):
        listens = (line for line in self.config_lines() if line.startswith("listen = "))
        addresses = (json.loads(line.removeprefix("listen = ")).rsplit(":", 1) for line in listens)
        return {(host.strip("[]"), int(port)) for host, port in addresses}

    def stop(self):
        """Asks it to end; that it does not end as it should is an error."""
        faults, asked, code = [], self.process is not None, 0
        if asked:
            if self.process.poll() is not None:
                faults = ["it ended before it was asked"]
            try:
                faults = faults or ending.bugs(self.admin("status"))
            finally:
                code = super().stop()
        ending.expect_sound("targe", faults, code, self.log_of_this_run())
        return code if asked else None

    def admin(self, what):
        """What the daemon tells: `status`, `sessions` or `luns`, as JSON."""
        command = [self.binary, what, "--json", "--socket", os.path.join(self.folder, "admin", "admin.sock")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_MAX_S)
        if done.returncode != 0:
            raise RuntimeError(f"targe {what}: {done.stderr[-300:]}; {self.log_tail()}")
        return done.stdout

    def log_of_this_run(self):
        """What it said since this rig started it for the first time."""
        with open(self.log_path(), "rb") as log:
            log.seek(self.log_begins)
            return log.read().decode(errors="replace")

    def reload(self):
        """Applies the export as it is described now to the running server."""
        self.write_config()
        self.process.send_signal(signal.SIGHUP)


class Istgt(Server):
    """Debian's istgt. A file stands in for memory; it writes its name of a target behind a base."""

    every_medium_is_a_file = True

    def command(self):
        base, name = self.iqn.split(":")
        auth = "CHAP Mutual" if self.export.outgoing else "CHAP" if self.export.incoming else "None"
        lines = ["[Global]", f'NodeBase "{base}"', f"PidFile {self.folder}/istgt.pid", f"AuthFile {self.folder}/auth.conf",
                 "Timeout 30", "NopInInterval 20", "DiscoveryAuthMethod Auto", f"MaxConnections {self.export.connections}",
                 "MaxR2T 32", "FirstBurstLength 262144", "MaxBurstLength 1048576", "MaxRecvDataSegmentLength 262144",
                 "[UnitControl]", "AuthMethod None", f"Portal UC1 127.0.0.3:{self.port}", "Netmask 127.0.0.1",
                 "[PortalGroup1]", f"Portal DA1 127.0.0.1:{self.port}", f"Portal DA2 127.0.0.2:{self.port}",
                 "[InitiatorGroup1]", 'InitiatorName "ALL"', "Netmask 127.0.0.0/8"]
        lines += ["[LogicalUnit1]", f"TargetName {name}", "Mapping PortalGroup1 InitiatorGroup1",
                  f"AuthMethod {auth}", "AuthGroup AuthGroup1" if self.export.incoming else "", "UnitType Disk", "QueueDepth 32"]
        lines += [f"LUN{unit} Storage {self.medium_path(unit)} Auto" for unit in range(len(self.export.luns))]
        account = [*(self.export.incoming or ()), *(self.export.outgoing or ())]
        accounts = ["[AuthGroup1]", "Auth " + " ".join(f'"{word}"' for word in account)] if account else []
        for path, text in (("istgt.conf", lines), ("auth.conf", accounts)):
            with open(os.open(os.path.join(self.folder, path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write("\n".join(text) + "\n")
        return ["/usr/sbin/istgt", "-D", "-c", os.path.join(self.folder, "istgt.conf")]

    def stop(self):
        self.kill()
        return 0


class Lio(Server):
    """The Linux kernel's target, in a QEMU guest (software emulation) whose memory holds the media."""

    every_medium_is_a_file = False
    guest = None

    def start(self, fresh=True):
        # Who starts no guest needs none of this.
        from guest import image, machine
        if self.port is None:
            self.port = free_port()
        kernel, initramfs = image.prepare(os.path.join(OUT, "guest"))
        forwards = [(host, self.port, 3260) for host in ("127.0.0.1", "127.0.0.2")]
        if not fresh:
            # Its media were in its memory; what it said before it died is kept.
            os.replace(os.path.join(self.folder, "console.log"), os.path.join(self.folder, f"console-{time.time():.0f}.log"))
        self.guest = machine.Guest(kernel, initramfs, self.folder, forwards)
        for command in self.commands():
            self.guest.run(command)

    def commands(self):
        yield from ("modprobe virtio_pci", "modprobe virtio_net", "sleep 0.5", "ifconfig lo 127.0.0.1 up",
                    "ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up", "route add default gw 10.0.2.2")
        yield from ("mount -t configfs none /sys/kernel/config || modprobe configfs && mount -t configfs none /sys/kernel/config",
                    "modprobe target_core_mod", "modprobe target_core_file", "modprobe iscsi_target_mod")
        core, group = "/sys/kernel/config/target/core/fileio_0", f"/sys/kernel/config/target/iscsi/{self.iqn}/tpgt_1"
        yield from (f"mkdir -p {core}", f"mkdir -p {group}/np/0.0.0.0:3260")
        for unit, lun in enumerate(self.export.luns):
            disk, path = f"{core}/d{unit}", f"/tmp/lun{unit}.img"
            yield from (f"truncate -s {lun.size} {path}", f"mkdir {disk}",
                        f"echo fd_dev_name={path},fd_dev_size={lun.size} > {disk}/control",
                        f"echo {lun.block} > {disk}/attrib/block_size || true", f"echo 1 > {disk}/enable",
                        f"echo targe-d{unit} > {disk}/wwn/vpd_unit_serial",
                        f"echo 1 > {disk}/attrib/emulate_tpu || true", f"echo 1 > {disk}/attrib/emulate_tpws || true",
                        f"mkdir -p {group}/lun/lun_{unit}", f"ln -s {disk} {group}/lun/lun_{unit}/d{unit}")
        for attribute, value in (("generate_node_acls", 1), ("demo_mode_write_protect", 0), ("cache_dynamic_acls", 1),
                                 ("authentication", int(bool(self.export.incoming))), ("default_erl", self.export.level)):
            yield f"echo {value} > {group}/attrib/{attribute}"
        for account, suffix in ((self.export.incoming, ""), (self.export.outgoing, "_mutual")):
            if account:
                yield f"printf %s '{account[0]}' > {group}/auth/userid{suffix}"
                yield f"printf %s '{account[1]}' > {group}/auth/password{suffix}"
        for key, policy in zip(("HeaderDigest", "DataDigest"), DIGEST_POLICIES[self.export.digests]):
            yield f"echo {'CRC32C,None' if policy == 'offer' else 'CRC32C'} > {group}/param/{key}"
        yield f"echo {self.export.level} > {group}/param/ErrorRecoveryLevel"
        yield f"echo {self.export.connections} > {group}/param/MaxConnections"
        yield f"echo No > {group}/param/InitialR2T"
        yield f"echo 1 > {group}/enable"

    def alive(self):
        return self.guest is not None and self.guest.process.poll() is None

    def medium_digest(self, unit=0):
        return self.guest.run(f"sha256sum < /tmp/lun{unit}.img").split()[0]

    def cause_of_death(self):
        with open(self.guest.console, errors="replace") as console:
            lines = [re.sub(r"^\[[ .0-9]*\] ", "", line).strip() for line in console]
        said = [line for line in lines if re.match(r"BUG:|RIP: |Kernel panic|general protection", line)]
        return "the guest's kernel died: " + ("; ".join(said[:2]) or "it says nothing")

    def stop(self):
        self.kill()
        return 0

    def kill(self):
        if self.guest is not None:
            self.guest.off()
            self.guest = None


class Spdk(Server):
    """SPDK's iscsi_tgt, which whoever has it names with the variable SPDK: `SPDK=.../build/bin/iscsi_tgt`. It needs neither huge
    pages nor devices here; its one reactor polls, and so takes the whole processor that it is given."""

    every_medium_is_a_file = False
    binary = os.environ.get("SPDK")
    processor = 0
    # Memory, MiB: its pools, and beside them what its RAM disks take.
    pools_mib = 2048

    def command(self):
        if not self.binary:
            raise RuntimeError("the variable SPDK must name SPDK's iscsi_tgt")
        ram_mib = sum(lun.size for lun in self.export.luns if lun.medium == "ram") // MIB
        with open(os.open(self.config_path(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"subsystems": [{"subsystem": name, "config": list(calls)} for name, calls in self.config()]}, file, indent=1)
        return [self.binary, "--no-huge", "-s", str(self.pools_mib + ram_mib), "--no-pci", "--disable-cpumask-locks",
                "--limit-coredump", "-m", hex(1 << self.processor), "-r", "admin.sock", "-c", self.config_path()]

    def config_path(self):
        return os.path.join(self.folder, "spdk.json")

    def config(self):
        yield "bdev", (self.disk(unit, lun) for unit, lun in enumerate(self.export.luns))
        yield "iscsi", self.iscsi()

    def disk(self, unit, lun):
        if lun.medium == "ram":
            return call("bdev_malloc_create", name=f"d{unit}", num_blocks=lun.size // lun.block, block_size=lun.block,
                        physical_block_size=lun.physical)
        return call("bdev_aio_create", name=f"d{unit}", filename=self.medium_path(unit), block_size=lun.block,
                    readonly=lun.readonly)

    def iscsi(self):
        yield call("iscsi_set_options", error_recovery_level=self.export.level,
                   max_connections_per_session=self.export.connections)
        chap = {"disable_chap": True}
        if self.export.incoming:
            secret = dict(zip(("user", "secret", "muser", "msecret"), self.export.incoming + (self.export.outgoing or ())))
            yield call("iscsi_create_auth_group", tag=1, secrets=[secret])
            yield call("iscsi_set_discovery_auth", chap_group=1, require_chap=True, mutual_chap=bool(self.export.outgoing))
            chap = {"chap_group": 1, "require_chap": True, "mutual_chap": bool(self.export.outgoing)}
        yield call("iscsi_create_portal_group", tag=1,
                   portals=[{"host": host, "port": str(self.port)} for host in ("127.0.0.1", "127.0.0.2")])
        yield call("iscsi_create_initiator_group", tag=1, initiators=["ANY"], netmasks=["127.0.0.0/8"])
        header, data = (policy == "require" for policy in DIGEST_POLICIES[self.export.digests])
        yield call("iscsi_create_target_node", name=self.iqn, alias_name="rig", pg_ig_maps=[{"pg_tag": 1, "ig_tag": 1}],
                   luns=[{"bdev_name": f"d{unit}", "lun_id": unit} for unit in range(len(self.export.luns))],
                   queue_depth=64, header_digest=header, data_digest=data, **chap)

    def set_up(self):
        # Its port is open before its targets are there.
        deadline = time.monotonic() + START_MAX_S
        while not self.ask("iscsi_get_target_nodes"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SPDK has no target; {self.log_tail()}")
            time.sleep(0.01)

    def version(self):
        told = subprocess.run([self.binary, "--version"], capture_output=True, text=True, timeout=START_MAX_S).stdout
        return "".join(f" ({word})" for word in told.split()[1:2])

    def ask(self, method, **parameters):
        return ask_spdk(self.process, method, **parameters)


class Gotgt(Server):
    """gotgt, in Go, which whoever has it names with the variable GOTGT. It listens on every address, so that the rig first
    goes into a network namespace of its own, which is without neighbours. It has no memory backend, no CHAP and no digests."""

    every_medium_is_a_file = True
    binary = os.environ.get("GOTGT")

    def command(self):
        if not self.binary:
            raise RuntimeError("the variable GOTGT must name the program gotgt")
        leave_the_network()
        disks = [{"deviceID": 1000 + unit, "path": f"file:{self.medium_path(unit)}", "online": True, "thinProvisioning": lun.thin,
                  "blockShift": lun.block.bit_length() - 1} for unit, lun in enumerate(self.export.luns)]
        portals = [{"id": number, "portal": f"{host}:{self.port}"} for number, host in enumerate(("127.0.0.1", "127.0.0.2"))]
        target = {"tpgts": {"1": [0, 1]}, "luns": {str(unit): disk["deviceID"] for unit, disk in enumerate(disks)}}
        with open(os.path.join(self.folder, "config.json"), "w") as file:
            json.dump({"storages": disks, "iscsiportals": portals, "iscsitargets": {self.iqn: target}}, file, indent=1)
        return [self.binary, "daemon", "--log", "warn", "--port", str(self.port)]

    def environment(self):
        return dict(os.environ, GOSTOR_CONFIG=self.folder)

    def cause_of_death(self):
        with open(os.path.join(self.folder, "server.log"), errors="replace") as log:
            return next((line.strip() for line in reversed(log.readlines()) if line.startswith("panic:")), super().cause_of_death())

    def stop(self):
        self.kill()
        return 0


def call(method, **parameters):
    return {"method": method, "params": parameters}


def ask_spdk(process, method, **parameters):
    """The answer of a process of SPDK to one call at its admin socket, admin.sock in its folder."""
    request = {"jsonrpc": "2.0", "id": 1, "method": method} | ({"params": parameters} if parameters else {})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(START_MAX_S)
        # By way of /proc, since a socket path has room for 107 bytes only.
        connection.connect(f"/proc/{process.pid}/cwd/admin.sock")
        connection.sendall(json.dumps(request).encode())
        text = b""
        while True:
            part = connection.recv(1 << 16)
            if not part:
                raise RuntimeError(f"SPDK gave no answer to {method}")
            text += part
            with contextlib.suppress(ValueError):
                answer = json.loads(text)
                break
    if "error" in answer:
        raise RuntimeError(f"SPDK's {method}: {answer['error']}")
    return answer["result"]


def leave_the_network():
    """Puts this process, and all that it starts from now on, into a network namespace with loopback and nothing else."""
    if leave_the_network.left:
        return
    if LIBC.unshare(CLONE_NEWNET) != 0:
        raise RuntimeError("no network namespace can be had: run this as root, or with `unshare --map-root-user`")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    leave_the_network.left = True


leave_the_network.left = False


def toml(value):
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def die_with_parent():
    """Runs in the child: a rig that is killed leaves no server behind (PR_SET_PDEATHSIG = 1)."""
    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)


# What a rig can be tried on. Those of the second line are in no distribution, and only judged when somebody names them.
COMMON = {"targe": Targe, "tgt": Tgt, "istgt": Istgt, "lio": Lio}
KINDS = COMMON | {"spdk": Spdk, "gotgt": Gotgt}
