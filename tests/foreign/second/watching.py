"""What cases about single rules of our target share: a session that watches, and blocks to say."""

from initiator import blocks, scsi
from initiator.watch import Watch, blocks_of
from initiator.workload import Disk, log_in
from verdicts import expect

PASSWORD = b"correct horse battery staple"
PLAIN, SECRET = "ram:8M", "ram:8M,protection=encrypt"
PING = blocks.block(blocks.PING)
TUR = blocks.command(scsi.lun(0), scsi.test_unit_ready(), 0, 0, 0)


def watch(rig, password=None, level=None, offer=None):
    """A watching session whose UNIT ATTENTION is taken, and its disk."""
    session = log_in(rig, rig.link(), password, offer=offer, kind=Watch)
    disk = Disk(session, level=level)
    expect(disk.do(scsi.test_unit_ready()).good, "TEST UNIT READY")
    session.listen(0.05)
    return session, disk


def write_of(length, unsolicited=0, after=0):
    """A WRITE(16) of LUN 0, block 0, that waits for its data."""
    return blocks.command(scsi.lun(0), scsi.write(0, length // 512), 0, length, unsolicited, after)


def says(*commands):
    """Whether blocks of each of these commands are among what was heard."""
    return lambda heard: all(blocks_of(heard, command) for command in commands)
