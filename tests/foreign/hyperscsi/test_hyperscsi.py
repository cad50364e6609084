"""HyperSCSI on virtual cables: hosts, cables and a bad wire between them, all in network namespaces that die with the rig."""

import collections
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pytest

from hostile import initiator
from hyperscsi import network
import servers
from hyperscsi.served import (Accounts, asked, await_that, discovered, end_server, expect_each_once, out, protected, serving, start_server, start_verify, told, verify)
from verdicts import expect

# How often nothing comes within 0.1 s before nothing more comes.
QUIET_LOOKS = 30
# Each has hosts and cables of its own.
pytestmark = [pytest.mark.servers("targe"), pytest.mark.own_process(limit_s=500)]


@pytest.mark.parametrize("mtu", [1500, 9000, 65535])
def test_wire_keeps_its_word(seed, mtu):
    """What a wire says that it did is what the other end sees."""
    # No more of the longest than wait in a socket's buffer: nothing holds this sender back.
    count = {1500: 20_000, 9000: 5_000, 65535: 400}[mtu]
    flags = ("--loss=3%", "--dup=2%", "--reorder=5%", "--reorder-by=2ms", "--corrupt=1%", f"--seed={seed}")
    with network.Network(mtu) as net:
        net.target.need_long_buffers()
        with net.wire(*flags) as wire:
            got = blast(net, count, mtu)
            report = wire.end()["a_to_b"]
        expect(report["sent"] == count, f"{report['sent']} of {count} frames came in; {report}")
        expect(report["unheard"] == report["unsent"] == 0, f"lost what it should not have: {report}")
        for kind, share in (("lost", 3), ("duplicated", 2), ("reordered", 5), ("corrupted", 1)):
            expect(0.5 < report[kind] * 100 / count / share < 1.6 or count < 1000, f"{report[kind]} of {count} {kind}, {share} % wanted")
        seen = collections.Counter(number for number, whole in got if whole)
        damaged = sum(not whole for _, whole in got)
        # Some damage is to the EtherType or the address, and such a frame is not ours any more.
        expect(report["arrived"] - 2 * report["corrupted"] <= len(got) <= report["arrived"],
               f"{len(got)} frames came, {report['arrived']} should have")
        expect(damaged <= 2 * report["corrupted"], f"{damaged} damaged, {report['corrupted']} were damaged")
        twice = sum(times - 1 for times in seen.values())
        expect(twice <= report["duplicated"], f"{twice} came twice, {report['duplicated']} should have")
        order = [number for number, whole in got if whole]
        overtaken = sum(first > second for first, second in zip(order, order[1:]))
        expect(overtaken > 0 or count < 1000, "nothing was overtaken")


def test_wire_hurts_in_one_direction_only(seed):
    with network.Network() as net, net.wire("--loss=50%", "--way=b-to-a", f"--seed={seed}") as wire:
        net.target.need_long_buffers()
        expect(len(blast(net, 2000, 1500)) == 2000, "frames were lost on the good way")
        report = wire.end()
        expect(report["a_to_b"]["lost"] == 0, f"{report['a_to_b']}")


def test_serves_an_interface_that_comes_and_goes(seed):
    with network.Network(9000, wired=False) as net:
        flags = ("--iface=eth0", "--group=backup", "--lun=ram:16M")
        with serving(net.target, *flags) as folder:
            await_that(lambda: "eth0 is up" in told(folder), "eth0 up")
            status = json.loads(net.target.run(servers.Targe.binary, "status", "--json", f"--socket={folder}/admin/s").stdout)
            expect(status["interfaces"] == ["eth0"] and status["portals"] == [], f"{status}")
            net.initiator.up("eth0", up=False)
            await_that(lambda: "eth0 is down" in told(folder), "eth0 down")
            net.initiator.up("eth0")
            await_that(lambda: told(folder).count("eth0 is up") == 2, "eth0 up again")
            net.target.run("ip", "link", "del", "eth0")
            await_that(lambda: told(folder).count("eth0 is down") == 2, "eth0 gone")
            net.join((net.initiator, "eth0"), (net.target, "eth0"), 1500)
            await_that(lambda: "MTU 1500" in told(folder), "eth0 anew")
            expect(len(discovered(net, "backup")) == 1, "not served on the new interface")


def test_says_why_an_interface_cannot_be_had(seed):
    with network.Network(wired=False) as net:
        flags = ("--group=backup", "--lun=ram:16M", f"--state-dir={out()}/refused", f"--socket={out()}/refused/admin/s")
        result = net.target.run(servers.Targe.binary, "serve", "--iface=eth7", *flags, check=False)
        expect(result.returncode != 0 and "there is no interface `eth7`" in result.stderr, result.stderr)
        command = ("setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw", servers.Targe.binary, "serve", "--iface=eth0")
        result = net.target.run(*command, *flags, check=False)
        expect(result.returncode != 0 and "setcap cap_net_raw+ep" in result.stderr, result.stderr)


