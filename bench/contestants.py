"""Who is compared: the targets, and a bare TCP echo as the bound of what this machine's loopback can do."""

import subprocess

import servers
from clients import LOAD

SIZE = 512 * servers.MIB


class Echo:
    """Not a target: a server that answers requests in the shapes of iSCSI without iSCSI."""

    name = "bare TCP"

    def start(self):
        self.process = subprocess.Popen([LOAD, "echo-server", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True,
                                        preexec_fn=servers.die_with_parent)
        self.address = self.process.stdout.readline().strip()

    def stop(self):
        self.process.kill()
        self.process.wait()

    def load_arguments(self):
        return ["echo", self.address]


def of_kind(kind, name, medium, folder):
    """A target of one kind with one disk, on memory either way: a full file in tmpfs, or its own RAM disk."""
    export = servers.Export(luns=(servers.Lun(medium, size=SIZE, thin=False),))
    server = kind(folder, export)
    server.name = name
    server.load_arguments = lambda: ["disk", f"127.0.0.1:{server.port}", server.iqn, str(server.first_lun)]
    return server


def other_build(binary):
    """Another build of targe, to compare with this one in the same run. How it ends is not judged: it may know less."""
    return type("OtherBuild", (servers.Targe,), {"binary": binary, "stop": servers.Server.stop})


def all_in(folder, with_ram, beside=None):
    contestants = [Echo(), of_kind(servers.Tgt, "tgt", "file", f"{folder}/tgt"),
                   of_kind(servers.Targe, "targe", "file", f"{folder}/targe")]
    if with_ram:
        contestants.append(of_kind(servers.Targe, "targe, RAM disk", "ram", f"{folder}/ram"))
    if beside:
        contestants.append(of_kind(other_build(beside), "targe, other build", "file", f"{folder}/beside"))
    return contestants
