"""A session in figures. No torch: the API process reads these, too."""

import msgspec


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Of a session as it is between two steps."""

    tokens: int  # all that it holds, evicted ones too
    cached: int  # of them are forwarded
    live: int  # of them the next query sees
    evicted: int  # of them no further query sees
    pinned: int  # of them are kept as sinks
    capacity: int
    bytes: int  # of memory: its cache, or its packed copy, and its ids
    parked: bool  # whether it is in host memory, and has no place
