"""A process that pretends to take over a daemon, and fails at one step: `pretender.py STEP CONFIG`."""

import array
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import time

PIECE = 200
# Longer than any test.
SILENCE_S = 600
HELLO = {"magic": "targe-upgrade", "version": "9.9.9", "format": 6}


def send(stream, message):
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    stream.sendall(struct.pack(">II", len(text), 0) + text)


def receive(stream):
    """The bytes of a message, and how many descriptors came with it."""
    length, count = struct.unpack(">II", exactly(stream, 8))
    text, got = exactly(stream, length), 0
    while got < count:
        _, control, _, _ = stream.recvmsg(1, socket.CMSG_SPACE(PIECE * array.array("i").itemsize))
        if not control:
            raise EOFError
        for _, _, data in control:
            descriptors = array.array("i", data)
            got += len(descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
    return text, got


def exactly(stream, length):
    data = b""
    while len(data) < length:
        more = stream.recv(length - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def pretend(stream, step, config):
    if step == "ends at once":
        return
    if step == "keeps silent":
        return time.sleep(SILENCE_S)
    if step == "is another program":
        return send(stream, HELLO | {"magic": "other"})
    if step == "reads another format":
        return send(stream, HELLO | {"format": 99})
    send(stream, HELLO)
    if step == "ends after its first message":
        return
    welcome, _ = receive(stream)
    if step == "takes the lock of the state directory":
        if "StateLock" not in json.loads(welcome)["sockets"]:
            return send(stream, {"Failed": f"the sockets are {welcome}"})
        return send(stream, {"Failed": "it has the lock of the state directory"})
    if step == "keeps silent before it is prepared":
        return time.sleep(SILENCE_S)
    if step == "lacks memory":
        return send(stream, {"Failed": "cannot start: out of memory"})
    if step == "says nonsense":
        return send(stream, b"\xff{")
    if step == "reads another file":
        send(stream, {"Prepared": "0" * 64})
        return receive(stream)
    with open(config, "rb") as file:
        send(stream, {"Prepared": hashlib.sha256(file.read()).hexdigest()})
    if step == "ends when it is prepared":
        return
    if step == "does not receive the sessions":
        return time.sleep(SILENCE_S)
    document, _ = receive(stream)
    header, _, body = document.partition(b"\n")
    if json.loads(header)["len"] != len(body):
        raise ValueError("the document has another length than its header says")
    if step == "cannot resume the sessions":
        return send(stream, {"Failed": "session of somebody: the TSIH is zero"})
    if step == "ends with the sessions":
        return
    if step == "keeps silent with the sessions":
        return time.sleep(SILENCE_S)
    send(stream, "Ready")
    if step == "keeps silent when it is ready":
        return time.sleep(SILENCE_S)
    if step == "fails when it is ready":
        time.sleep(0.1)
        return send(stream, {"Failed": "nobody said that the sessions are mine"})
    if step == "ends when it is ready":
        return time.sleep(0.1)
    receive(stream)
    if step == "takes over":
        return take_over(stream, config)
    raise ValueError(step)


def take_over(stream, config):
    """Says that it serves when the test makes a file, and ends when it makes another; writes the names of the signals that it gets."""
    told = open(config + ".signals", "w")

    def note(number, _):
        told.write(signal.Signals(number).name + "\n")
        told.flush()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
    with open(config + ".pid", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, config + ".committed")
    await_any(config + ".serve", config + ".end")
    if os.path.exists(config + ".serve"):
        send(stream, "Serving")
    await_any(config + ".end")


def await_any(*paths):
    """Returns when the test has made one of these files, or cannot be there any more."""
    deadline = time.monotonic() + SILENCE_S
    while time.monotonic() < deadline and not any(os.path.exists(path) for path in paths):
        time.sleep(0.01)


if __name__ == "__main__":
    pretend(socket.socket(fileno=int(os.environ["TARGE_UPGRADE_FD"])), *sys.argv[1:3])
