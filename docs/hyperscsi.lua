-- Wireshark post-dissector for HyperSCSI, version 2: what stands behind byte 4, which Wireshark's own dissector leaves out.
-- docs/hyperscsi.md is the specification; the numbers in brackets are its sections.
--
--   tshark -X lua_script:docs/hyperscsi.lua -r capture.pcap -V
--   wireshark -X lua_script:docs/hyperscsi.lua
--
-- Filters begin with hyperscsi2, for instance: hyperscsi2.crc.bad || hyperscsi2.malformed

local proto = Proto("hyperscsi2", "HyperSCSI, version 2")

local COMMANDS = {
  [0x00] = "Request", [0x01] = "Reply", [0x10] = "Discovery", [0x11] = "Negotiate", [0x12] = "Negotiated",
  [0x13] = "Disconnect", [0x20] = "Ask", [0x21] = "Ack", [0x40] = "Abort",
}
local LEVELS = { [0] = "none", [1] = "integrity", [2] = "encrypt" }
local ATTRIBUTES = { [1] = "SIMPLE", [2] = "ORDERED", [3] = "HEAD OF QUEUE", [4] = "ACA" }
local FUNCTIONS = {
  [1] = "ABORT TASK", [2] = "ABORT TASK SET", [3] = "CLEAR ACA", [4] = "CLEAR TASK SET", [5] = "LOGICAL UNIT RESET",
  [6] = "TARGET WARM RESET", [7] = "TARGET COLD RESET", [9] = "QUERY TASK", [10] = "QUERY TASK SET",
  [11] = "I_T NEXUS RESET", [12] = "QUERY ASYNCHRONOUS EVENT",
}
local RESULTS = {
  [0] = "complete", [1] = "no such task", [2] = "no such logical unit", [5] = "not supported", [6] = "not authorized",
  [7] = "succeeded", [255] = "rejected",
}
local STATUSES = {
  [0x00] = "GOOD", [0x02] = "CHECK CONDITION", [0x04] = "CONDITION MET", [0x08] = "BUSY", [0x18] = "RESERVATION CONFLICT",
  [0x28] = "TASK SET FULL", [0x30] = "ACA ACTIVE", [0x40] = "TASK ABORTED",
}
local GIVE_UP = { [0] = "asked for", [1] = "too late", [2] = "target broke a rule" }
local GIVEN_UP = { [0] = "never begun", [1] = "aborted", [2] = "had ended", [3] = "initiator broke a rule" }
local GOODBYE = {
  [0] = "closed", [1] = "replaced", [2] = "shutdown", [3] = "a rule was broken", [4] = "not authorized",
  [5] = "keys used up",
}
local REFUSED = {
  [1] = "not authorized", [2] = "parameters", [3] = "busy", [4] = "shutdown", [5] = "password needed",
  [6] = "the group has no password", [7] = "version",
}
local REPAIRS = { [0] = "selective", [1] = "window" }

-- Fields, by the name that follows "hyperscsi2.".
local f = {}
local function field(kind, name, label, ...)
  f[name] = ProtoField[kind]("hyperscsi2." .. name, label, ...)
end

field("bool", "protected", "Protected", 8, nil, 0x80)
field("uint8", "flags", "Flags", base.HEX)
field("bool", "flags.elicits", "To be acknowledged", 8, nil, 0x80)
field("bool", "flags.phase", "Key phase", 8, nil, 0x40)
field("bool", "flags.encrypted", "Encrypted", 8, nil, 0x20)
field("bool", "flags.data", "Data", 8, nil, 0x10)
field("bool", "flags.good", "GOOD status", 8, nil, 0x08)
field("bool", "flags.acks", "Acknowledgement in front", 8, nil, 0x04)
field("bool", "flags.parts", "Several parts", 8, nil, 0x02)
field("uint16", "len", "Payload length")
field("uint32", "sid", "Session", base.HEX)
field("uint64", "pn", "Packet number", base.HEX)
field("uint8", "pn.path", "Path")
field("uint64", "pn.count", "Count")
field("uint32", "xid", "Exchange")
field("uint32", "off", "Offset")
field("bytes", "data", "Data")
field("bytes", "encrypted", "Encrypted payload")
field("bytes", "tag", "Authentication tag")
field("uint32", "crc", "CRC32C", base.HEX)
field("bool", "crc.bad", "CRC32C is wrong")
field("bytes", "padding", "Padding")
field("string", "malformed", "Malformed")

