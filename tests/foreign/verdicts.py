"""How a rig says what it wants."""


def expect(holds, what):
    """An assertion with words."""
    __tracebackhide__ = True
    if not holds:
        raise AssertionError(what)


def same(what, found, wanted):
    """What was found has to be what was wanted."""
    __tracebackhide__ = True
    expect(found == wanted, f"{what}: {found!r}, and not {wanted!r}")