@pytest.mark.parametrize("mtu", [1500, 9000, 65535])
def test_discovery_through_a_bad_wire_tells_a_group_its_own(seed, mtu):
    with network.Network(mtu) as net, net.wire("--loss=10%", "--dup=2%", "--reorder=5%", f"--seed={seed}"):
        with serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:16M", "--lun=ram:16M,protection=none"):
            found = discovered(net, "backup")
            expect(len(found) == 2, f"{len(found)} LUNs: {found}")
            result = net.initiator.run(servers.Targe.binary, "discover", "--group=others", "--iface=eth0", "--json", check=False)
            expect(result.stdout.strip() in ("", "[]"), f"another group is told: {result.stdout}")


# What wires do to frames, from good to bad, beside losing them.
LOSSES = ("0%", "0.1%", "1%", "3%", "10%")
ILLS = ("--dup=2%", "--reorder=5%")


@pytest.mark.parametrize("mtu", [1500, 9000, 65535])
@pytest.mark.parametrize("level", ["none", "encrypt"])
def test_a_whole_disk_is_verified_through_wires_from_good_to_bad(seed, mtu, level):
    """Every block is written and read through each wire, and no command is carried out twice, or not at all."""
    with network.Network(mtu) as net, protected(level) as (flags, query):
        with serving(net.target, "--iface=eth0", "--group=backup", f"--lun=ram:16M,protection={level}", *flags) as folder:
            with net.wire():
                url = discovered(net, "backup")[0]["url"] + query
            for loss in LOSSES:
                accounts = Accounts(net.target, folder)
                with net.wire(f"--loss={loss}", *ILLS, f"--seed={seed}") as wire:
                    report = verify(net, url, "--full")
                    way = wire.end()
                account = accounts.since()
                expect_each_once(account, report)
                twice = way["a_to_b"]["duplicated"]
                expect(0.8 * twice - 10 <= account["replayed_frames"] <= twice, f"{twice} frames were duplicated: {account}")
                frames = way["a_to_b"]["sent"] + way["b_to_a"]["sent"]
                lost = way["a_to_b"]["lost"] + way["b_to_a"]["lost"]
                print(f"  MTU {mtu}, {level}, loss {loss}: {report['seconds']:.2f} s, {lost} of {frames} frames lost", flush=True)


# A group that nobody is in.
END = "end-of-the-capture"


def test_tshark_understands_every_frame(seed):
    head_max = 4096  # What a capture without frames takes at most, bytes.
    for level in ("none", "encrypt"):
        file = os.path.join(out(), f"session-{level}.pcapng")
        with network.Network(9000) as net, net.wire("--loss=1%", *ILLS, f"--seed={seed}"), protected(level) as (flags, query):
            with serving(net.target, "--iface=eth0", "--group=backup", f"--lun=ram:16M,protection={level}", *flags):
                url = discovered(net, "backup")[0]["url"] + query
                capture = net.target.start("tshark", "-q", "-i", "eth0", "-f", "ether proto 0x889a", "-B", "64", "-w", file)
                line = ""
                while "Capturing" not in line:
                    line = capture.stderr.readline()
                    expect(line, "tshark does not capture")
                # It says so before it captures: frames of a discovery tell when it does.
                deadline = time.monotonic() + network.PATIENCE_S
                while not os.path.exists(file) or os.path.getsize(file) < head_max:
                    expect(time.monotonic() < deadline, "tshark captures nothing")
                    discovered(net, "backup")
                    time.sleep(0.5)
                verify(net, url, "--full", "--range=2M")
                # Frames are captured in their order: once the name of a group that is asked for now is there, everything before it is.
                deadline = time.monotonic() + network.PATIENCE_S
                while not holds(file, END):
                    expect(time.monotonic() < deadline, "tshark captures nothing any more")
                    net.initiator.run(servers.Targe.binary, "discover", f"--group={END}", "--iface=eth0", "--json", check=False)
                capture.send_signal(signal.SIGINT)
                capture.communicate(timeout=network.PATIENCE_S)
        wrong = tshark(file, "-Y", "!hyperscsi || _ws.malformed || _ws.short || _ws.lua.error || hyperscsi2.malformed || hyperscsi2.crc.bad")
        expect(not wrong, f"{len(wrong)} frames are not understood, such as {wrong[:3]}")
        seen = collections.Counter(tuple(line.split("\t")) for line in tshark(file, "-T", "fields", "-e", "hyperscsi.version", "-e", "hyperscsi.cmd"))
        expect({version for version, _ in seen} == {"32"}, f"versions: {seen}")
        kinds = {int(cmd, 0) for _, cmd in seen}
        expect({0x00, 0x01, 0x11, 0x12, 0x21} <= kinds, f"commands: {seen}")
        clear = tshark(file, "-Y", "(hyperscsi.cmd < 2 || hyperscsi.cmd == 0x40) && !(hyperscsi2.flags.encrypted == 1)")
        expect(bool(clear) == (level == "none"), f"{len(clear)} frames of exchanges in the clear at {level}")
        print(f"  {level}: {sum(seen.values())} frames understood", flush=True)


