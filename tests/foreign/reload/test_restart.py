"""A restart with renumbered LUNs, while hosts that do not log out have them open: no host reaches another disk by a LUN that it
opened, until it has logged out.
"""

import os

import pytest

import listening
import servers
from reload.bindings import stored_bindings
from reload.host import BLOCK, GOOD, NO_LUN, Host, label
from servers import MIB, Export, Lun
from verdicts import eventually, expect

NAME, OTHER = "iqn.2026-11.org.example:stays", "iqn.2026-11.org.example:comes"
WRITE = bytes((0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0))
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(600)]


class Renumbered(servers.Targe):
    """One target with two disks, in either order."""

    order = (0, 1)

    def __init__(self, folder, export):
        super().__init__(folder, export)
        # The initiators, and the LUNs that they have opened since their last logout.
        self.opened = set()

    def stored(self):
        """What the state directory has of that."""
        return {(name, int(lun)) for name, _, lun, _ in stored_bindings(self.folder, (NAME, OTHER)) if lun.isdigit()}

    def disk_path(self, disk):
        return os.path.join(self.folder, f"disk{disk}.img")

    def make_media(self):
        for disk in (0, 1):
            with open(self.disk_path(disk), "wb") as file:
                file.truncate(4 * MIB)
                file.write(label(disk))

    def config_lines(self):
        yield from ('state_dir = "state"', 'admin_socket = "admin/admin.sock"', "[[portal]]", f'listen = "127.0.0.1:{self.port}"',
                    "[[target]]", f'name = "{self.iqn}"')
        for disk in self.order:
            yield from ("[[target.lun]]", 'type = "file"', f'path = "{self.disk_path(disk)}"')

    def restart(self, order, crash):
        """Ends without a logout of anyone, and starts with the LUNs in this order."""
        if crash:
            eventually(lambda: self.opened <= self.stored(), lambda: f"all of {self.opened} is stored, and not only {self.stored()}")
            self.kill()
            # The kernel closes the listener of a killed process a moment later, when its io_uring is gone.
            eventually(lambda: not listening.listens("127.0.0.1", self.port), "nothing listens after the kill")
        else:
            expect(self.stop() == 0, "the daemon does not end in order")
        self.order = order
        self.start(fresh=False)

    def first_blocks(self):
        return [open(self.disk_path(disk), "rb").read(BLOCK) for disk in (0, 1)]


def log_in(server, host):
    host.forget_session()
    host.log_in(server.port, server.iqn, None)


def answers(server, host, lun):
    """What a LUN answers to READ and WRITE of its first block; a write that it takes would destroy the label."""
    host.settle(lun)
    read = host.ask(lun, bytes((0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0)), BLOCK)
    if read.status != GOOD:
        return read.sense
    server.opened.add((host.name, lun))
    return bytes(read.got)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_no_host_reaches_another_disk_after_a_restart(tmp_path, crash):
    server = Renumbered(str(tmp_path), Export([Lun(), Lun()]))
    server.make_media()
    server.start()
    try:
        host, other = Host(0, NAME, 8), Host(1, OTHER, 8)
        log_in(server, host)
        expect(answers(server, host, 0) == label(0), "LUN 0 does not lead to the first disk")

        server.restart((1, 0), crash)
        log_in(server, host)
        expect(answers(server, host, 0) == NO_LUN, "LUN 0 leads a host that had it open to a disk after the LUNs were swapped")
        write = host.ask(0, WRITE)
        expect(write.sense == NO_LUN, "LUN 0 takes a write that was meant for another disk")
        expect(answers(server, host, 1) == label(0), "a LUN that the host had not used does not lead to its disk")
        log_in(server, other)
        expect(answers(server, other, 0) == label(1), "another host does not reach the disk that is configured")

        server.restart((0, 1), crash)
        log_in(server, host)
        expect(answers(server, host, 0) == label(0), "LUN 0 does not lead to the disk that the host had opened, although it is back")

        server.restart((1, 0), crash)
        log_in(server, host)
        expect(answers(server, host, 0) == NO_LUN, "the second restart forgets what the host had open")
        host.log_out()
        log_in(server, host)
        expect(answers(server, host, 0) == label(1), "after a logout the LUN does not lead to the disk that is configured")
        expect(server.first_blocks() == [label(0), label(1)], "a disk was written")
        host.log_out()
        other.forget_session()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()
