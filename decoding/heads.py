"""Pinned blocks that have been computed: many sessions begin with the same one."""

from collections import OrderedDict

from cache.packed import Packed


class Heads:
    """The latest used ones, within a bound in bytes. A row depends on rows before it alone, so each is what it is in
    every text that begins with it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._packed: OrderedDict[tuple[str, bytes], Packed] = OrderedDict()  # the one used last stands last
        self.bytes = 0

    def find(self, namespace: str, ids: bytes) -> Packed | None:
        """The rows of exactly these ids (int32), from this namespace alone: who shares none must not see that another
        has computed them.
        """
        key = (namespace, ids)
        if key in self._packed:
            self._packed.move_to_end(key)
        return self._packed.get(key)

    def add(self, namespace: str, ids: bytes, packed: Packed) -> None:
        """Those that were not used for longest go; what alone is too large is not taken."""
        if packed.bytes > self._max_bytes or (namespace, ids) in self._packed:
            return
        self._packed[namespace, ids] = packed
        self.bytes += packed.bytes
        while self.bytes > self._max_bytes:
            self.bytes -= self._packed.popitem(last=False)[1].bytes
