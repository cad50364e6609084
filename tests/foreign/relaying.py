"""What every relay of the rigs does: it accepts connections on 127.0.0.1, and closes both ends of one that is over."""

import socket
import threading


class Relay:
    """Calls `serve`, in a thread of its own, with each connection that it accepts on `port`."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A thread in accept() keeps the socket open until it is shut down.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.try_to_serve, args=(near,), daemon=True).start()

    def try_to_serve(self, near):
        try:
            self.serve(near)
        except OSError:
            near.close()

    def serve(self, near):
        raise NotImplementedError


def carry_both_ways(near, far, carry, *arguments):
    """Calls `carry(source, sink, *arguments)` for each direction, in a thread of its own."""
    for source, sink in ((near, far), (far, near)):
        threading.Thread(target=carry, args=(source, sink, *arguments), daemon=True).start()


def close(*ends):
    """Ends connections, whether or not they are open."""
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
