"""Link-local IPv6 addresses, which lead somewhere with their zone alone: an initiator discovers a target and uses a disk through one.

Everything is in a network namespace of its own, whose only interfaces besides the loopback are a pair of virtual ones.
"""

import json
import os
import subprocess
import tempfile

import pytest

import servers
from verdicts import eventually, expect

pytestmark = [pytest.mark.servers("targe"), pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")]

IQN = "iqn.2026-11.org.targe:zoned"
PORT, INTERFACE, PEER = 3260, "zoned0", "zoned1"
COMMAND_MAX_S = 60


class Network:
    """A network namespace, which ends with the process that holds it."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], preexec_fn=servers.die_with_parent)
        mine = os.readlink("/proc/self/ns/net")
        eventually(lambda: os.readlink(f"/proc/{self.holder.pid}/ns/net") != mine, "the namespace is made", COMMAND_MAX_S)

    def inside(self, *command):
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *command]

    def run(self, *command, data=None):
        done = subprocess.run(self.inside(*command), input=data, capture_output=True, timeout=COMMAND_MAX_S)
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")

    def address(self):
        """The link-local address of the interface, once no other host can have it."""
        code, said, why = self.run("ip", "-json", "-6", "address", "show", "dev", INTERFACE, "scope", "link")
        expect(code == 0, why)
        found = [one for link in json.loads(said) for one in link.get("addr_info", []) if "tentative" not in one]
        return found[0]["local"] if found else None

    def end(self):
        self.holder.kill()
        self.holder.wait()


@pytest.mark.parametrize("percent", ["%", "%25"])
def test_a_disk_is_used_through_an_address_with_its_zone(kind, percent):
    binary, network = servers.Targe.binary, Network()
    with tempfile.TemporaryDirectory() as folder:
        daemon = None
        try:
            for command in (("link", "set", "lo", "up"), ("link", "add", INTERFACE, "type", "veth", "peer", "name", PEER),
                            ("link", "set", PEER, "up"), ("link", "set", INTERFACE, "up")):
                code, _, why = network.run("ip", *command)
                expect(code == 0, why)
            eventually(network.address, "the interface has a link-local address", COMMAND_MAX_S)
            address = network.address()
            with open(os.path.join(folder, "log"), "wb") as log:
                daemon = subprocess.Popen(network.inside(binary, "serve", "--state-dir", os.path.join(folder, "state"), "--listen",
                                                         f"[{address}%{INTERFACE}]:{PORT}", "--target", IQN, "--lun", "ram:1M"),
                                          stdout=log, stderr=log, preexec_fn=servers.die_with_parent)
            portal = f"[{address}{percent}{INTERFACE}]:{PORT}"
            eventually(lambda: network.run(binary, "discover", portal, "--json")[0] == 0, f"discovery of {portal}", COMMAND_MAX_S)
            found = json.loads(network.run(binary, "discover", portal, "--json")[1])
            url = f"iscsi://[{address}%{INTERFACE}]:{PORT}/{IQN}/0"
            expect([unit["url"] for unit in found] == [url], f"discovery prints {found}")
            for at in (url, f"iscsi://{portal}/{IQN}/0"):
                code, _, why = network.run(binary, "write", at, "--write", data=b"\7" * 4096)
                expect(code == 0, why)
                code, read, why = network.run(binary, "read", at, "--length", "4096")
                expect((code, read) == (0, b"\7" * 4096), f"{at}: {why}")
        finally:
            if daemon:
                daemon.terminate()
                daemon.wait(timeout=COMMAND_MAX_S)
            network.end()
