#!/usr/bin/env python3
"""Content hash (docs/hash.md) of an input file, or with --dump of what `cluster-sim dump` printed."""
import argparse, json, struct, sys

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("file", help="a file, or - for the standard input")
parser.add_argument("--dump", action="store_true", help="the file is a dump")
parser.add_argument("--key-field", metavar="NAME", help="field of each NDJSON line that is the key")
options = parser.parse_args()
data = sys.stdin.buffer.read() if options.file == "-" else open(options.file, "rb").read()
lines = data.split(b"\n")
if lines[-1] == b"":
    lines.pop()
rows = {}
for number, line in enumerate(lines, 1):
    if options.dump:
        key, value = line.split(b"\t")
        key = bytes.fromhex(key[4:].decode()) if key.startswith(b"hex:") else key
        rows[key] = bytes.fromhex(value.decode())
    elif options.key_field:
        rows[str(json.loads(line)[options.key_field]).encode()] = line
    else:
        rows[b"%012d" % number] = line
a = b = 0xCBF29CE484222325
for key in sorted(rows):
    value = rows[key]
    for byte in struct.pack("<I", len(key)) + key + struct.pack("<I", len(value)) + value:
        a = ((a ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        b = (b * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF) ^ byte
print("%016x%016x" % (a, b))
