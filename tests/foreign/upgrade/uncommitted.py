"""A process that lets a real targe take over until that is ready, and then ends both: `uncommitted.py TARGE ARGUMENTS`. The process that
serves goes on, so the other one must not have touched anything."""

import array
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import time

from pretender import PIECE, exactly

PR_SET_PDEATHSIG = 1
# For so long the targe that is ready waits for the commit, seconds.
WAIT_S = 0.1


def receive(stream):
    """A message and its descriptors."""
    length, count = struct.unpack(">II", exactly(stream, 8))
    text, descriptors = exactly(stream, length), []
    while len(descriptors) < count:
        _, control, _, _ = stream.recvmsg(1, socket.CMSG_SPACE(PIECE * array.array("i").itemsize))
        if not control:
            raise EOFError
        for _, _, data in control:
            descriptors += array.array("i", data)
    return text, descriptors


def send(stream, text, descriptors):
    stream.sendall(struct.pack(">II", len(text), len(descriptors)) + text)
    for at in range(0, len(descriptors), PIECE):
        rights = array.array("i", descriptors[at:at + PIECE])
        stream.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    for descriptor in descriptors:
        os.close(descriptor)


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def relay(serving, command):
    ours, theirs = socket.socketpair()
    environment = os.environ | {"TARGE_UPGRADE_FD": str(theirs.fileno())}
    process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], preexec_fn=die_with_parent)
    theirs.close()
    try:
        # The hello, the sockets, that it is prepared, the sessions.
        for source, sink in ((ours, serving), (serving, ours)) * 2:
            send(sink, *receive(source))
        answer, _ = receive(ours)
        if answer != b'"Ready"':
            raise ValueError(answer)
        time.sleep(WAIT_S)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    relay(socket.socket(fileno=int(os.environ["TARGE_UPGRADE_FD"])), sys.argv[1:])
