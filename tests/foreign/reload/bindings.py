"""What the daemon has stored of the disks that hosts have opened."""

import os


def lines_of(folder, name):
    try:
        with open(os.path.join(folder, "state", name)) as file:
            return [line.split() for line in file][1:-1]
    except FileNotFoundError:
        return []


def stored_bindings(folder, names):
    """The facts of the records in the state directory: the initiator's name, whether the record is a former one, and either a LUN with its disk
    or the word "group" with the tag of a portal group that the initiator has not logged out of, or "rejoined" with that of one through which
    it has continued a session with a former record.

    Each line has a target, an initiator port as a hexadecimal TransportID, the kind of the port with its target ports, where "!" marks a former
    record and "+" a port through which the initiator has continued a session with it, and LUNs with their disks."""
    tags = {row[0]: row[2] for row in lines_of(folder, "ports")}
    facts = set()
    for row in lines_of(folder, "bindings"):
        for name in (name for name in names if name.encode().hex() in row[1]):
            # "*" marks a sealed record.
            ports, former, _ = row[2].split(";")[1].replace("*", "").partition("~")[0].partition("!")
            facts |= {(name, bool(former), *lun.split("=")) for lun in row[3:]}
            facts |= {(name, bool(former), "group", tags.get(port.rstrip("+"))) for port in ports.split(",")}
            facts |= {(name, bool(former), "rejoined", tags.get(port.rstrip("+"))) for port in ports.split(",") if port.endswith("+")}
    return facts
