"""What the suite is run on. A test is passed when it really passes on at least one of these and fails on none.

Many tests skip themselves by what the unit says of itself (thin or full, removable, write-protected, 4 KiB physical
blocks), so no single unit can pass all of them.
"""

from dataclasses import dataclass

from servers import MIB, Export, Lun

# The tool's own CHAP tests (sources of 2026) want users of these three shapes; 1.19 logs in with them.
PLAIN = ("libiscsi", "secret-of-libiscsi")
LIKE_HEX = ("0xuser", "secret-of-libiscsi")
LIKE_BASE64 = ("0buser", "secret-of-libiscsi")

# What a unit can say otherwise than as it comes.
TO_THE_END = ("write_same_to_end", True)
LONG_COMPARE_AND_WRITE = ("compare_and_write_max", 255)
NO_ZEROS = ("unmapped", "unspecified")

READING = ("SCSI.Inquiry", "SCSI.Mandatory", "SCSI.ModeSense6", "SCSI.Read10", "SCSI.Read12", "SCSI.Read16", "SCSI.Read6",
           "SCSI.ReadCapacity10", "SCSI.ReadCapacity16", "SCSI.ReadOnly", "SCSI.TestUnitReady")
# What has something to say of a drive for discs.
OF_ANY_TYPE = ("SCSI.Inquiry", "SCSI.Mandatory", "SCSI.ModeSense6", "SCSI.NoMedia", "SCSI.PreventAllow", "SCSI.StartStopUnit",
               "SCSI.Read10", "SCSI.Read12", "SCSI.ReadCapacity10", "SCSI.ReportSupportedOpcodes", "SCSI.TestUnitReady", "SCSI.Reserve6",
               "SCSI.PrinReadKeys", "SCSI.PrinReportCapabilities", "SCSI.PrinServiceactionRange", "SCSI.ProutRegister", "SCSI.ProutClear", "SCSI.ProutPreempt",
               "iSCSI.iSCSITMF",
               # Its other tests write.
               *(f"SCSI.ProutReserve.{name}" for name in ("OwnershipEA", "OwnershipEAAR", "OwnershipEARO", "OwnershipWE", "OwnershipWEAR", "OwnershipWERO", "Simple")))
# What has something to say of units without blocks, where 1Bh is not START STOP UNIT either, but LOAD UNLOAD of a tape drive and
# OPEN/CLOSE IMPORT/EXPORT ELEMENT of a changer.
WITHOUT_BLOCKS = tuple(name for name in OF_ANY_TYPE if not name.startswith(("SCSI.Read1", "SCSI.ReadCapacity", "SCSI.StartStopUnit")))
# The tests of these that skip themselves on everything but a disk.
OF_DISKS = frozenset((
    "SCSI.Inquiry.BlockLimits", "SCSI.Inquiry.MandatoryVPDSBC", "SCSI.Mandatory.MandatorySBC", "SCSI.ModeSense6.Control-SWP",
    "SCSI.NoMedia.NoMediaSBC", "iSCSI.iSCSITMF.AbortTaskSimpleAsync", "iSCSI.iSCSITMF.LUNResetSimpleAsync",
    *(f"SCSI.PreventAllow.{name}" for name in ("Simple", "Eject", "ITNexusLoss", "Logout", "WarmReset", "ColdReset", "LUNReset", "2ITNexuses")),
    # It looks for the version of SBC, and asserts nothing without one.
    "SCSI.Inquiry.VersionDescriptors"))
# Of discs: read protection, FUA, and a test of many reads.
NOT_OF_DISCS = OF_DISKS | {f"SCSI.{suite}.{name}" for suite in ("Read10", "Read12") for name in ("ReadProtect", "DpoFua")} | {"SCSI.Read10.Async"}
# It needs the sense data of a READ(16), which a disc drive and a changer do not have.
NEEDS_READ_16 = frozenset(("SCSI.ModeSense6.Control-D_SENSE",))
LOGGING_IN = ("SCSI.Mandatory", "SCSI.Read16", "SCSI.Write16", "SCSI.Reserve6", "SCSI.ProutReserve", "iSCSI.iSCSITMF",
              "iSCSI.iSCSICHAP")


