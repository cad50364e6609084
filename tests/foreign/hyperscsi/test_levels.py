"""How LUNs of one group are protected, each as it demands, and what becomes of those who would have it otherwise."""

import contextlib
import os
import struct
import tempfile
import threading

import pytest

from hyperscsi import network
from hyperscsi import raw
import servers
from hyperscsi.served import asked, discovered, out, protected, serving, told, verify
from verdicts import expect

# Each has hosts and cables of its own.
pytestmark = [pytest.mark.servers("targe"), pytest.mark.own_process(limit_s=500)]
LEVELS = ("none", "integrity", "encrypt")
ENCRYPTED, DATA = 0x20, 0x10


@contextlib.contextmanager
def three_luns(net):
    """A server of one group with a password and a LUN of each least level; yields its folder and the file with the password."""
    with protected("encrypt") as (flags, _):
        password = flags[0].split("=", 1)[1]
        folder = tempfile.mkdtemp(prefix="hyperscsi-", dir=out())
        lines = [f'state_dir = "{folder}/state"', f'admin_socket = "{folder}/admin/s"', "[hyperscsi]", 'interfaces = ["eth0"]',
                 "[[hyperscsi.group]]", 'name = "backup"', f'password_file = "{password}"', 'protection = "none"',
                 "[[target]]", 'name = "iqn.2026-11.com.example:levels"', 'groups = ["backup"]']
        for level in LEVELS:
            lines += ["[[target.lun]]", 'type = "ram"', 'size = "8M"', f'protection = "{level}"']
        with open(os.path.join(folder, "targe.toml"), "w") as file:
            file.write("\n".join(lines) + "\n")
        with serving(net.target, f"--config={folder}/targe.toml", folder=folder):
            yield folder, password


def test_luns_of_a_group_are_protected_each_as_it_demands(seed):
    """What is on the wire of a LUN is protected as the LUN demands, or as the URL does if that is more."""
    with network.Network(9000, wired=False) as net, three_luns(net) as (folder, password):
        found = discovered(net, "backup")
        expect([unit["protection"] for unit in found] == list(LEVELS), f"{found}")
        luns = dict(zip(LEVELS, found))
        for asked_for, least in (("none", "none"), ("none", "integrity"), ("none", "encrypt"), ("integrity", "none"), ("encrypt", "integrity")):
            url = f"{luns[least]['url']}?protection={asked_for}&password_file={password}&connect_timeout=30"
            with Ears(net.target) as ears:
                verify(net, url, "--full", "--range=1M")
            want = max(asked_for, least, key=LEVELS.index)
            expect(set(ears.data) == {want}, f"asked for {asked_for}, LUN of {least}: data came as {ears.data}")
        refused = asked(net.target, folder, "status")["hyperscsi"]["refused_level"]
        expect(refused >= 2, f"{refused} commands were refused for their level")


class Ears:
    """Hears on an interface how the data that comes in is protected."""

    def __init__(self, host):
        self.frames = host.frames()
        self.frames.settimeout(0.1)
        self.data = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        # What came meanwhile waits in the socket.
        self.stop.set()
        self.thread.join()
        self.frames.close()

    def run(self):
        while True:
            try:
                heard = self.frames.recv(65550)[14:]
            except TimeoutError:
                if self.stop.is_set():
                    return
                continue
            cmd, flags = heard[4], heard[5]
            # A command with its first data behind it, or data alone.
            if cmd & 0x7F == 0 and (flags & DATA or len(heard) > 1000):
                level = LEVELS[0 if not cmd & 0x80 else 2 if flags & ENCRYPTED else 1]
                self.data[level] = self.data.get(level, 0) + 1


def test_a_weakened_handshake_comes_to_nothing(seed):
    """Who sits on the wire and strikes what is offered or chosen off a handshake gets none; nor does a password open what has none."""
    with network.Network() as net, three_luns(net) as (folder, password):
        with net.wire():
            url = discovered(net, "backup")[0]["url"]
        for kind, what in ((3, "offer"), (4, "choice")):
            with Middle(net.between, lambda payload: stripped(payload, kind)) as middle:
                result = net.initiator.run(servers.Targe.binary, "info", f"{url}?password_file={password}&protection=integrity&connect_timeout=6",
                                           check=False)
                expect(middle.changed > 0, f"there was no {what}")
                expect(result.returncode == 1 and not result.stdout, f"with another {what}: exit code {result.returncode}: {result.stdout}")
            expect("session of" not in told(folder), f"with another {what} there was a session: {told(folder)[-600:]}")
        with Middle(net.between, lambda payload: payload):
            verify(net, f"{url}?password_file={password}", "--full", "--range=64K")
    with network.Network(wired=False) as net, serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:4M"):
        with tempfile.NamedTemporaryFile("w", dir=out()) as file:
            file.write("a password\n")
            file.flush()
            place = discovered(net, "backup")[0]["url"]
            result = net.initiator.run(servers.Targe.binary, "info", f"{place}?password_file={file.name}", check=False)
            expect(result.returncode == 1 and "nothing would be protected" in result.stderr, f"{result.returncode}: {result.stderr}")
            result = net.initiator.run(servers.Targe.binary, "info", f"{place}?protection=integrity", check=False)
            expect(result.returncode != 0 and "needs the group's password" in result.stderr, f"{result.returncode}: {result.stderr}")


def stripped(payload, kind):
    """A handshake frame of a kind with every level but the lowest taken out of its parameters, and the right CRC."""
    head, rest = payload[:raw.HEADER_LEN], bytearray(payload[raw.HEADER_LEN:])
    length, = struct.unpack_from(">H", head, 6)
    if head[4] not in (raw.NEGOTIATE, raw.NEGOTIATED) or rest[0] != kind:
        return payload
    parameters = raw.item(raw.PARAMETERS, raw.parameters())[:3]
    at = bytes(rest).index(parameters) + 3
    at = bytes(rest).index(b"\4\0\1", at) + 3
    rest[at] = 1
    body = bytes(head) + bytes(rest[:length])
    return body + struct.pack(">I", raw.crc32c(body))


class Middle:
    """A wire that passes frames on as `change` makes them."""

    def __init__(self, host, change):
        self.change, self.changed = change, 0
        a, b = host.frames("a0"), host.frames("b0")
        self.sides = [(a, b), (b, a)]
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=side) for side in self.sides]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        for frames, _ in self.sides:
            frames.close()

    def run(self, ears, mouth):
        ears.settimeout(0.1)
        while not self.stop.is_set():
            with contextlib.suppress(TimeoutError):
                heard = ears.recv(65550)
                payload = self.change(heard[14:])
                self.changed += payload != heard[14:]
                mouth.send(heard[:14] + payload)
