"""A target that comes back on another reactor than before, while a host that did not log out has its LUN open: the host reaches
another disk only after it has logged out.
"""

import pytest

from reload.host import GOOD, NO_LUN, Host, label
from reload.test_restart import NAME, WRITE, Renumbered, answers
from servers import Export, Lun
from verdicts import eventually, expect

STAYS = "iqn.2026-11.org.example:disk-stays"
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(600)]


class Moved(Renumbered):
    """A target that shows the second disk, and, except for a time, one that shows the first disk or shares the second one."""

    shown = 0

    def config_lines(self):
        yield from ('state_dir = "state"', 'admin_socket = "admin/admin.sock"', 'cores = "0-1"', "[[portal]]",
                    f'listen = "127.0.0.1:{self.port}"')
        yield from ("[[lun]]", 'name = "shared"', 'type = "file"', f'path = "{self.disk_path(1)}"')
        own = ('type = "file"', f'path = "{self.disk_path(0)}"')
        for name, disk in ((STAYS, 1), (self.iqn, self.shown)):
            if disk is not None:
                yield from ("[[target]]", f'name = "{name}"', "[[target.lun]]", *(('share = "shared"',) if disk else own))

    def reload_with(self, shown):
        done = self.log_of_this_run().count("reloaded: ")
        self.shown = shown
        self.reload()
        eventually(lambda: self.log_of_this_run().count("reloaded: ") > done, "the configuration is reloaded")


def log_in(server, host):
    host.forget_session()
    host.log_in(server.port, server.iqn, None)


def test_no_host_reaches_another_disk_by_a_target_that_comes_back_on_another_reactor(tmp_path):
    server = Moved(str(tmp_path), Export([Lun(), Lun()]))
    server.make_media()
    server.start()
    try:
        host = Host(0, NAME, 8)
        log_in(server, host)
        expect(answers(server, host, 0) == label(0), "LUN 0 does not lead to the first disk")
        host.forget_session()

        server.reload_with(None)
        server.reload_with(1)
        log_in(server, host)
        expect(answers(server, host, 0) == NO_LUN, "LUN 0 leads a host that had it open to another disk")
        expect(host.ask(0, WRITE).sense == NO_LUN, "LUN 0 takes a write that was meant for another disk")

        server.restart(server.order, crash=False)
        log_in(server, host)
        expect(answers(server, host, 0) == NO_LUN, "the restart forgets what the host had open")
        host.log_out()
        log_in(server, host)
        expect(answers(server, host, 0) == label(1), "after a logout the LUN does not lead to the disk that is configured")
        expect(server.first_blocks() == [label(0), label(1)], "a disk was written")
        host.log_out()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()