@dataclass(frozen=True)
class Configuration:
    """`only`: the suites or single tests it is meant for, all when empty. `skips`: the tests that skip themselves here; if given, all
    others must pass here. `mended`: needs what no libiscsi does as it comes: 1.19 has no data digests, and with those of 2026 it
    stumbles over its own feet (see mend)."""
    name: str
    export: Export
    query: str = ""
    only: tuple = ()
    skips: frozenset = None
    mended: bool = False


CONFIGURATIONS = [
    # The tool wants to find a SANITIZE still at work after five seconds.
    Configuration("long sanitize", Export(luns=(Lun("null", size=2048 * MIB),)), only=("SCSI.Sanitize.Reset",)),
    Configuration("thin file", Export(luns=(Lun("file"),))),
    Configuration("full file, WRITE SAME to the end, long COMPARE AND WRITE", Export(luns=(Lun("file", thin=False, claims=(
        TO_THE_END, LONG_COMPARE_AND_WRITE)),))),
    Configuration("thin file, WRITE SAME to the end, long COMPARE AND WRITE", Export(luns=(Lun("file", claims=(
        TO_THE_END, LONG_COMPARE_AND_WRITE)),)), only=("SCSI.CompareAndWrite", "SCSI.WriteSame10", "SCSI.WriteSame16")),
    Configuration("thin file, no write cache, 4 KiB blocks", Export(luns=(Lun("file", write_cache=False, block=4096),))),
    # Where blocks that were unmapped need not be zeros, the tool does not want to find zeros after it sent FFh.
    Configuration("memory, no physical blocks, no zeros, WRITE SAME to the end", Export(luns=(Lun("ram", physical=512, claims=(
        TO_THE_END, NO_ZEROS, LONG_COMPARE_AND_WRITE)),))),
    Configuration("memory, of SPC-3", Export(luns=(Lun("ram", claims=(("spc", "3"),)),))),
    Configuration("memory, header digest, atomic writes of 4 KiB", Export(luns=(Lun("ram", atomic=4096),), digests="header"),
                  query="?header_digest=crc32c"),
    Configuration("memory, both digests", Export(luns=(Lun("ram"),), digests="required"),
                  query="?header_digest=crc32c&data_digest=crc32c", mended=True),
    Configuration("removable, encrypted", Export(luns=(Lun("file", removable=True, encrypted=True),))),
    Configuration("write-protected", Export(luns=(Lun("file", readonly=True),)), only=READING),
    Configuration("write-protected memory", Export(luns=(Lun("ram", readonly=True),)), only=READING),
    Configuration("disc", Export(luns=(Lun("disc"),)), only=OF_ANY_TYPE, skips=NOT_OF_DISCS | NEEDS_READ_16),
    Configuration("tape", Export(luns=(Lun("tape"),)), only=WITHOUT_BLOCKS, skips=OF_DISKS),
    Configuration("changer", Export(luns=(Lun("changer", size=24 * MIB),)), only=WITHOUT_BLOCKS, skips=OF_DISKS | NEEDS_READ_16),
    Configuration("large", Export(luns=(Lun("file", size=3 << 40),)), only=("SCSI.ReadCapacity10", "SCSI.ReadCapacity16",
                  "SCSI.GetLBAStatus", "SCSI.Read10", "SCSI.Read16", "SCSI.Write16", "SCSI.ExtendedCopy.Large")),
    Configuration("user", Export(incoming=PLAIN, luns=(Lun("ram", size=64 * MIB),)), only=LOGGING_IN),
    Configuration("user 0x…", Export(incoming=LIKE_HEX, luns=(Lun("ram", size=64 * MIB),)), only=LOGGING_IN),
    Configuration("user 0b…", Export(incoming=LIKE_BASE64, luns=(Lun("ram", size=64 * MIB),)), only=LOGGING_IN),
]
