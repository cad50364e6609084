"""Peers that may only discover, or that log in, and that do not read: they delay an upgrade by a second at most, and end with it."""

import socket
import struct
import time

import pytest

from hostile.initiator import Dropped, Session, connect, login_pdu, pdu
from servers import MIB, Export, Lun
from upgrade.held import Answering, Held
from upgrade.live import END_MAX_S, Late, Replaced, begun_anew
from verdicts import expect, same

TEXT, LOGOUT, FINAL, IMMEDIATE = 0x04, 0x06, 0x80, 0x40
NAMES, NAME_LEN = 40, 200
# The least segments and receive buffer, so that the kernel takes little of what a peer does not read.
SEGMENT, BUFFER = 536, 4096
# The most that logins may delay an upgrade, and some time for the rest of it, seconds.
UPGRADE_MAX_S = 4
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(900)]


class ManyTargets(Replaced):
    """What it tells in a discovery is long."""

    def config_lines(self):
        yield from super().config_lines()
        for number in range(NAMES):
            name = f"iqn.2026-11.org.targe:{number}-".ljust(NAME_LEN, "x")
            yield from ("[[target]]", f'name = "{name}"', "[[target.lun]]", 'type = "null"', "size = 1048576")


def narrow(port):
    """A connection whose peer can send little before this end reads."""
    stream = socket.socket()
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    stream.settimeout(END_MAX_S)
    stream.connect(("127.0.0.1", port))
    return stream


class Discovery(Session):
    """A discovery session that asks for the targets again and again, and reads no answer."""

    def __init__(self, port):
        keys = ["SessionType=Discovery", "MaxRecvDataSegmentLength=262144"]
        over = narrow(port)
        over.sendall(login_pdu(["InitiatorName=iqn.2026-11.org.targe:slow", *keys], True, 1, 3))
        self.socket, self.bytes = over, b""
        header, _ = self.receive()
        expect(header[0] == 0x23 and header[36] == 0, f"the login is answered with {header.hex()}")

    def ask(self, logs_out):
        """Sends all requests at once."""
        data = b"SendTargets=All\0"
        requests = [pdu(TEXT | IMMEDIATE, FINAL, itt, data, at20=0xFFFFFFFF, at24=1, at28=0) for itt in range(1, 41)]
        if logs_out:
            requests.append(pdu(LOGOUT | IMMEDIATE, FINAL, 99, at24=1))
        self.socket.sendall(b"".join(requests))

    def read_to_end(self):
        length = 0
        try:
            while data := self.socket.recv(1 << 20):
                length += len(data)
        except ConnectionError:
            pass
        return length


def replaced_beside_slow_readers(server, initiator, logs_out):
    silent, slow = connect(server.port), Discovery(server.port)
    slow.ask(logs_out)
    time.sleep(0.2)
    began = time.monotonic()
    with Answering([initiator]):
        answer, why = server.upgrade()
    took = time.monotonic() - began
    expect(answer, f"an upgrade is refused: {why}")
    server.expect_replaced_ended()
    same("what the silent peer receives", silent.recv(1), b"")
    length = slow.read_to_end()
    print(f"   the discovery was given {length} bytes", flush=True)
    same("sense of a session that moved", initiator.sense(), None)
    if answer["attempts"] > 1 or took > UPGRADE_MAX_S:
        raise Late(f"{answer} after {took} s")


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
@pytest.mark.parametrize("logs_out", [False, True], ids=["stays", "logs out"])
def test_a_discovery_that_is_not_read_ends(tmp_path, reactor, logs_out):
    server = ManyTargets(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.reactor = reactor
    server.start()
    try:
        initiator = Held(server.port, server.iqn, "iqn.2026-11.org.targe:held")
        initiator.ready()
        begun_anew(replaced_beside_slow_readers, server, initiator, logs_out)
        initiator.close()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()
