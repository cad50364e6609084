"""Task management functions (§4.2, §4.3, §13.7)."""

from .blocks import block

ABORT_TASK, ABORT_TASK_SET, CLEAR_TASK_SET, UNIT_RESET, QUERY_TASK, QUERY_TASK_SET = 1, 2, 4, 5, 9, 10
NEED_INTEGRITY = (6, 7, 11)
MANAGED = 3
TURN = 2**31 - 1
COMPLETE, NO_TASK, UNSUPPORTED, NOT_AUTHORIZED, SUCCEEDED = 0, 1, 5, 6, 7


def manage(session, kind, exchange):
    """Carries out the function of an exchange of the class `kind`."""
    unit, function = session.group.unit(exchange.lun), exchange.info
    if exchange.level < unit.least_level or function in NEED_INTEGRITY and exchange.level < session.least_protected:
        return managed(exchange, NOT_AUTHORIZED, max(exchange.level, session.least_protected))
    named = [each for each in kind.tasks if each.lun == exchange.lun]
    if function in (ABORT_TASK, QUERY_TASK):
        named = [each for each in named if each.xid == exchange.referenced & TURN]
    if function == ABORT_TASK:
        managed(exchange, COMPLETE if abort_waiting(kind, exchange) or named else NO_TASK)
    elif function in (ABORT_TASK_SET, CLEAR_TASK_SET, UNIT_RESET):
        managed(exchange, COMPLETE)
    elif function in (QUERY_TASK, QUERY_TASK_SET):
        return managed(exchange, SUCCEEDED if named else COMPLETE)
    else:
        return managed(exchange, UNSUPPORTED)
    for each in named:
        kind.abort(each)


def abort_waiting(kind, exchange):
    """A task that was not handed up yet ends with GIVEN UP 0."""
    waiting = [each for each in kind.waiting if each.xid == exchange.referenced & TURN]
    for each in waiting:
        kind.waiting.remove(each)
        kind.deliver(each.xid)
        each.give_up(0)
    return waiting


def managed(exchange, result, level=None):
    exchange.answered = True
    exchange.say(block(MANAGED, result), level=level)
