"""`targe proxy` as a process, and the peers that its tests need."""

import subprocess

import listening
import relaying
import servers
from verdicts import expect

RUN_MAX_S = 120


class Proxy:
    """`targe proxy` on 127.0.0.1, on the same port after each start."""

    def __init__(self, portal):
        self.portal, self.port, self.process = portal, listening.free_port(), None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        self.process = subprocess.Popen([servers.Targe.binary, "proxy", self.portal, "--listen", f"127.0.0.1:{self.port}"],
                                        stderr=subprocess.PIPE, text=True, preexec_fn=servers.die_with_parent)
        banner = self.process.stderr.readline()
        expect(banner.startswith("listening on"), f"the proxy says {banner}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def stop(self):
        """Asks it to end. Returns its exit code and what it said."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=RUN_MAX_S)
        return self.process.returncode, said


BHS_LEN = 48


def pdu(header, data):
    """A PDU without digests. The lengths in the header are set."""
    return header[:4] + b"\0" + len(data).to_bytes(3, "big") + header[8:] + data + bytes(-len(data) % 4)


def read_pdu(stream):
    """The next PDU without digests: its header, and its data without padding. None at the end of the stream."""
    header = stream.read(BHS_LEN)
    if len(header) < BHS_LEN:
        return None
    data_len = int.from_bytes(header[5:8], "big")
    return header, stream.read(4 * header[4] + data_len + -data_len % 4)[4 * header[4]:][:data_len]


class Redirector(relaying.Relay):
    """A portal on 127.0.0.1 that answers each Login Request with a redirection (RFC 7143 §11.13.5) to `address`."""

    def __init__(self, address, status=0x0101):
        self.address, self.status, self.asked = address, status, 0
        super().__init__()

    def serve(self, near):
        with near, near.makefile("rb") as stream:
            while request := read_pdu(stream):
                self.asked += 1
                header = bytearray(BHS_LEN)
                header[0], header[8:16], header[16:20] = 0x23, request[0][8:16], request[0][16:20]
                header[28:32] = header[32:36] = request[0][24:28]
                header[36:38] = self.status.to_bytes(2, "big")
                near.sendall(pdu(bytes(header), f"TargetAddress={self.address}\0".encode()))
