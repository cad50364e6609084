"""Calls of CSI, by Debian's gRPC and a few lines of protobuf: just the fields that the rig uses, by their numbers in csi.proto."""

import grpc

# Longest a call may take, seconds.
CALL_MAX_S = 240
OK = grpc.StatusCode.OK


def varint(value):
    data = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        data.append(low | (0x80 if value else 0))
        if not value:
            return bytes(data)


def encode(fields):
    """A message: field number → int, text, bytes, a message as a dict, a map of texts as `Map`, or a list of these."""
    data = b""
    for number, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Map):
                data += encode({number: [{1: key, 2: text} for key, text in one.items()]})
            elif isinstance(one, int):
                data += varint(number << 3) + varint(one)
            else:
                one = encode(one) if isinstance(one, dict) else one.encode() if isinstance(one, str) else one
                data += varint(number << 3 | 2) + varint(len(one)) + one
    return data


class Map(dict):
    """A map of texts."""


def decode(data):
    """A message: field number → list of numbers and bytes."""
    fields, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        assert key & 7 in (0, 2), f"wire type {key & 7}"
        value = number()
        if key & 7 == 2:
            at += value
            value = data[at - value:at]
        fields.setdefault(key >> 3, []).append(value)
    return fields


def texts(fields, number):
    """A map of texts."""
    entries = [decode(entry) for entry in fields.get(number, [])]
    return Map({entry[1][0].decode(): entry.get(2, [b""])[0].decode() for entry in entries})


class Refused(Exception):
    """A call that failed, with its code."""

    def __init__(self, error):
        super().__init__(f"{error.code().name}: {error.details()}")
        self.code = error.code().name


# Access modes.
WRITER, READER, MULTI_READER, MULTI_WRITER, SINGLE_WRITER = 1, 2, 3, 5, 6


def capability(block=False, mode=WRITER, kind="", flags=()):
    """`kind` is the type of a file system, `flags` are its mount options."""
    return {**({1: {}} if block else {2: {1: kind, 2: list(flags)}}), 3: {1: mode}}


def group_of(answer):
    group = decode(answer[1][0])
    members = [decode(one) for one in group[2]]
    assert group[4] == [1] and all(one[6] == group[1] and one[5] == [1] for one in members), "a group is not ready, or its snapshots are not of it"
    return group[1][0].decode(), {one[2][0].decode(): one[3][0].decode() for one in members}


class Calls:
    """A client of one driver."""

    def __init__(self, path):
        self.channel = grpc.insecure_channel(f"unix:{path}")

    def close(self):
        self.channel.close()

    def call(self, service, method, fields):
        ask = self.channel.unary_unary(f"/csi.v1.{service}/{method}", encode, decode)
        try:
            return ask(fields, timeout=CALL_MAX_S, wait_for_ready=False)
        except grpc.RpcError as error:
            raise Refused(error) from None

    def create(self, name, size, block=False, snapshot=None, volume=None, parameters=None):
        # The source is field 6 of the request; a snapshot is field 1 of it, a volume field 2.
        source = {6: {1: {1: snapshot}}} if snapshot else {6: {2: {1: volume}}} if volume else {}
        chosen = {4: Map(parameters)} if parameters else {}
        made = self.call("Controller", "CreateVolume", {1: name, 2: {1: size}, 3: [capability(block)], **chosen, **source})
        return decode(made[1][0])[2][0].decode()

    def delete(self, volume):
        self.call("Controller", "DeleteVolume", {1: volume})

    def publish(self, volume, node, block=False, mode=WRITER, read_only=False):
        told = self.call("Controller", "ControllerPublishVolume",
                         {1: volume, 2: node, 3: capability(block, mode), 4: int(read_only)})
        return texts(told, 1)

    def unpublish(self, volume, node):
        self.call("Controller", "ControllerUnpublishVolume", {1: volume, 2: node})

    def expand(self, volume, size):
        return self.call("Controller", "ControllerExpandVolume", {1: volume, 2: {1: size}})[1][0]

    def snapshot(self, name, volume):
        made = self.call("Controller", "CreateSnapshot", {1: volume, 2: name})
        return decode(made[1][0])[2][0].decode()

    def delete_snapshot(self, snapshot):
        self.call("Controller", "DeleteSnapshot", {1: snapshot})

    def group(self, name, volumes):
        """The ID of a group snapshot, and its snapshots: ID → volume."""
        return group_of(self.call("GroupController", "CreateVolumeGroupSnapshot", {1: name, 2: list(volumes)}))

    def known_group(self, group, snapshots):
        return group_of(self.call("GroupController", "GetVolumeGroupSnapshot", {1: group, 2: list(snapshots)}))

    def delete_group(self, group, snapshots):
        self.call("GroupController", "DeleteVolumeGroupSnapshot", {1: group, 2: list(snapshots)})

    def snapshots(self):
        """ID → volume and group."""
        listed = [decode(decode(entry)[1][0]) for entry in self.call("Controller", "ListSnapshots", {}).get(1, [])]
        return {one[2][0].decode(): (one[3][0].decode(), one.get(6, [b""])[0].decode()) for one in listed}

    def volumes(self):
        listed = self.call("Controller", "ListVolumes", {})
        return [decode(decode(entry)[1][0])[2][0].decode() for entry in listed.get(1, [])]

    def stage(self, volume, path, context, block=False, **how):
        self.call("Node", "NodeStageVolume", {1: volume, 2: Map(context), 3: path, 4: capability(block, **how)})

    def unstage(self, volume, path):
        self.call("Node", "NodeUnstageVolume", {1: volume, 2: path})

    def node_publish(self, volume, staged, path, block=False, read_only=False, **how):
        self.call("Node", "NodePublishVolume", {1: volume, 3: staged, 4: path, 5: capability(block, **how), 6: int(read_only)})

    def node_unpublish(self, volume, path):
        self.call("Node", "NodeUnpublishVolume", {1: volume, 2: path})

    def node_expand(self, volume, path, size):
        return self.call("Node", "NodeExpandVolume", {1: volume, 2: path, 3: {1: size}})[1][0]

    def usage(self, volume, path):
        """Total and used bytes."""
        measured = decode(self.call("Node", "NodeGetVolumeStats", {1: volume, 2: path})[1][0])
        return measured[2][0], measured.get(3, [0])[0]

    def condition(self, volume, path):
        """What is wrong with a volume; empty if nothing is known."""
        condition = decode(self.call("Node", "NodeGetVolumeStats", {1: volume, 2: path})[2][0])
        return condition[2][0].decode() if condition.get(1) == [1] else ""