field("string", "block", "Block")
field("uint8", "block.kind", "Kind")
field("uint8", "block.info", "Info", base.HEX)
field("uint16", "block.len", "Length")
field("bytes", "item", "Item")
field("uint8", "item.type", "Type", base.HEX)
field("uint16", "item.len", "Length")

field("bytes", "part", "Part")
field("uint16", "part.tag", "Slot", base.DEC, nil, 0x0ff8)
field("bool", "part.last", "Last", 16, nil, 0x0004)
field("uint16", "part.fragment", "Fragment", base.DEC, nil, 0x03ff)
field("bool", "part.data", "Data", 8, nil, 0x10)
field("bool", "part.good", "GOOD status", 8, nil, 0x08)
field("uint16", "part.len", "Length")
field("uint32", "part.xid", "Exchange")
field("uint32", "part.off", "Offset")

field("uint64", "ack.largest", "Largest packet number", base.HEX)
field("uint32", "ack.delay", "Delay, us")
field("uint32", "ack.first", "First range")
field("uint64", "ack.pn_limit", "Packet number limit", base.HEX)
field("uint32", "ack.xid_limit", "Exchange limit")
field("uint32", "ack.xid_limit_sealed", "Exchange limit, protected")
field("uint32", "ack.overruns", "Overruns")
field("uint32", "ack.gap", "Gap")
field("uint32", "ack.range", "Range")

field("uint8", "command.attribute", "Task attribute", base.DEC, ATTRIBUTES, 0x0f)
field("uint8", "command.priority", "Priority", base.DEC, nil, 0xf0)
field("uint32", "command.after", "After exchange")
field("bytes", "command.lun", "LUN")
field("uint32", "command.data_in_len", "Data-In length")
field("uint32", "command.data_out_len", "Data-Out length")
field("uint32", "command.unsolicited_len", "Unsolicited length")
field("uint16", "command.cdb_len", "CDB length")
field("bytes", "command.cdb", "CDB")
field("uint8", "manage.function", "Function", base.DEC, FUNCTIONS)
field("uint32", "manage.referenced", "Referenced exchange")

field("uint32", "ready.number", "Request for data")
field("uint32", "ready.offset", "Offset wanted")
field("uint32", "ready.len", "Length wanted")
field("uint8", "response.status", "Status", base.HEX, STATUSES)
field("uint32", "response.data_in_len", "Data-In sent")
field("uint64", "response.transferable", "Transferable")
field("uint16", "response.sense_len", "Sense length")
field("bytes", "response.sense", "Sense data")
field("uint8", "managed.result", "Result", base.DEC, RESULTS)

field("uint16", "ask.len", "Length of Ethernet payload")
field("uint64", "ask.challenge", "Challenge", base.HEX)
field("uint64", "ask.echo", "Echo", base.HEX)
field("uint8", "ask.path", "Path")
field("uint8", "abort.reason", "Reason", base.DEC, GIVE_UP)
field("uint8", "abort.result", "Result", base.DEC, GIVEN_UP)
field("uint8", "disconnect.reason", "Reason", base.DEC, GOODBYE)
field("uint32", "disconnect.sid", "Unknown session", base.HEX)

field("bytes", "nonce", "Nonce")
field("bytes", "instance", "Server instance")
field("bool", "discovery.authenticates", "Needs a password", 8, nil, 0x80)
field("bool", "discovery.more", "More logical units", 8, nil, 0x40)
field("string", "group", "Group")
field("string", "target", "Target")
field("string", "initiator", "Initiator")
field("bytes", "lun", "Logical unit")
field("uint8", "lun.level", "Least level", base.DEC, LEVELS)
field("ether", "mac", "Address")
field("uint32", "frame_max", "Longest Ethernet payload")
field("bytes", "handshake", "Handshake")
field("bytes", "isid", "ISID")
field("bytes", "cookie", "Cookie")
field("uint32", "offered_sid", "Session, from now on", base.HEX)
field("bytes", "ke", "Key exchange")
field("bytes", "token", "Token")
field("bytes", "proof", "Proof")
field("bytes", "stretch", "Argon2id: memory, passes, lanes")
field("uint8", "refuse.reason", "Reason", base.DEC, REFUSED)
field("uint32", "retry_after", "Retry after, ms")
field("uint32", "parameter", "Parameter")

