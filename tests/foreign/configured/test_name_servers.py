"""Name servers (iSNS): Debian's isnsd, asked by Debian's isnsadm, and servers of our own that lie. It judges targe alone."""

import contextlib
import json
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

import listening
import pytest
import servers
from verdicts import eventually

WAIT_S = 60
SECOND = "iqn.2026-01.com.example:second"
# The functions of RFC 4171 §4.1.3, and the flags of a whole response of a server.
REGISTER, DEREGISTER, REGISTER_FOR_CHANGES, INQUIRY = 1, 4, 5, 0xD
SERVER_FLAGS = 0x4C00


class Isnsd:
    """Debian's iSNS server on a free port, with a database that `start` keeps or makes anew."""

    def __init__(self, folder):
        self.folder, self.port, self.process = folder, listening.free_port(), None
        (folder / "database").mkdir(parents=True)
        self.settings = folder / "isnsd.conf"
        self.settings.write_text(f"""SourceName = iqn.2026-01.com.example:isnsd
BindAddress = 127.0.0.1:{self.port}
Security = 0
Database = {folder}/database
PIDFile = {folder}/pid
ControlSocket = {folder}/control
SLPRegister = 0
RegistrationPeriod = 10s
DefaultDiscoveryDomain = 1
ESIMinInterval = 2s
ESIMaxInterval = 2s
ESIRetries = 3
""")
        self.admin = folder / "admin.conf"
        self.admin.write_text(f"""SourceName = iqn.2026-01.com.example:admin
ServerAddress = 127.0.0.1:{self.port}
ControlSocket = {folder}/control
Security = 0
""")

    def start(self):
        log = open(self.folder / "isnsd.log", "a")
        self.process = subprocess.Popen(["isnsd", "-f", "-d", "all", "-c", str(self.settings)], stdout=log, stderr=log,
                                        preexec_fn=servers.die_with_parent)
        until(lambda: listening.listens("127.0.0.1", self.port), "isnsd listens")

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def forget(self):
        self.stop()
        shutil.rmtree(self.folder / "database")
        (self.folder / "database").mkdir()

    def run(self, *arguments):
        done = subprocess.run(["isnsadm", "--local", "-c", str(self.admin), *arguments], capture_output=True, text=True, timeout=WAIT_S)
        return done.stdout + done.stderr

    def values(self, kind, attribute):
        return [value.strip('"') for value in re.findall(rf"{re.escape(attribute)} = (.*)", self.run("--list", kind))]

    def nodes(self):
        return self.values("nodes", "iSCSI name")

    def portal_groups(self):
        """The portal group tag of each target at each address that has one."""
        found, name, address = {}, None, None
        for key, value in re.findall(r"Portal group (name|address|tag) = (.*)", self.run("--list", "portal-groups")):
            if key == "name":
                name = value.strip('"')
            elif key == "address":
                address = value
            elif value.isdigit():
                found[name, address] = int(value)
        return found

    def log(self):
        return (self.folder / "isnsd.log").read_text(errors="replace")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


class Registered(servers.Targe):
    """Name servers, and a second target on the second portal alone."""

    name_servers = ()
    second_target = True

    def config_lines(self):
        yield "isns = { servers = [%s] }" % ", ".join(f'"{at}"' for at in self.name_servers)
        for line in super().config_lines():
            yield line
            if line.startswith('listen = "127.0.0.2:'):
                yield from ('name = "other"', "tag = 7")
        if self.second_target:
            yield from ("[[target]]", f'name = "{SECOND}"', 'alias = "the second"', 'portals = ["other"]',
                        '[[target.lun]]', 'type = "ram"', 'size = "1M"')

    def states(self):
        return {one["server"]: (one["state"], one["error"]) for one in json.loads(self.admin("status"))["name_servers"]}

    def state(self, address):
        """The state of one name server, and its error. The daemon listens before it has any to tell."""
        return self.states().get(address, ("not told", None))


def until(holds, what, limit_s=WAIT_S):
    eventually(holds, what, limit_s)


def target_with(tmp_path, *name_servers):
    server = Registered(tmp_path / "server", servers.Export(luns=(servers.Lun(size=servers.MIB),)))
    server.name_servers = name_servers
    return server


@pytest.fixture
def isnsd(tmp_path):
    if not shutil.which("isnsd") or not shutil.which("isnsadm"):
        pytest.skip("isnsd and isnsadm are missing")
    with Isnsd(tmp_path / "isnsd") as server:
        yield server


