"""From what waits to frames: cutting, parts, acknowledgements in front (§4.11, §9.1, §10.3)."""

from . import blocks, frame, keys
from .exchange import Chunk

ACK_ROOM = 36 + 8 * blocks.RANGES_MAX
PARTS_HEAD = 4


def room_of(path, level, most=None):
    """How long the payload of a frame of this path may be."""
    return min(path.mtu, most or path.mtu) - frame.HEADER_LEN - frame.trailer_len(level)


def said(chunk, piece):
    """The payload proper of a chunk."""
    data = bytes(chunk.exchange.data_out[chunk.off:chunk.off + chunk.length])
    head = chunk.exchange.block if chunk.block else b""
    last, flags = chunk.off + chunk.length >= chunk.end, 0 if chunk.block else frame.DATA
    return blocks.Part(chunk.exchange.tag, last, chunk.off // max(piece, 1), flags, chunk.exchange.xid, chunk.off, head + data)


def length_of(chunk):
    return chunk.length + (len(chunk.exchange.block) if chunk.block else 0)


def cut(chunk, room):
    """The piece of a chunk that fits, and what is left of it or None."""
    fits = room - (len(chunk.exchange.block) if chunk.block else 0)
    if chunk.length <= fits:
        return chunk, None
    return (chunk._replace(length=fits),
            Chunk(chunk.exchange, False, chunk.off + fits, chunk.length - fits, chunk.end))


def gather(queue, room, level, alone=False):
    """Chunks for one frame, taken from the front of `queue`: the first one cut to fit, further ones whole and of the same level."""
    first, rest = cut(queue.popleft(), room)
    if rest:
        queue.appendleft(rest)
    taken, left = [first], room - length_of(first) - PARTS_HEAD
    while queue and not rest and not alone and len(taken) < blocks.PARTS_MAX and queue[0].exchange.level == level:
        needed = length_of(queue[0]) + blocks.ENTRY.size
        if needed > left:
            break
        left -= needed
        taken.append(queue.popleft())
    return taken


def frame_of(chunks, level, sid, ack, room):
    """A Request frame of these chunks, with an Ack block in front if there is one."""
    first, *further = [said(chunk, room) for chunk in chunks]
    payload, flags = first.payload, frame.ELICITS | first.flags
    if further:
        payload, flags = blocks.parts(first.payload, further), flags | frame.PARTS
    if ack:
        payload, flags = ack + payload, flags | frame.ACKS
    return frame.Frame(frame.REQUEST, flags, sid, 0, first.xid, first.off, first.tag, first.last, first.frag, level, payload)


def level_of_session(keyed, levels):
    """The level of Ack, Ask, Abort and Disconnect: the lowest protected one of LEVELS in a keyed session (§7.1)."""
    if not keyed:
        return keys.NONE
    return keys.INTEGRITY if levels & 1 << keys.INTEGRITY else keys.ENCRYPT