local declared = {}
for _, one in pairs(f) do declared[#declared + 1] = one end
proto.fields = declared

local version_field = Field.new("hyperscsi.version")

-- CRC32C, bit by bit through a table of bytes.
local crc_table = {}
for byte = 0, 255 do
  local crc = byte
  for _ = 1, 8 do
    crc = bit.band(crc, 1) == 1 and bit.bxor(bit.rshift(crc, 1), 0x82f63b78) or bit.rshift(crc, 1)
  end
  crc_table[byte] = crc
end

local function crc32c(range)
  local crc, bytes = 0xffffffff, range:bytes()
  for index = 0, bytes:len() - 1 do
    crc = bit.bxor(bit.rshift(crc, 8), crc_table[bit.band(bit.bxor(crc, bytes:get_index(index)), 0xff)])
  end
  return bit.bxor(crc, 0xffffffff) % 0x100000000
end

-- Reads a range from front to back. Past the end is an error, which ends the reading of the payload.
local Reader = {}
Reader.__index = Reader

local function reader(range)
  return setmetatable({ range = range, at = 0, left = range and range:len() or 0 }, Reader)
end

function Reader:take(len)
  if len > self.left then error("cut short", 0) end
  local part = len > 0 and self.range(self.at, len) or nil
  self.at, self.left = self.at + len, self.left - len
  return part
end

function Reader:rest()
  return self:take(self.left)
end

local function add(tree, name, range)
  if range then return tree:add(f[name], range) end
end

-- Items [4.1]: by type, the field of the value or what reads it.
local function items(tree, from, known)
  while from.left > 0 do
    local start = from.at
    local kind, len = from:take(1), from:take(2)
    local value = from:take(len:uint())
    local item = tree:add(f["item"], from.range(start, 3 + len:uint()))
    add(item, "item.type", kind)
    add(item, "item.len", len)
    local what = known[kind:uint()]
    if type(what) == "string" then
      item:set_text(what)
      add(item, what, value)
    elseif what then
      what(item, reader(value))
    elseif kind:uint() >= 0x80 then
      error(string.format("an item of type %02xh must be known", kind:uint()), 0)
    end
  end
end

local PARAMETERS = {
  "longest Ethernet payload", "initial frames", "longest ack delay, us", "levels", "exchanges", "first burst",
  "longest burst", "paths", "repair", "lost after, ms",
}

-- Parameters [4.10]: all are numbers.
local function parameters(tree, from)
  tree:set_text("parameters")
  while from.left > 0 do
    local kind, len = from:take(1):uint(), from:take(2):uint()
    local value = from:take(len)
    if value and len <= 4 then
      local line = tree:add(f["parameter"], value, value:uint())
      line:set_text(string.format("%s: %u", PARAMETERS[kind] or "parameter " .. kind, value:uint()))
    end
  end
end

local function luns(tree, from)
  tree:set_text("logical units")
  while from.left > 0 do
    add(tree, "lun", from:take(8))
    add(tree, "lun.level", from:take(1))
  end
end

local function macs(tree, from)
  tree:set_text("addresses")
  while from.left > 0 do add(tree, "mac", from:take(6)) end
end

local DISCOVERY_ITEMS = { [0x81] = "group", [0x82] = "target", [0x03] = luns, [0x04] = macs, [0x05] = "frame_max" }
local NEGOTIATE_ITEMS = {
  [0x81] = "group", [0x82] = "target", [0x83] = "initiator", [0x84] = "isid", [0x85] = "cookie", [0x86] = "offered_sid",
  [0x87] = parameters, [0x88] = "ke", [0x89] = "ke", [0x8a] = "ke", [0x8b] = "token", [0x8c] = "instance",
  [0x0d] = "retry_after", [0x8e] = "stretch", [0x8f] = "proof",
}

local function negotiation(name)
  return { name, function(tree, from, info)
    add(tree, "handshake", from:take(16))
    if name == "REFUSE" then add(tree, "refuse.reason", info) end
    items(tree, from, NEGOTIATE_ITEMS)
  end }
end

local function ask_len(tree, from) add(tree, "ask.len", from:take(2)) end

local function one(name) return function(tree, _, info) add(tree, name, info) end end

local function ack(tree, from, info)
  add(tree, "ack.largest", from:take(8))
  add(tree, "ack.delay", from:take(4))
  add(tree, "ack.first", from:take(4))
  add(tree, "ack.pn_limit", from:take(8))
  add(tree, "ack.xid_limit", from:take(4))
  add(tree, "ack.overruns", from:take(4))
  for _ = 1, info:uint() do
    add(tree, "ack.gap", from:take(4))
    add(tree, "ack.range", from:take(4))
  end
end

-- Blocks [4.2 to 4.9]: by command and kind, a name and what reads the fixed fields. What is left are items.
local ACKS = { { "ACK of frames without protection", ack }, { "ACK of protected frames", ack } }
local BLOCKS = {
  [0x00] = {
    { "COMMAND", function(tree, from, info)
      add(tree, "command.priority", info)
      add(tree, "command.attribute", info)
      add(tree, "command.after", from:take(4))
      add(tree, "command.lun", from:take(8))
      add(tree, "command.data_in_len", from:take(4))
      add(tree, "command.data_out_len", from:take(4))
      add(tree, "command.unsolicited_len", from:take(4))
      local len = from:take(2)
      add(tree, "command.cdb_len", len)
      from:take(2)
      add(tree, "command.cdb", from:take(len:uint()))
    end },
    { "MANAGE", function(tree, from, info)
      add(tree, "manage.function", info)
      add(tree, "command.after", from:take(4))
      add(tree, "command.lun", from:take(8))
      add(tree, "manage.referenced", from:take(4))
    end },
  },
  [0x01] = {
    { "TRANSFER READY", function(tree, from)
      add(tree, "ready.number", from:take(4))
      add(tree, "ready.offset", from:take(4))
      add(tree, "ready.len", from:take(4))
    end },
    { "RESPONSE", function(tree, from, info)
      add(tree, "response.status", info)
      add(tree, "response.data_in_len", from:take(4))
      add(tree, "response.transferable", from:take(8))
      local len = from:take(2)
      add(tree, "response.sense_len", len)
      from:take(2)
      add(tree, "response.sense", from:take(len:uint()))
    end },
    { "MANAGED", one("managed.result") },
  },
  [0x10] = {
    { "QUESTION", function(tree, from)
      add(tree, "nonce", from:take(16))
      items(tree, from, DISCOVERY_ITEMS)
    end },
    { "ANSWER", function(tree, from, info)
      add(tree, "discovery.authenticates", info)
      add(tree, "discovery.more", info)
      add(tree, "nonce", from:take(16))
      add(tree, "instance", from:take(16))
      items(tree, from, DISCOVERY_ITEMS)
    end },
  },
  [0x11] = { [1] = negotiation("HELLO"), [3] = negotiation("START"), [5] = negotiation("FINISH") },
  [0x12] = {
    [2] = negotiation("COOKIE"), [4] = negotiation("ANSWER"), [6] = negotiation("ACCEPT"), [7] = negotiation("REFUSE"),
  },
  [0x13] = {
    { "GOODBYE", one("disconnect.reason") },
    { "DONE", function() end },
    { "UNKNOWN", function(tree, from) add(tree, "disconnect.sid", from:take(4)) end },
  },
  [0x20] = {
    { "PING", function() end },
    { "MTU", ask_len },
    { "PATH", function(tree, from)
      add(tree, "ask.challenge", from:take(8))
      add(tree, "ask.echo", from:take(8))
      add(tree, "ask.len", from:take(2))
      from:take(2)
      items(tree, from, { [0x81] = "token" })
    end },
    { "LEAVE", one("ask.path") },
    { "RECEIVES", ask_len },
  },
  [0x21] = ACKS,
  [0x40] = { { "GIVE UP", one("abort.reason") }, { "GIVEN UP", one("abort.result") } },
}

-- Reads one block; returns its name.
local function block(tree, from, blocks)
  local start = from.at
  local kind, info, len = from:take(1), from:take(1), from:take(2)
  if len:uint() < 4 then error("a block shorter than its head", 0) end
  local body = reader(from:take(len:uint() - 4))
  local what = blocks[kind:uint()]
  if not what then error("a block of unknown kind " .. kind:uint(), 0) end
  local branch = tree:add(f["block"], from.range(start, len:uint()), what[1])
  add(branch, "block.kind", kind)
  add(branch, "block.info", info)
  add(branch, "block.len", len)
  what[2](branch, body, info)
  items(branch, body, {})
  return what[1]
end

-- What one part holds: data, or a block with data or padding behind it.
local function proper(tree, from, command, is_data, names)
  if is_data then
    add(tree, "data", from:rest())
    names[#names + 1] = "data"
    return
  end
  names[#names + 1] = block(tree, from, BLOCKS[command])
  while command == 0x21 and from.left > 0 do names[#names + 1] = block(tree, from, ACKS) end
  -- Data behind a command, else padding.
  if command == 0x00 and from.left > 0 then names[#names + 1] = "data" end
  add(tree, command == 0x00 and "data" or "padding", from:rest())
end

-- The Parts block [4.11]: an entry for each further part. Returns a list of them.
local function entries(tree, from)
  local list, about = {}, nil
  block(tree, from, { { "PARTS", function(branch, body, info)
    about = branch
    if info:uint() < 1 or info:uint() > 63 then error("a number of parts that cannot be", 0) end
    for _ = 1, info:uint() do list[#list + 1] = body:take(14) end
  end } })
  for at, entry in ipairs(list) do
    local place, flags = entry(0, 3):uint(), entry(3, 1):uint()
    if place >= 0x100000 or bit.band(flags, 0xe7) ~= 0 then error("a reserved bit of a part is set", 0) end
    local line = about:add(f["part"], entry)
    line:set_text("further part " .. at)
    line:add(f["part.tag"], entry(0, 2))
    line:add(f["part.last"], entry(1, 2))
    line:add(f["part.fragment"], entry(1, 2))
    line:add(f["part.data"], entry(3, 1))
    line:add(f["part.good"], entry(3, 1))
    line:add(f["part.len"], entry(4, 2))
    line:add(f["part.xid"], entry(6, 4))
    line:add(f["part.off"], entry(10, 4))
  end
  return list
end

local function payload(tree, from, command, flags)
  local names, further = {}, {}
  if bit.band(flags, 0x04) ~= 0 then names[#names + 1] = block(tree, from, ACKS) end
  if bit.band(flags, 0x02) ~= 0 then
    if command > 0x01 then error("parts in a frame that has none", 0) end
    further = entries(tree, from)
  end
  local len = from.left
  for _, entry in ipairs(further) do len = len - entry(4, 2):uint() end
  if len < 0 then error("parts longer than the payload", 0) end
  proper(tree, reader(from:take(len)), command, bit.band(flags, 0x10) ~= 0, names)
  for at, entry in ipairs(further) do
    local part = from:take(entry(4, 2):uint())
    local branch = part and tree:add(f["part"], part) or tree
    if part then branch:set_text(string.format("Part %d: exchange %u", at + 1, entry(6, 4):uint())) end
    proper(branch, reader(part), command, bit.band(entry(3, 1):uint(), 0x10) ~= 0, names)
  end
  return names
end

local function frame(tree, from, info)
  from:take(4)
  local code, flags = from:take(1), from:take(1)
  local command, bits = bit.band(code:uint(), 0x7f), flags:uint()
  local protected, encrypted = code:uint() >= 0x80, bit.band(bits, 0x20) ~= 0
  add(tree, "protected", code)
  local branch = add(tree, "flags", flags)
  for _, name in ipairs({ "elicits", "phase", "encrypted", "data", "good", "acks", "parts" }) do
    add(branch, "flags." .. name, flags)
  end
  local len = from:take(2)
  add(tree, "len", len)
  add(tree, "sid", from:take(4))
  local pn = from:take(8)
  branch = add(tree, "pn", pn)
  add(branch, "pn.path", pn(0, 1))
  branch:add(f["pn.count"], pn(1, 7), pn(1, 7):uint64())
  add(tree, "xid", from:take(4))
  add(tree, "off", from:take(4))
  local body = from:take(len:uint())
  if protected then
    add(tree, "tag", from:take(16))
  else
    local covered = from.range(0, from.at)
    local crc = from:take(4)
    add(tree, "crc", crc)
    if crc32c(covered) ~= crc:uint() then
      tree:add(f["crc.bad"], crc, true)
      info.malformed = "the CRC is wrong"
    end
  end
  add(tree, "padding", from:rest())
  local name = COMMANDS[command] or string.format("command %02xh", command)
  if encrypted then
    add(tree, "encrypted", body)
    info.text = name .. ", encrypted"
  elseif BLOCKS[command] then
    info.text = name .. ": " .. table.concat(payload(tree, reader(body), command, bits), ", ")
  else
    info.text = name
  end
end

function proto.dissector(tvb, pinfo, tree)
  local version = version_field()
  if not version or version.value ~= 0x20 then return end
  -- The version is byte 3 of what follows the Ethernet header, with or without a VLAN tag.
  local range = tvb(version.offset - 3)
  local branch, info = tree:add(proto, range), {}
  local ok, why = pcall(frame, branch, reader(range), info)
  if not ok then info.malformed = why end
  if info.malformed then branch:add(f["malformed"], range, tostring(info.malformed)) end
  if info.text then
    branch:append_text(", " .. info.text)
    pinfo.cols.info:append(" [" .. info.text .. "]")
  end
end

register_postdissector(proto)
