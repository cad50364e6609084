"""Namespaces of Linux that a rig enters, so that what it makes is seen by nobody else and ends with it."""

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
# Set while this process is root in a namespace of users only, which may not mount what is on a device.
MARK = "TARGE_RIG_NAMESPACE"


def become_root():
    """Makes this process root of a user namespace if it is not root. Returns whether it is root now. The process has one thread."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        return True
    if LIBC.unshare(CLONE_NEWUSER) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    os.environ[MARK] = "1"
    return True


def hide_mounts():
    """Makes the mounts of this process and of its children its own: they end with it."""
    if LIBC.unshare(CLONE_NEWNS) != 0 or LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace")


def is_real_root():
    """Whether this process may do what only root of the machine may."""
    return os.geteuid() == 0 and MARK not in os.environ