def holds(file, text):
    with open(file, "rb") as capture:
        return text.encode() in capture.read()


def tshark(file, *arguments):
    script = os.path.join(servers.ROOT, "docs", "hyperscsi.lua")
    done = subprocess.run(["tshark", "-r", file, "-X", f"lua_script:{script}", *arguments], capture_output=True, text=True, timeout=300)
    expect(done.returncode == 0, f"tshark: {done.stderr[-600:]}")
    return done.stdout.splitlines()


def test_a_wrong_password_opens_nothing_and_both_ends_say_so(seed):
    with network.Network() as net, net.wire("--loss=1%", *ILLS, f"--seed={seed}"), protected("encrypt") as (flags, query):
        with serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:16M", *flags) as folder:
            place = discovered(net, "backup")[0]["url"]
            with tempfile.NamedTemporaryFile("w", dir=out()) as wrong:
                wrong.write("another password\n")
                wrong.flush()
                for query, words in ((f"?password_file={wrong.name}", "wrong password"), ("", "password")):
                    result = net.initiator.run(servers.Targe.binary, "info", place + query, check=False)
                    expect(result.returncode != 0 and words in result.stderr, f"{query}: {result.returncode}, {result.stderr}")
                    expect(not result.stdout, f"{query}: {result.stdout}")
            await_that(lambda: told(folder).count("is refused") == 2, "the target's word on it")
            expect("session of" not in told(folder), told(folder))


