"""How a rig says what it wants."""


def expect(holds, what):
    """An assertion with words."""
    __tracebackhide__ = True
    if not holds:
        raise AssertionError(what)
