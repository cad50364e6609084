"""What sessions cost: memory of the target and time to log in, at 1, 100 and 2 000 of them; and the start itself."""

import json
import os
import shutil
import subprocess
import time

import process
import servers
from clients import LOAD

COUNTS = (1, 100, 2000)
# A session is idle when the target has had time to put away what the login needed.
SETTLE_S = 1.0


def measure_all(folder):
    try:
        return [measure(kind, name, count, folder) for kind, name in ((servers.Tgt, "tgt"), (servers.Targe, "targe"))
                for count in COUNTS]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(kind, name, count, folder):
    os.makedirs(folder, exist_ok=True)
    server = kind(os.path.join(folder, name), servers.Export(luns=(servers.Lun(size=64 * servers.MIB),)))
    began = time.monotonic()
    with server:
        started = time.monotonic() - began
        time.sleep(SETTLE_S)
        empty = process.resident_kib(server.process.pid)
        command = [LOAD, "sessions", f"127.0.0.1:{server.port}", server.iqn, str(count)]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  preexec_fn=servers.die_with_parent)
        told = client.stdout.readline()
        time.sleep(SETTLE_S)
        full = process.resident_kib(server.process.pid)
        client.communicate()
    result = {"contestant": name, "sessions": count, "start_s": started, "empty_kib": empty, "full_kib": full,
              "kib_per_session": (full - empty) / count}
    return {**result, "login_s": json.loads(told)["seconds"]} if told else {**result, "login_s": None}


def print_table(measured):
    if not measured:
        return
    print("\n| sessions | start, ms | all logged in, ms | resident before, KiB | with sessions, KiB | per session, KiB |")
    print("|---|---|---|---|---|---|")
    for one in measured:
        logged_in = "refused" if one["login_s"] is None else f"{one['login_s'] * 1000:.1f}"
        print(f"| {one['contestant']}, {one['sessions']} | {one['start_s'] * 1000:.0f} | {logged_in} | {one['empty_kib']} | "
              f"{one['full_kib']} | {one['kib_per_session']:.1f} |")
