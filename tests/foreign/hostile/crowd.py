"""Many connections that misbehave together, driven by one thread: what each sends, whether it reads, how it ends."""

import errno
import selectors
import socket
import struct
import time

from hostile.initiator import connect

# Where `tcpi_last_data_recv`, in milliseconds, stands in `struct tcp_info` (linux/tcp.h): behind eight bytes and eleven words.
TCPI_LAST_DATA_RECV = 8 + 11 * 4


class Crowd:
    """Connections that do not block. Who is dropped leaves by itself; `left` counts them."""

    def __init__(self):
        self.peers = []
        self.dropped = 0
        self.refused = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()

    def arrive(self, port, count, source="127.0.0.1"):
        """Opens connections at once, as fast as the target takes them."""
        for _ in range(count):
            try:
                self.add(connect(port, source))
            except ConnectionError:
                self.refused += 1

    def add(self, socket_):
        socket_.setblocking(False)
        self.peers.append(Peer(socket_))

    def adopt(self, sessions):
        for session in sessions:
            self.add(session.socket)

    def send(self, chunks):
        """Sends the next of `chunks(number)` for each peer, as much as goes without waiting; returns the bytes sent."""
        return sum(peer.send(chunks(number)) for number, peer in enumerate(self.peers) if not peer.gone)

    def look(self, reading=True, wait_s=0):
        """Sees who was dropped. Who does not read learns of its end by an error or a hang-up alone."""
        poll = selectors.PollSelector()
        present = [peer for peer in self.peers if not peer.gone]
        for peer in present:
            poll.register(peer.socket, selectors.EVENT_READ if reading else selectors.EVENT_WRITE, peer)
        deadline = time.monotonic() + wait_s
        while present:
            for key, _ in poll.select(max(0, min(0.05, deadline - time.monotonic()))):
                if key.data.look(reading):
                    poll.unregister(key.data.socket)
                    key.data.leave()
                    self.dropped += 1
            if time.monotonic() >= deadline or not self.present():
                break
        poll.close()
        return self.present()

    def present(self):
        return sum(not peer.gone for peer in self.peers)

    def wait_until_dropped(self, within_s, reading=True):
        """Returns how many are still there after `within_s`, or sooner when none is. For each peer that reads nothing the time begins anew
        with whatever still comes for it: a busy machine takes long to fill the sockets, and until then it is sent to."""
        if reading:
            return self.look(reading, within_s)
        began = time.monotonic()
        while self.look(reading):
            waited = time.monotonic() - began
            if late := sum(not peer.gone and min(waited, peer.nothing_came_for()) > within_s for peer in self.peers):
                return late
            # Sockets that take more are always ready.
            time.sleep(0.01)
        return 0

    def leave(self, reset=True):
        for peer in self.peers:
            peer.leave(reset)


class Peer:
    def __init__(self, socket_):
        self.socket = socket_
        self.gone = False
        self.unsent = b""

    def nothing_came_for(self):
        """Seconds since data last came, whether it was read or not."""
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCPI_LAST_DATA_RECV + 4)
        return struct.unpack_from("I", info, TCPI_LAST_DATA_RECV)[0] / 1000

    def send(self, more):
        """Adds `more` to what waits once everything before has gone."""
        self.unsent = self.unsent or more
        sent = 0
        try:
            while self.unsent:
                went = self.socket.send(self.unsent)
                self.unsent = self.unsent[went:]
                sent += went
        except BlockingIOError:
            pass
        except OSError:
            # It is seen to be gone when it is looked at.
            self.unsent = b""
        return sent

    def look(self, reading):
        """Returns whether it was dropped."""
        error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            return True
        if not reading:
            # TCP_INFO begins with the state; 1 is ESTABLISHED.
            return self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1
        try:
            return not self.socket.recv(256 << 10)
        except BlockingIOError:
            return False
        except OSError as error:
            return error.errno != errno.EINTR

    def leave(self, reset=True):
        if self.gone:
            return
        self.gone = True
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def vanish(socket_):
    """Closes without a word, as a host does that loses power. Raises OSError where that is not allowed."""
    TCP_REPAIR = 19
    socket_.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    socket_.close()