def test_targets_are_registered_kept_up_to_date_and_removed(tmp_path, isnsd):
    server = target_with(tmp_path, f"127.0.0.1:{isnsd.port}")
    with server:
        until(lambda: sorted(isnsd.nodes()) == sorted([server.iqn, SECOND]), "both targets are registered")

        def told():
            """What is registered. A server forgets all of it while a machine stands still for its period, and is told again."""
            values = [("nodes", "iSCSI node type"), ("nodes", "iSCSI alias"), ("entities", "Entity identifier"), ("portals", "Portal IP address"),
                      ("portals", "Portal TCP/UDP port")]
            return [sorted(isnsd.values(*value)) for value in values] + [isnsd.portal_groups()]

        # The second target has no way through the first portal.
        wanted = [["Target", "Target"], ["the second"], [server.iqn], ["127.0.0.1", "127.0.0.2"], [f"{server.port}/tcp"] * 2,
                  {(server.iqn, "127.0.0.1"): 1, (server.iqn, "127.0.0.2"): 7, (SECOND, "127.0.0.2"): 7}]
        until(lambda: told() == wanted, lambda: f"{told()} is {wanted}")
        # A server that inquires of a busy machine may not wait for an answer; it inquires again.
        answered, missed = "Good ESI response from [::ffff:127.0.0.1]", "No ESI response"
        until(lambda: isnsd.log().count(answered) > 2 * isnsd.log().count(missed), "inquiries are answered")
        assert "Faked ESI" not in isnsd.log()
        # A host that uses iSNS finds them.
        host = tmp_path / "host.conf"
        host.write_text(f"SourceName = iqn.2026-01.com.example:host\nServerAddress = 127.0.0.1:{isnsd.port}\nSecurity = 0\n")
        def found():
            for action in (("--register", "initiator=iqn.2026-01.com.example:host"), ("--query", "iscsi-node-type=target")):
                done = subprocess.run(["isnsadm", "-c", str(host), *action], capture_output=True, text=True, timeout=WAIT_S)
            return done.stdout + done.stderr

        until(lambda: server.iqn in (said := found()) and SECOND in said, lambda: f"a host finds both targets: {found()}")
        # A reload takes a target away, and brings it back.
        server.second_target = False
        server.reload()
        until(lambda: SECOND not in isnsd.nodes(), "the removed target is gone")
        server.second_target = True
        server.reload()
        until(lambda: SECOND in isnsd.nodes(), "the target is back")
        # Somebody removes one target; the other one is told, and targe registers both again.
        isnsd.run("--deregister", f"iscsi-name={SECOND}")
        until(lambda: SECOND in isnsd.nodes(), "the deregistered target is registered again")
        # The server loses everything.
        isnsd.forget()
        isnsd.start()
        until(lambda: SECOND in isnsd.nodes(), "the server that forgot the targets knows them again")
        until(lambda: server.states() == {f"127.0.0.1:{isnsd.port}": ("registered", None)}, lambda: f"the states are good: {server.states()}")
    until(lambda: not {server.iqn, SECOND} & set(isnsd.nodes()), lambda: f"no target of a daemon that has stopped is left: {isnsd.nodes()}")


def test_a_registration_outlives_its_period(tmp_path, isnsd):
    server = target_with(tmp_path, f"127.0.0.1:{isnsd.port}")
    with server:
        until(lambda: server.iqn in isnsd.nodes(), "the target is registered")
        # A machine that stands still for the time of a renewal loses a registration, and not one after the other.
        losses = 0
        while losses < 3 and not stays_registered(server, isnsd, 12):  # The period is 10 s.
            losses += 1
            until(lambda: server.iqn in isnsd.nodes(), "the target is registered again")
        assert losses < 3, server.log_tail()


def stays_registered(server, isnsd, seconds):
    """Whether a target is registered all the time, and is not registered again."""
    eventually(lambda: "registered as" in server.log_of_this_run(), "the log says that the target is registered")
    before, end = server.log_of_this_run().count("registered as"), time.monotonic() + seconds
    while time.monotonic() < end:
        if server.iqn not in isnsd.nodes():
            return False
        time.sleep(0.5)
    return server.log_of_this_run().count("registered as") == before


