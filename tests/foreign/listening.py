"""Ports of TCP: which are free, and who listens."""

import collections
import contextlib
import random
import socket
import struct

# Below the range that the kernel gives to clients, so that a server which is killed finds its port free when it starts again.
PORTS = range(10000, 32768)
# TCP_LISTEN in /proc/net/tcp.
LISTENING = "0A"
# The ports that this process has chosen last. Nobody listens on one between its choice and the start of the server, and while the server is
# started anew: rigs that run at the same time do not choose it either, as a name for it is taken in their network namespace.
CHOSEN = collections.deque(maxlen=200)


def free_port():
    """A port that is free on both addresses a server listens on, and that no other rig has chosen."""
    for port in random.SystemRandom().sample(PORTS, 50):
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0targe-rig-port-{port}")
        except OSError:
            name.close()
            continue
        if is_free(port):
            if len(CHOSEN) == CHOSEN.maxlen:
                CHOSEN.popleft().close()
            CHOSEN.append(name)
            return port
        name.close()
    raise RuntimeError("no free port")


def is_free(port):
    with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
        first.bind(("127.0.0.1", port))
        second.bind(("127.0.0.2", port))
        return True
    return False


def listens(host, port):
    try:
        with socket.create_connection((host, port), 2):
            return True
    except OSError:
        return False


def listeners(pid):
    """The addresses on which anything listens in the network namespace of a process. It connects to none: a portal may count what comes."""
    found = set()
    for name, family, words in (("tcp", socket.AF_INET, "I"), ("tcp6", socket.AF_INET6, "4I")):
        try:
            with open(f"/proc/{pid}/net/{name}") as table:
                rows = [line.split() for line in table][1:]
        except OSError:  # It has ended.
            return set()
        for address, port in (row[1].split(":") for row in rows if row[3] == LISTENING):
            # Each word is printed as a number of this machine.
            packed = struct.pack("=" + words, *struct.unpack(">" + words, bytes.fromhex(address)))
            found.add((socket.inet_ntop(family, packed), int(port, 16)))
    return found
