"""What the configuration of the reload rig says, and how it changes at random."""

DISKS, STILL_DISK, LUNS = 6, 6, 5
DISK_MIB, DISK_MIB_MAX = 4, 24
# What the names of the disks begin with.
NAA = "6000000000000000000000000000000"
# In a command, the name of the target that changes, and the folder of the disks.
TARGET, FOLDER = "TARGET", "FOLDER"


class Plan:
    """What the configuration says. `luns`: the target's LUNs and their disks. `rows`: what each of the first two hosts sees, as its
    own number: (the target's, read-only). A host without rows is refused."""

    def __init__(self):
        self.luns = {0: 0, 1: 1, 2: 2}
        self.rows = {host: {lun: (lun, False) for lun in self.luns} for host in (0, 1)}
        self.sizes = {disk: DISK_MIB for disk in range(DISKS + 1)}
        self.secret = 0
        self.refused = None
        # The tag of the portal group. A target port goes with its portal where no other portal has its tag.
        self.tag = 1
        # LUNs of shared disks that no host may write.
        self.protected = set()
        # The words of the command that brings this about, if one does.
        self.command = ()

    def view(self, host):
        """LUN → (disk, read-only), as configured."""
        if host == 2:
            return {0: (STILL_DISK, False)}
        if host == self.refused:
            return {}
        return {number: (self.luns[lun], ro or lun in self.protected) for number, (lun, ro) in self.rows[host].items() if lun in self.luns}

    def prune(self):
        """A row for a LUN that is gone is a mistake in the configuration; each host sees something."""
        self.protected &= {lun for lun, disk in self.luns.items() if is_shared(disk)}
        for host, rows in self.rows.items():
            kept = {number: row for number, row in rows.items() if row[0] in self.luns}
            self.rows[host] = kept or {0: (min(self.luns), False)}


def add(plan, chance):
    free, disks = set(range(LUNS)) - set(plan.luns), set(range(DISKS)) - set(plan.luns.values())
    if not free or not disks:
        return False
    lun = chance.choice(sorted(free))
    plan.luns[lun] = chance.choice(sorted(disks))
    for rows in plan.rows.values():
        if lun not in rows and chance.random() < 0.8:
            rows[lun] = (lun, False)
    return True


def remove(plan, chance):
    if len(plan.luns) < 2:
        return False
    del plan.luns[chance.choice(sorted(plan.luns))]
    plan.prune()
    return True


def swap(plan, chance):
    if len(plan.luns) < 2:
        return False
    one, other = chance.sample(sorted(plan.luns), 2)
    plan.luns[one], plan.luns[other] = plan.luns[other], plan.luns[one]
    return True


def replace(plan, chance):
    disks = sorted(set(range(DISKS)) - set(plan.luns.values()))
    if not disks:
        return False
    plan.luns[chance.choice(sorted(plan.luns))] = chance.choice(disks)
    return True


def remap(plan, chance):
    host = chance.choice((0, 1))
    numbers = chance.sample(range(LUNS), chance.randint(1, len(plan.luns)))
    luns = chance.sample(sorted(plan.luns), len(numbers))
    plan.rows[host] = {number: (lun, False) for number, lun in zip(numbers, luns)}
    return True


def restore(plan, _chance):
    """Every disk under the number that it had first, as far as it is there: hosts find what they opened again."""
    plan.luns = {0: 0, 1: 1, 2: 2}
    plan.rows = {host: {lun: (lun, False) for lun in plan.luns} for host in (0, 1)}
    return True


def resize(plan, chance):
    disk = chance.choice(sorted(plan.luns.values()))
    if plan.sizes[disk] >= DISK_MIB_MAX:
        return False
    plan.sizes[disk] += 1
    return True


def protect(plan, chance):
    host = chance.choice((0, 1))
    number = chance.choice(sorted(plan.rows[host]))
    lun, read_only = plan.rows[host][number]
    plan.rows[host][number] = (lun, not read_only)
    return True


def refuse(plan, chance):
    plan.refused = chance.choice((0, 1)) if plan.refused is None else None
    return True


def password(plan, _chance):
    plan.secret += 1
    return True


def is_shared(disk):
    """Whether a disk has a name in the configuration, by which targets show it."""
    return disk % 2 == 0


def lun_add(plan, chance):
    free, disks = set(range(LUNS)) - set(plan.luns), set(range(DISKS)) - set(plan.luns.values())
    if not free or not disks:
        return False
    lun, disk = chance.choice(sorted(free)), chance.choice(sorted(disks))
    plan.luns[lun] = disk
    own = f"file:{FOLDER}/disk{disk}.img,size={plan.sizes[disk]}M,naa={NAA}{disk}"
    plan.command = ("lun", "add", TARGET, f"{f'share:disk{disk}' if is_shared(disk) else own},lun={lun}")
    return True


def lun_remove(plan, chance):
    """Every host keeps a LUN: an entry of an access list without one is another entry."""
    spare = [lun for lun in plan.luns if all(any(row[0] != lun for row in rows.values()) for rows in plan.rows.values())]
    if len(plan.luns) < 2 or not spare:
        return False
    lun = chance.choice(sorted(spare))
    del plan.luns[lun]
    plan.prune()
    plan.command = ("lun", "remove", TARGET, str(lun), "--force")
    return True


def lun_set(plan, chance):
    # A disk of one target alone is opened for reading only, if nobody may write it.
    shared = [lun for lun, disk in plan.luns.items() if is_shared(disk)]
    if not shared:
        return False
    lun = chance.choice(sorted(shared))
    plan.protected ^= {lun}
    plan.command = ("lun", "set", TARGET, str(lun), f"ro={str(lun in plan.protected).lower()}", "--force")
    return True


def lun_resize(plan, chance):
    own = [lun for lun, disk in plan.luns.items() if not is_shared(disk) and plan.sizes[disk] < DISK_MIB_MAX]
    if not own:
        return False
    lun = chance.choice(sorted(own))
    disk = plan.luns[lun]
    plan.sizes[disk] += 1
    plan.command = ("lun", "resize", TARGET, str(lun), f"{plan.sizes[disk]}M")
    return True


COMMANDS = {"lun add": lun_add, "lun remove": lun_remove, "lun set": lun_set, "lun resize": lun_resize}
CHANGES = {**COMMANDS, "add": add, "remove": remove, "swap": swap, "replace": replace, "remap": remap, "restore": restore, "resize": resize,
           "write protection": protect, "admission": refuse, "password": password}
