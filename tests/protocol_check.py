#!/usr/bin/env python3
"""Reads golden frames by docs/protocol.md alone, to show that a peer can be written in another language."""
import pathlib
import struct
import sys
import zlib

KINDS = {1: "put", 2: "patch", 3: "delete", 4: "invalidate", 5: "message"}


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def text(data, at):
    (length,) = struct.unpack_from("<H", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def name_filter(data, at):
    mode, count = struct.unpack_from("<BH", data, at)
    at += 3
    names = []
    for _ in range(count):
        name, at = text(data, at)
        names.append(name)
    return " ".join([["all", "include", "exclude"][mode]] + names), at


def hello(data):
    magic, p0, p1, s0, s1, capabilities, payload = struct.unpack_from("<4sHHHHQI", data)
    assert magic == b"AUDS" and capabilities == 0 and payload == 262144
    return f"node {text(data, 24)[0]}, protocol {p0} to {p1}, segments {s0} to {s1}"


def subscribe(data):
    number, has_start = struct.unpack_from("<IB", data)
    at, start = 5, "absent"
    if has_start:
        start = struct.unpack_from("<Q", data, at + 16)[0]
        at += 48
    filters = at
    tables, at = name_filter(data, at)
    origins, at = name_filter(data, at)
    return f"id {number}, start {start}, {tables}, {origins}, filter {fnv(data[filters:at]):016x}"


def segment(data):
    form, flags, length, tables, origins = struct.unpack_from("<HHHBB", data)
    first, last, entries, transactions = struct.unpack_from("<QQII", data, 8)
    end, body = struct.unpack_from("<Q", data, 48)[0], struct.unpack_from("<I", data, 72)[0]
    ids = struct.unpack_from(f"<{tables + origins}H", data, 80)
    assert form == 1 and length == 80 + 2 * len(ids) and length + body == len(data)
    lines = [f"{first} to {last}, end {end}, tables {' '.join(map(str, ids[:tables]))}, "
             f"origins {' '.join(map(str, ids[tables:]))}"]
    at, seen = length, 0
    while at < len(data):
        start, version, origin, marks, count, size, total = struct.unpack_from("<QQHHIII", data, at)
        (crc,) = struct.unpack_from("<I", data, at + 32)
        assert crc == zlib.crc32(data[at : at + 32] + data[at + 40 : at + 40 + size])
        lines.append(f" transaction of origin {origin} at {version >> 16}.{version & 0xFFFF}, {count} of {total}")
        place = at + 40
        for _ in range(count):
            value, key, table, ordinal, offset, kind, bits = struct.unpack_from("<IHHIIBB", data, place)
            place += 20
            k, v = data[place : place + key].decode(), data[place + key : place + key + value].decode()
            lines.append(f"  entry {start + offset}: {KINDS[kind]} table {table} {k} = {v}")
            place += key + value
            seen += 1
        at += 40 + size
    assert seen == entries
    return "\n".join(lines)


for path in sorted(pathlib.Path(sys.argv[1]).glob("*.hex")):
    frame = bytes.fromhex(path.read_text())
    size, kind, flags, reserve, payload_crc, header_crc = struct.unpack_from("<IBBHII", frame)
    payload = frame[16:]
    assert size == len(payload) and header_crc == zlib.crc32(frame[:12]), path
    covered = payload[: struct.unpack_from("<H", payload, 4)[0]] if kind == 6 else payload
    assert payload_crc == zlib.crc32(covered), path
    read = {1: hello, 2: subscribe, 6: segment}.get(kind, lambda data: f"frame type {kind}, {len(data)} bytes")
    print(f"{path.stem}: {read(payload)}")
