#!/usr/bin/env python3
"""How long `targe apply` takes with many targets, and how long the admin socket takes to answer meanwhile.

    bench/apply.py [--targets N] [--luns N] [--rounds N]

The release binary ($TARGE, else target/dist/targe) serves one target. `targe apply` makes that N targets with
file-backed LUNs, and then one again. Meanwhile one client asks for the sessions and one for its whole status,
each again as soon as it is answered, and every answer is timed. Printed: the seconds of each apply, the median, the 99th
percentile and the longest answer, and the memory of the daemon.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("TARGE", os.path.join(ROOT, "target", "dist", "targe"))
# Longest that a start and that anything else may take.
START_MAX_S, MAX_S = 30, 600


def configuration(folder, targets, luns):
    text = ['state_dir = "state"\nadmin_socket = "admin.sock"\n[[portal]]\nlisten = "127.0.0.1:0"\n']
    for target in range(targets):
        text.append(f'[[target]]\nname = "iqn.2026-11.org.targe:t{target}"\n')
        text += [f'[[target.lun]]\ntype = "file"\npath = "{folder}/{target}-{lun}.img"\nsize = "1M"\n' for lun in range(luns)]
    return "\n".join(text)


class Asker(threading.Thread):
    """Asks one question over and over, and times the answers."""

    def __init__(self, path, method):
        super().__init__(daemon=True)
        self.path, self.method, self.waits, self.stopped = path, method, [], False

    def run(self):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(MAX_S)
            connection.connect(self.path)
            while not self.stopped:
                began = time.monotonic()
                connection.sendall(json.dumps({"method": self.method}).encode() + b"\n")
                answer = b""
                while not answer.endswith(b"\n"):
                    answer += connection.recv(1 << 20)
                if b'"result"' not in answer[-1 << 20:] and b'"result"' not in answer[:4096]:
                    raise RuntimeError(f"{self.method}: {answer[:200]}")
                self.waits.append((time.monotonic() - began) * 1000)
                time.sleep(0.002)

    def told(self):
        self.stopped = True
        self.join(MAX_S)
        waits = sorted(self.waits)
        return f"{self.method}: {len(waits)} answers, ms: median {statistics.median(waits):.1f}, " \
               f"99 % {waits[len(waits) * 99 // 100]:.1f}, longest {waits[-1]:.1f}"


def memory(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as lines:
        found = dict(line.split(":", 1) for line in lines)
    return f"{int(found['VmRSS'].split()[0]) // 1024} MiB resident, {int(found['VmHWM'].split()[0]) // 1024} MiB at most"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--luns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        served, few, many = (os.path.join(folder, name) for name in ("targe.toml", "few.toml", "many.toml"))
        for path, targets in ((served, 1), (few, 1), (many, options.targets)):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
                file.write(configuration(folder, targets, options.luns))
        path = os.path.join(folder, "admin.sock")
        environment = dict(os.environ, XDG_STATE_HOME=folder, XDG_RUNTIME_DIR=folder)
        with subprocess.Popen([BINARY, "serve", "--config", served], cwd=folder, env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
            try:
                end = time.monotonic() + START_MAX_S
                while not os.path.exists(path):
                    if daemon.poll() is not None or time.monotonic() > end:
                        raise SystemExit("the daemon does not start")
                    time.sleep(0.05)
                print("started:", memory(daemon))
                for round_ in range(2 * options.rounds):
                    wanted, name = (many, options.targets) if round_ % 2 == 0 else (few, 1)
                    askers = [Asker(path, method) for method in ("sessions", "status")]
                    for asker in askers:
                        asker.start()
                    began = time.monotonic()
                    subprocess.run([BINARY, "apply", "--force", "--overwrite", "--socket", path, wanted], check=True, stdout=subprocess.DEVNULL,
                                   env=environment, timeout=MAX_S)
                    print(f"{name} targets: {time.monotonic() - began:.2f} s;", memory(daemon))
                    for asker in askers:
                        print("   ", asker.told(), flush=True)
            finally:
                daemon.terminate()
                daemon.wait(MAX_S)


if __name__ == "__main__":
    main()
