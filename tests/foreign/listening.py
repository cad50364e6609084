"""Ports of TCP: which are free, and who listens."""

import random
import socket
import struct

# Below the range that the kernel gives to clients, so that a server which is killed finds its port free when it starts again.
PORTS = range(10000, 32768)
# TCP_LISTEN in /proc/net/tcp.
LISTENING = "0A"


def free_port():
    """A port that is free on both addresses a server listens on."""
    for port in random.SystemRandom().sample(PORTS, 50):
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.2", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


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
