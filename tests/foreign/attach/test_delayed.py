"""What a killed `targe attach` has sent and the network delivers late must not overwrite what its successor wrote."""

import mmap
import os
import socket
import struct
import threading
import time

import pytest

import servers
from attach.attached import Attached, fresh_folder, refused
from attach.disks import need_fuse
from relaying import Relay, carry_both_ways, close
from servers import MIB, Export, Lun
from serving import serving
from verdicts import eventually, expect

pytestmark = [pytest.mark.servers("targe")]
AT, LEN = 4096, 4096
# How long the target takes to execute what is released, seconds.
EXECUTED_S = 1


class Holding(Relay):
    """Carries connections to a target. What the initiator of one that is held sends arrives when it is released."""

    def __init__(self, port):
        self.target = port
        self.connections = []
        super().__init__()

    def serve(self, near):
        far = socket.create_connection(("127.0.0.1", self.target))
        connection = Held(near, far)
        self.connections.append(connection)
        carry_both_ways(near, far, connection.carry)


class Held:
    def __init__(self, near, far):
        self.near, self.far = near, far
        self.lock = threading.Lock()
        self.held = None

    def hold(self):
        with self.lock:
            self.held = b""

    def carry(self, source, sink):
        upstream = source is self.near
        try:
            while data := source.recv(1 << 16):
                with self.lock:
                    if upstream and self.held is not None:
                        self.held += data
                        continue
                sink.sendall(data)
        except OSError:
            pass
        # The network does not deliver the end of a held connection either.
        if not upstream or self.held is None:
            close(source, sink)

    def release(self):
        try:
            self.far.sendall(self.held)
        except OSError:
            pass  # The target has closed it.
        time.sleep(EXECUTED_S)
        close(self.near, self.far)


class NbdClient:
    """Speaks as much of the NBD protocol as it takes to leave a write without an answer."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.receive(18)
        self.socket.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
        self.receive(10)
        self.handle = 0

    def receive(self, length):
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            assert part, "the server closed the connection"
            data += part
        return data

    def send(self, command, at, length, data=b""):
        self.handle += 1
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, command, self.handle, at, length) + data)

    def finish(self, length=0):
        _, error, _ = struct.unpack(">IIQ", self.receive(16))
        assert error == 0, f"error {error}"
        return self.receive(length)

    def begin_write(self, byte):
        self.send(1, AT, LEN, byte * LEN)

    def write(self, byte):
        self.begin_write(byte)
        self.finish()
        self.send(3, 0, 0)
        self.finish()

    def read(self):
        self.send(0, AT, LEN)
        return self.finish(LEN)[:1]


class FileClient:
    """Writes to the file of a FUSE mount."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT)

    def begin_write(self, byte):
        buffer = mmap.mmap(-1, LEN)
        buffer.write(byte * LEN)
        threading.Thread(target=self.try_to_write, args=(buffer,), daemon=True).start()

    def try_to_write(self, buffer):
        try:
            os.pwrite(self.file, buffer, AT)
        except OSError:
            pass  # The server was killed.

    def write(self, byte):
        buffer = mmap.mmap(-1, LEN)
        buffer.write(byte * LEN)
        os.pwrite(self.file, buffer, AT)
        os.fsync(self.file)

    def read(self):
        buffer = mmap.mmap(-1, LEN)
        os.preadv(self.file, [buffer], AT)
        return buffer[:1]


class ThroughRelay(Attached):
    """A disk that is reached through a relay."""

    def __init__(self, server, way, relay):
        super().__init__(server, way)
        self.urls = [url.replace(f":{server.port}/", f":{relay.port}/") for url in self.urls]

    def client(self):
        return NbdClient(self.place) if self.way == "nbd" else FileClient(self.address)

    def kill(self):
        self.process.kill()
        self.end()


def leave_a_write_behind(server, way, relay):
    """Kills a server of which a write waits in the network; returns the connection that carries it."""
    with ThroughRelay(server, way, relay) as first:
        client = first.client()
        client.write(b"A")
        old = relay.connections[-1]
        old.hold()
        client.begin_write(b"B")
        eventually(lambda: len(old.held) >= LEN, lambda: f"the bytes of the write are held: {len(old.held)} of {LEN}")
        first.kill()
    return old


def newest_after(server, way, relay, old):
    """Takes the disk over, and returns what a block has after a newer write and then the write that waited."""
    with ThroughRelay(server, way, relay) as second:
        client = second.client()
        # The client repeats what got no answer, and goes on.
        client.write(b"B")
        client.write(b"C")
        old.release()
        found = client.read()
        if way == "fuse":
            os.close(client.file)
    return found


@pytest.mark.parametrize("way", ["nbd", "fuse"])
def test_late_writes_of_a_killed_server_change_nothing(request, kind, server_name, way):
    if way == "fuse":
        need_fuse()
    server = kind(fresh_folder(request, server_name), Export(luns=(Lun(size=8 * MIB),)))
    with serving(request, request.node.name, server), Holding(server.port) as relay:
        old = leave_a_write_behind(server, way, relay)
        found = newest_after(server, way, relay, old)
        expect(found == b"C", f"the block has {found} after {len(old.held)} bytes of the dead server were delivered")


def with_another_portal_group(kind):
    """The kind of server, with one more portal, of another portal group."""
    class Grouped(kind):
        other_port = None

        def config_lines(self):
            self.other_port = self.other_port or servers.free_port()
            yield from super().config_lines()
            yield from ("[[portal]]", f'listen = "127.0.0.1:{self.other_port}"', "tag = 2")
    return Grouped


@pytest.mark.parametrize("way", ["nbd", "fuse"])
def test_a_disk_is_taken_over_only_in_the_portal_group_of_the_dead_session(request, kind, server_name, way):
    """A target ends the session of the dead server only if the next one logs in in the same portal group."""
    if way == "fuse":
        need_fuse()
    server = with_another_portal_group(kind)(fresh_folder(request, server_name), Export(luns=(Lun(size=8 * MIB),)))
    with serving(request, request.node.name, server), Holding(server.port) as relay:
        old = leave_a_write_behind(server, way, relay)
        elsewhere = ThroughRelay(server, way, relay)
        record = f"{elsewhere.place}.session"
        elsewhere.urls = [url.replace(f":{relay.port}/", f":{server.other_port}/") for url in elsewhere.urls]
        code, said = refused(elsewhere.command())
        expect(code == 1 and "portal group 1" in said and f"remove {record}" in said, f"in another group it ends with {code}: {said}")
        found = newest_after(server, way, relay, old)
        expect(found == b"C", f"the block has {found} after {len(old.held)} bytes of the dead server were delivered")
        expect(not os.path.exists(record), "the record is left after a logout")
        # After a logout, any portal group will do. The socket is that of the other URL.
        if way == "nbd":
            os.remove(f"{elsewhere.place}.disk")
        with elsewhere:
            expect(os.path.exists(record), "there is no record")
        expect(not os.path.exists(record), "the record is left after a logout")
