"""Frames of protocol 1 as they were first released: never to be changed, so that later versions read them."""

from __future__ import annotations

from stoker.cache.cluster.messages.frames import (
    Blob,
    Challenge,
    Data,
    Flag,
    Hello,
    Hot,
    Kind,
    Message,
    Object,
    Proof,
    Range,
    RangeMiss,
    Read,
    Reason,
    Refused,
    Stat,
    Welcome,
)
from stoker.cache.versions import Strength, Version

EPOCH = 9
VERSION = Version(Strength.ETAG, '"abc"', 5000)
RECORDED: list[tuple[str, Message]] = [
    (
        "435301012a000000090000000000000083a86964656e74697479a764656661756c74a46e6f6465a0a770726f63657373a934"
        "3731312d30306666",
        Hello("default", "", "4711-00ff"),
    ),
    (
        "4353010127000000090000000000000083a86964656e74697479a764656661756c74a46e6f6465a6613a37303730a770726f"
        "63657373a0",
        Hello("default", "a:7070", ""),
    ),
    (
        "4353010231000000090000000000000082a56e6f6e6365c420000102030405060708090a0b0c0d0e0f101112131415161718"
        "191a1b1c1d1e1fa6736563726574c3",
        Challenge(bytes(range(32)), True),
    ),
    (
        "4353010351000000090000000000000082a56e6f6e6365c420000102030405060708090a0b0c0d0e0f101112131415161718"
        "191a1b1c1d1e1fa570726f6f66c420202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f",
        Proof(bytes(range(32)), bytes(range(32, 64))),
    ),
    (
        "4353010456000000090000000000000085a570726f6f66c420000102030405060708090a0b0c0d0e0f101112131415161718"
        "191a1b1c1d1e1fa46e6f6465a6613a37303730a7636c69656e747303a8647261696e696e67c2a5726f6f747391a62f706167"
        "6573",
        Welcome(bytes(range(32)), "a:7070", 3, False, ("/pages",)),
    ),
    (
        "435301050500000009000000000000000877686f3f",
        Refused(Reason.NOT_AUTHENTICATED, "who?"),
    ),
    (
        "435301103f0000000900000000000000010304000a00050002000000881300000000000073337c7c6275636b65742f6b6579"
        "2261626322000000000000000064000000001000000000000088030000",
        Read("s3||", "bucket/key", VERSION, (Range(0, 100), Range(4096, 904)), Flag.ONLY_IF_CACHED),
    ),
    (
        "435301102e000000090000000000000004ff04000a00000001000000000000000000000073337c7c6275636b65742f6b6579"
        "000000000000000001000000",
        Read("s3||", "bucket/key", None, (Range(0, 1),), Flag.PIN),
    ),
    (
        "435301201d000000090000000000000001000000400000004d0000000000000088130000000000006279746573",
        Data(1, 64, 77, 5000, b"bytes"),
    ),
    (
        "435301220500000009000000000000000200000002",
        RangeMiss(2, Reason.CHANGED),
    ),
    (
        "435301270500000009000000000000000000000002",
        Hot(0, 2),
    ),
    (
        "43530111220000000900000000000000000004000a00000000000000dc0500000000000073337c7c6275636b65742f6b6579",
        Stat("s3||", "bucket/key", 1500),
    ),
    (
        "4353012320000000090000000000000003881300000000000000000000000004400500040000002261626322746f6c64",
        Object(VERSION, 2.5, b"told"),
    ),
    (
        "43530112000000000900000000000000",
        Blob(Kind.ASK_RING),
    ),
    (
        "435301240200000009000000000000007b7d",
        Blob(Kind.RING, b"{}"),
    ),
    (
        "43530113000000000900000000000000",
        Blob(Kind.ASK_STATUS),
    ),
    (
        "435301250200000009000000000000007b7d",
        Blob(Kind.STATUS, b"{}"),
    ),
    (
        "43530114000000000900000000000000",
        Blob(Kind.PING),
    ),
    (
        "43530126000000000900000000000000",
        Blob(Kind.PONG),
    ),
    (
        "43530121000000000900000000000000",
        Blob(Kind.FETCHING),
    ),
]