@contextlib.contextmanager
def liar(answer):
    """A name server that gives each request to `answer`, and sends what that returns. `None` closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def serve():
            while not ended.is_set():
                try:
                    connection = listener.accept()[0]
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(WAIT_S)
                    while not ended.is_set():
                        header = connection.recv(12, socket.MSG_WAITALL)
                        if len(header) < 12:
                            break
                        _, function, length, _, transaction, _ = struct.unpack(">6H", header)
                        payload = connection.recv(length, socket.MSG_WAITALL)
                        said = answer(function, transaction, payload)
                        if said is None:
                            break
                        connection.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(15)


def response(function, transaction, payload=struct.pack(">I", 0), flags=SERVER_FLAGS, version=1):
    return struct.pack(">6H", version, function | 0x8000, len(payload), flags, transaction, 0) + payload


def attribute(tag, value):
    return struct.pack(">II", tag, len(value)) + value


LIES = {
    "another version": (lambda f, t, p: response(f, t, version=2), "the server sent nonsense: a message has version 2, not 1"),
    "parts": (lambda f, t, p: response(f, t, flags=0x4400), "the server sent nonsense: a message is split into several PDUs"),
    "authenticated": (lambda f, t, p: response(f, t, flags=0x6C00), "a message is authenticated, which targe does not support"),
    "another transaction": (lambda f, t, p: response(f, t ^ 1), "the server answered function 0x8001 to request 0x0001"),
    "another function": (lambda f, t, p: response(f + 1, t), "the server answered function 0x8002 to request 0x0001"),
    "another entity": (lambda f, t, p: response(f, t, bytes(4) + attribute(1, b"somebody else\0\0\0")),
                       'the server registered the entity "somebody else" instead'),
    "an attribute past the end": (lambda f, t, p: response(f, t, bytes(4) + struct.pack(">II", 1, 1 << 31)),
                                  "the server sent nonsense: an attribute has a wrong length"),
    "a refusal": (lambda f, t, p: response(f, t, struct.pack(">I", 8)), "the server refused the registration: Source Unauthorized (status 8)"),
    "closes": (lambda f, t, p: None, "the server closed the connection"),
}


def test_servers_that_lie_are_refused_and_an_honest_one_beside_them_is_used(tmp_path):
    names = list(LIES)
    honest = lambda function, transaction, payload: response(function, transaction)
    for part in (names[:5], names[5:]):
        with contextlib.ExitStack() as stack:
            addresses = [stack.enter_context(liar(LIES[name][0])) for name in part] + [stack.enter_context(liar(honest))]
            server = target_with(tmp_path / part[0], *addresses)
            with server:
                expected = {address: ("failed", LIES[name][1]) for address, name in zip(addresses, part)}
                expected[addresses[-1]] = ("registered", None)

                def all_told():
                    states = {at: server.state(at) for at in expected}
                    return all(states[at][0] == state and (why is None or why in (states[at][1] or "")) for at, (state, why) in expected.items())

                until(all_told, lambda: f"the states are {expected}, not {server.states()}")
                for address, name in zip(addresses, part):
                    until(lambda: f"name server {address}: " in server.log_of_this_run(), f"the log tells of {name}")
                assert json.loads(server.admin("status"))["targets"][0]["luns"] == 1


def test_a_server_that_says_nothing_delays_neither_reloads_nor_the_stop(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        server = target_with(tmp_path, address)
        with server:
            until(lambda: server.state(address)[0] in ("starting", "failed"), "the server is silent")
            server.second_target = False
            server.reload()
            until(lambda: len(json.loads(server.admin("status"))["targets"]) == 1, "the target is removed")
            until(lambda: server.state(address) == ("failed", "the server does not answer"), "the silence is told")


def test_a_server_that_is_not_there_is_told_once_and_found_later(tmp_path, isnsd):
    isnsd.stop()
    address = f"127.0.0.1:{isnsd.port}"
    server = target_with(tmp_path, address)
    with server:
        until(lambda: server.state(address) == ("failed", "connection refused"), "the absence is told")
        isnsd.start()
        until(lambda: server.iqn in isnsd.nodes(), "the target is registered")
        until(lambda: "connection refused" in server.log_of_this_run(), "the log tells of the absence")
        assert server.log_of_this_run().count("connection refused") == 1


def attributes(payload):
    """The attributes of a message, as tags and values."""
    while payload:
        tag, length = struct.unpack(">II", payload[:8])
        yield tag, payload[8:8 + length]
        payload = payload[8 + length:]


def test_a_server_with_a_virtual_address_may_inquire_from_another_one(tmp_path):
    registered = []

    def honest(function, transaction, payload):
        if function == REGISTER:
            registered.append(list(attributes(payload)))
        return response(function, transaction)

    with liar(honest) as address:
        server = target_with(tmp_path, address)
        with server:
            until(lambda: server.state(address) == ("registered", None), "the targets are registered")
            # The tags of RFC 4171 §6.1: the entity, the address and the port of a portal, and the ESI port.
            told = {tag: value for tag, value in reversed(registered[0])}
            port = struct.unpack(">I", told[20])[0] & 0xFFFF
            asked = b"".join(attribute(tag, told[tag]) for tag in (1, 16, 17))
            # The second inquiry comes through the same connection.
            with socket.create_connection(("127.0.0.1", port), WAIT_S, ("127.0.0.77", 0)) as inquirer:
                for transaction in (1, 2):
                    inquirer.sendall(struct.pack(">6H", 1, INQUIRY, len(asked), SERVER_FLAGS, transaction, 0) + asked)
                    header = inquirer.recv(12, socket.MSG_WAITALL)
                    assert len(header) == 12, "the connection was closed"
                    _, function, length, _, answered, _ = struct.unpack(">6H", header)
                    answer = inquirer.recv(length, socket.MSG_WAITALL)
                    assert (function, answered, answer) == (INQUIRY | 0x8000, transaction, bytes(4) + asked)
