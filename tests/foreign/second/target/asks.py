"""Asks: PING, MTU, PATH, LEAVE and RECEIVES, as the target takes them (§4.5, §8.2)."""

import secrets
import struct

from .blocks import PATH_TOKEN, Block, block
from .frames import ASK, ELICITS, Drop

PING, MTU, PATH, LEAVE, RECEIVES = 1, 2, 3, 4, 5
ASK_FIXED = {PING: 0, MTU: 2, PATH: 20, LEAVE: 0, RECEIVES: 2}


def take(session, path, frame, payload, now):
    """§4.5. All are acknowledged at once, as ELICITS is set."""
    said = Block(payload, ASK_FIXED)
    if not frame.flags & ELICITS:
        raise Drop("ask")
    if said.kind == PATH:
        take_path(session, path, said)
    elif said.kind == LEAVE:
        if said.info in session.paths and sum(each.left is None for each in session.paths.values()) > 1:
            session.paths[said.info].left = now
    elif said.kind == RECEIVES:
        path.peer_frame_max = struct.unpack(">H", said.fixed)[0]
        path.mtu, path.ladder = min(path.mtu, path.peer_frame_max), path.sizes()


def take_path(session, path, said):
    """§8.2: the challenge is echoed to where it came from, with one of the target's."""
    challenge, echo, frame_max, reserved = struct.unpack(">8s8sHH", said.fixed)
    token = said.items({PATH_TOKEN: 16}).get(PATH_TOKEN)
    if reserved or not any(challenge + echo) or not session.keyed and not path.challenge and token != session.token:
        raise Drop("path")
    if path.challenge and echo == path.challenge:
        path.usable = True
    path.challenge = path.challenge or secrets.token_bytes(8)
    path.peer_frame_max = frame_max or path.peer_frame_max
    path.ladder = path.sizes()
    if any(challenge):
        own = bytes(8) if path.usable else path.challenge
        session.say(path, ASK, block(PATH, 0, own + challenge + struct.pack(">HH", path.port.mtu, 0)), ELICITS)