def test_a_command_that_a_signal_ends_logs_out(seed):
    """No connection breaks: unless it is told, a target finds out after half a minute that nobody is there."""
    with network.Network() as net, net.wire(f"--seed={seed}"):
        with serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:64M") as folder:
            url = discovered(net, "backup")[0]["url"]
            for command in (("read", url), ("bench", url, "--time=60")):
                # Nobody reads what `read` reads, so that it stays.
                process = subprocess.Popen(net.initiator.inside(servers.Targe.binary, *command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                moved = lambda: any(session["data_in_bytes"] > 1 << 16 for session in asked(net.target, folder, "sessions")["hyperscsi"])
                await_that(moved, f"data for {command[0]}")
                before = told(folder).count("is over: the initiator logged out")
                process.terminate()
                process.wait(timeout=network.PATIENCE_S)
                process.stdout.close()
                await_that(lambda: told(folder).count("is over: the initiator logged out") > before, f"the goodbye of {command[0]}")
            expect("path was lost" not in told(folder), told(folder))


@pytest.mark.waits(12)
def test_target_killed_in_mid_verify_twice(seed):
    with network.Network(9000) as net, net.wire("--loss=0.1%", *ILLS, "--rate=200M", f"--seed={seed}"):
        folder = tempfile.mkdtemp(prefix="hyperscsi-", dir=out())
        flags = ("--iface=eth0", "--group=backup", f"--lun=file:{folder}/disk,size=64M")
        server = start_server(net.target, folder, *flags)
        try:
            url = discovered(net, "backup")[0]["url"]
            process = start_verify(net, url, "--full")
            for _ in range(2):
                # Each time the initiator is back at work before the target is killed.
                await_that(lambda: process.poll() is not None or under_way(net, folder), "commands under way")
                expect(process.poll() is None, "verify ended before the target was killed")
                server.kill()
                server.wait()
                server = start_server(net.target, folder, *flags)
            report = verify(net, url, process=process)
            expect(report["session"]["sessions_rebuilt"] == 2, f"{report['session']}")
            end_server(net.target, folder, server)
        finally:
            server.kill()
            server.wait()


def under_way(net, folder):
    """Whether a session has carried out some commands."""
    return any(session["commands"] > 20 for session in asked(net.target, folder, "sessions")["hyperscsi"])


@pytest.mark.waits(11)
def test_cable_pulled_in_mid_verify_at_either_end(seed):
    with network.Network(9000) as net, net.wire("--rate=200M", f"--seed={seed}"):
        with serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:64M"):
            url = discovered(net, "backup")[0]["url"]
            process = start_verify(net, url, "--full")
            for host in (net.initiator, net.target):
                time.sleep(1.0)
                expect(process.poll() is None, "verify ended before the cable was pulled")
                host.up("eth0", up=False)
                time.sleep(3.0)
                host.up("eth0")
            report = verify(net, url, process=process)
            expect(report["session"]["sessions_rebuilt"] == 0, f"the session did not live through it: {report['session']}")


def test_a_disk_is_used_by_both_protocols_and_reservations_hold_for_both(seed):
    with network.Network(wired=False) as net:
        for host, address in ((net.initiator, "10.0.0.2/24"), (net.target, "10.0.0.1/24")):
            host.run("ip", "address", "add", address, "dev", "eth0")
        flags = ("--listen=10.0.0.1:3260", "--iface=eth0", "--group=backup", "--lun=ram:32M")
        with serving(net.target, *flags):
            ether = discovered(net, "backup")[0]["url"]
            name = ether.split("/", 3)[3]
            tcp = f"iscsi://10.0.0.1/{name}"
            reservation_holds(net, name, ether)
            # Each has a half; then each reads all that the other wrote.
            verifiers = [(url, start_verify(net, url, "--full", f"--range={part}")) for url, part in ((tcp, "0,16M"), (ether, "16M,16M"))]
            for url, process in verifiers:
                verify(net, url, process=process)
            images = []
            for url in (tcp, ether):
                result = subprocess.run(net.initiator.inside(servers.Targe.binary, "read", url), capture_output=True, timeout=network.PATIENCE_S)
                expect(result.returncode == 0, f"{url}: {result.stderr}")
                images.append(result.stdout)
            expect(images[0] == images[1] and len(images[0]) == 32 << 20, "they do not read the same")


def reservation_holds(net, name, ether):
    """An iSCSI initiator reserves the disk; who comes by HyperSCSI reads it and cannot write it until that is over."""
    connection = net.initiator.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.settimeout(network.PATIENCE_S)
    connection.connect(("10.0.0.1", 3260))
    owner = initiator.Session(3260, name.split("/")[0], "iqn.2026-11.com.example:owner", over=connection)
    owner.ready()
    key = bytes(7) + b"k"
    register, reserve, release = (struct.pack(">BBBxxIB", 0x5F, action, kind, 24, 0) for action, kind in ((0, 0), (1, 1), (2, 1)))
    for cdb, keys in ((register, bytes(8) + key), (reserve, key + bytes(8))):
        status, _ = owner.command(cdb, write=keys + bytes(8))
        expect(status == 0, f"PERSISTENT RESERVE OUT {cdb[1]}: status {status:02x}h")
    result = net.initiator.run(servers.Targe.binary, "verify", "--write", "--full", "--range=64K", "--errors=1", ether, check=False)
    expect(result.returncode != 0 and "operations failed" in result.stderr and "reservation conflict" in result.stdout,
           f"exit code {result.returncode}: {result.stdout} {result.stderr}")
    result = net.initiator.run(servers.Targe.binary, "read", "--length=64K", ether)
    expect(not result.stdout.strip("\0"), "something was written")
    status, _ = owner.command(release, write=key + bytes(16))
    expect(status == 0, f"release: status {status:02x}h")
    owner.close()
    verify(net, ether, "--full", "--range=64K")


def blast(net, count, mtu):
    """Sends frames from the initiator's host to the target's; returns the number of each that came, and whether it was whole."""
    sender, receiver = net.initiator.frames(), net.target.frames()
    receiver.settimeout(0.1)
    head = net.target.mac() + net.initiator.mac() + struct.pack(">H", network.ETHER_TYPE)
    body = bytes(range(251)) * (mtu // 251 + 1)
    got = []

    def receive():
        # Nothing more comes when nothing came for so many looks: a machine that stands still costs one of them.
        quiet = 0
        while quiet < QUIET_LOOKS:
            try:
                frame = receiver.recv(mtu + 14)
            except TimeoutError:
                quiet += sent.is_set()
                continue
            quiet = 0
            number = struct.unpack_from(">I", frame, 14)[0]
            got.append((number, len(frame) == mtu + 14 and frame[:14] == head and frame[18:] == body[:mtu - 4]))

    sent, thread = threading.Event(), threading.Thread(target=receive)
    thread.start()
    try:
        for number in range(count):
            sender.send(head + struct.pack(">I", number) + body[:mtu - 4])
    finally:
        sent.set()
        thread.join()
    sender.close()
    receiver.close()
    return got
