"""Hosts and cables of a rig's own: network namespaces joined by virtual cables, with a wire of ours between them.

A namespace lives as long as the process that holds it, which dies with the rig, however that ends; its interfaces vanish
with it. So there is nothing to clean up, and nothing of it is seen outside.
"""

import contextlib
import ctypes
import json
import signal
import socket
import subprocess
import time

import namespaces
import servers

ETHER_TYPE = 0x889A
# Longest a cable may take to come up, and a process to end, seconds.
PATIENCE_S = 120
CLONE_NEWNET = 0x40000000
# SO_RCVBUFFORCE, and what a socket that receives frames asks for.
RCVBUFFORCE, BUFFER_BYTES = 33, 32 << 20
LIBC = ctypes.CDLL(None, use_errno=True)


class NoNamespaces(Exception):
    """There can be no hosts and cables here; its text says why."""


def be_able():
    """Goes on as root of a namespace of users where this is not root, and sees that hosts and cables can be made."""
    if not namespaces.become_root():
        raise NoNamespaces("this is not root, and there is no namespace of users to be had")
    if not namespaces.is_real_root():
        # Only to a network of its own may root of such a namespace come back.
        servers.leave_the_network()
    with Network(wired=False):
        pass


class Host:
    """A network namespace."""

    def __init__(self):
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--", "sh", "-c", "echo; exec sleep infinity"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=servers.die_with_parent)
        if not self.holder.stdout.readline():
            why = self.holder.stderr.read().decode(errors="replace")
            self.holder.wait()
            raise NoNamespaces(f"no network namespaces here: {why}")
        self.run("ip", "link", "set", "lo", "up")
        self.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1", check=False)

    def inside(self, *command):
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--", *map(str, command)]

    def run(self, *command, check=True, timeout=120, **options):
        result = subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=timeout, **options)
        if check and result.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: exit code {result.returncode}: {result.stderr[-600:]}")
        return result

    def start(self, *command, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        return subprocess.Popen(self.inside(*command), preexec_fn=servers.die_with_parent, **options)

    def socket(self, *arguments):
        """A socket in the namespace, for this process."""
        with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{self.holder.pid}/ns/net") as theirs:
            enter(theirs)
            try:
                return socket.socket(*arguments)
            finally:
                enter(ours)

    def frames(self, interface="eth0", ether_type=ETHER_TYPE):
        """A socket for whole frames on an interface."""
        frames = self.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        frames.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
        with contextlib.suppress(OSError):
            frames.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, BUFFER_BYTES)
        frames.bind((interface, ether_type))
        return frames

    def need_long_buffers(self):
        """Skips the case where a socket cannot have more than net.core.rmem_max: a sender that nothing holds back overruns it."""
        with self.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as frames:
            try:
                frames.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, BUFFER_BYTES)
            except PermissionError:
                # Benchmarks use this module too, by a Python that need not have pytest.
                import pytest
                pytest.skip("receive buffers beyond net.core.rmem_max need root outside of any user namespace")

    def up(self, interface, up=True):
        self.run("ip", "link", "set", interface, "up" if up else "down")

    def mac(self, interface="eth0"):
        return bytes.fromhex(json.loads(self.run("ip", "-j", "link", "show", interface).stdout)[0]["address"].replace(":", ""))

    def end(self):
        self.holder.kill()
        self.holder.wait()


class Network:
    """An initiator's host and a target's, with `cables` between their eth0, eth1, …; each goes through a third host where a
    wire can lie (`wired`), or straight."""

    def __init__(self, mtu=1500, cables=1, wired=True):
        self.hosts = []
        try:
            self.initiator, self.target = self.host(), self.host()
            self.between = self.host() if wired else None
            for number in range(cables):
                ends = [(self.initiator, f"eth{number}"), (self.target, f"eth{number}")]
                if wired:
                    self.join(ends[0], (self.between, f"a{number}"), mtu)
                    self.join((self.between, f"b{number}"), ends[1], mtu)
                else:
                    self.join(ends[0], ends[1], mtu)
        except BaseException:
            self.end()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def host(self):
        self.hosts.append(Host())
        return self.hosts[-1]

    def join(self, one, other, mtu):
        (here, near), (there, far) = one, other
        result = here.run("ip", "link", "add", near, "mtu", mtu, "type", "veth", "peer", "name", far, "mtu", mtu, "netns",
                          there.holder.pid, check=False)
        if result.returncode != 0:
            raise NoNamespaces(f"no virtual cables here: {result.stderr}")
        for host, interface in (one, other):
            host.up(interface)
        deadline = time.monotonic() + PATIENCE_S
        for host, interface in (one, other):
            while json.loads(host.run("ip", "-j", "link", "show", interface).stdout)[0]["operstate"] != "UP":
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{interface} does not come up")
                time.sleep(0.01)

    def set_mtu(self, mtu, cable=0):
        """Changes the MTU of a whole cable."""
        for host, interface in self.along(cable):
            host.run("ip", "link", "set", interface, "mtu", mtu)

    def along(self, cable=0):
        yield self.initiator, f"eth{cable}"
        if self.between:
            yield self.between, f"a{cable}"
            yield self.between, f"b{cable}"
        yield self.target, f"eth{cable}"

    @contextlib.contextmanager
    def wire(self, *flags, cable=0):
        """Lays a wire; yields it. Its report is there once it ended."""
        wire = Wire(self.between, cable, flags)
        try:
            yield wire
        finally:
            wire.end()

    def end(self):
        for host in self.hosts:
            host.end()


class Wire:
    """`targe lab wire` at work. With its report, once it ended."""

    def __init__(self, host, cable, flags):
        self.report = None
        self.process = host.start(servers.Targe.binary, "lab", "wire", f"--a=a{cable}", f"--b=b{cable}", *flags)
        line = self.process.stderr.readline()
        if "between" not in line:
            self.process.kill()
            raise RuntimeError(f"lab wire: {line}{self.process.communicate()[1]}")

    def end(self):
        if self.report is None:
            self.process.send_signal(signal.SIGTERM)
            out, talk = self.process.communicate(timeout=PATIENCE_S)
            if self.process.returncode != 0:
                raise RuntimeError(f"lab wire: exit code {self.process.returncode}: {talk[-400:]}")
            self.report = json.loads(out)
        return self.report


def enter(namespace):
    if LIBC.setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
