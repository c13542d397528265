"""The cache of one session: append rows, attend, commit, roll back. Bounded memory, for ever."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from cache.attention import Scores
from cache.layout import Layer, Layout
from cache.packed import Packed
from cache.rule import Rule, Run
from cache.sink_group import SinkGroup, Sizes
from cache.span import TILE_KEYS
from cache.tree import tree
from cache.window_group import WindowGroup


class SessionCache:
    """Keys and values of one session, all layers, under the rule: the first S tokens and the latest ones.

    A step is `begin(rows)`, `attend` once for each layer, `commit(kept)`. Rows of one step are consecutive text
    positions, or a tree of drafts: a row for the next position, and others that continue it in several ways.
    A layer with a sliding window of its own that is no larger than C keeps that, and follows the rule otherwise.
    """

    limit: int | None = None  # most tokens it takes; None: there is no end

    def __init__(self, layout: Layout, rule: Rule, *, max_rows: int) -> None:
        """max_rows: most rows of one step."""
        self.layout, self.rule = layout, rule
        self.length = 0  # committed tokens; the next row has this text position
        self._begin = 0  # text position of the first token there is, where windows are computed anew
        sizes = self._sizes(rule, max_rows)
        self._windows: list[WindowGroup] = []
        self._sinks: list[SinkGroup] = []  # one, or none where all layers keep windows
        places: dict[int, tuple[SinkGroup | WindowGroup, int]] = {}
        for window, members in _grouped(layout, rule).items():
            layers = [layout.layers[index] for index in members]
            group: SinkGroup | WindowGroup
            if window is None:
                group = SinkGroup(layout, layers, rule, sizes)
                self._sinks.append(group)
            else:
                rows = self._window_rows(rule, window, max_rows)
                group = WindowGroup(layout, len(layers), window, rows=rows, undo=sizes.undo)
                self._windows.append(group)
            places |= {index: (group, place) for place, index in enumerate(members)}
        self._places = [places[index] for index in range(len(layout.layers))]
        self._groups: list[SinkGroup | WindowGroup] = [*self._sinks, *self._windows]

    @staticmethod
    def _sizes(rule: Rule, max_rows: int) -> Sizes:
        """The window and room behind it, so that it moves to the front once in C tokens or more; and as many rows as
        it takes to undo C tokens, which leave in blocks.
        """
        room = max(rule.capacity, max_rows + 64)
        return Sizes(rows=rule.capacity + room, sinks=rule.sinks, undo=rule.capacity + rule.block)

    @classmethod
    def _window_rows(cls, rule: Rule, window: int, max_rows: int) -> int:
        """Rows of a layer that keeps its own window: that, what a roll-back needs, and room behind it."""
        kept = window + cls._sizes(rule, max_rows).undo + TILE_KEYS
        return kept + max(kept, max_rows + 64)

    @classmethod
    def bytes(cls, layout: Layout, rule: Rule, *, max_rows: int) -> int:
        """Memory of one session's cache, in bytes; it never grows."""
        rows = 0
        for window, members in _grouped(layout, rule).items():
            each = sum(cls._sizes(rule, max_rows)) if window is None else cls._window_rows(rule, window, max_rows)
            rows += len(members) * (each + TILE_KEYS)
        return layout.token_bytes * rows

    def tensors(self) -> list[Tensor]:
        """All memory it has, `bytes` in sum."""
        return [tensor for group in self._groups for tensor in group.tensors()]

    def waiting(self, length: int) -> int:
        """Rows still to forward, from text position `self.length` on, before a session of `length` tokens goes on."""
        return length - self.length

    def reach(self) -> int:
        """How many of the next text positions have the same keys evicted: what a tree can be accepted to."""
        return self.rule.reach(self.length)

    def begin(self, rows: int, groups: int, ancestors: Sequence[int] | None = None) -> None:
        """Makes room for the next `rows` rows, at most max_rows. groups: query heads per KV head.

        ancestors: for a tree, which rows each of them sees, as a bit mask; parents stand before their children.
        All see what the first one sees of the committed tokens: rows deeper than `reach` are not to be kept.
        """
        start, stop = self.length, self.length + rows
        branches = None if ancestors is None else tree(ancestors, self.layout.device)
        runs = self._runs(start, stop)
        if branches is not None:
            runs = [next(iter(runs))._replace(stop=stop)]
        for sinks in self._sinks:
            sinks.begin(start, stop, runs, groups, branches)
        for window in self._windows:
            window.begin(start, stop, groups, branches)

    def _runs(self, start: int, stop: int) -> Iterable[Run]:
        """Queries start <= t < stop by what is evicted before them."""
        return self.rule.runs(start, stop)

    def attend(self, layer: int, query: Tensor, kv: Tensor, how: Scores) -> Tensor:
        """Appends this step's rows to a layer and attends from each of them.

        query: [rows, query_heads, head_dim]; kv: [rows, 2, kv_heads, head_dim], keys and values, keys rotated at
        their text position. Returns [rows, query_heads, head_dim].
        """
        group, place = self._places[layer]
        return group.attend(place, query, kv, how)

    def commit(self, rows: Sequence[int]) -> None:
        """These of the step's rows are now part of the session, the others are forgotten: all of them, or of a tree a
        path from its root.
        """
        for group in self._groups:
            group.commit(rows)
        self.length += len(rows)

    def roll_back(self, length: int) -> None:
        """Forgets all tokens from text position `length` on; the state is that of a fresh prefill of the rest.

        Raises UndoExhaustedError, and changes nothing, where the roll-back reaches past what is kept.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back to {length}: the session has {self.length} tokens")
        for group in self._groups:
            group.check_roll_back(length)
        for group in self._groups:
            group.roll_back(length)
        self.length = length

    def pack(self) -> Packed:
        """A compact copy in host memory, between two steps. A cache that unpacks it equals this one in all that
        follows, bit for bit: steps, trees, evictions, and roll-backs as deep as here.
        """
        return Packed(self.length, self._begin, tuple(group.pack(self.length) for group in self._groups))

    def head(self, length: int) -> Packed | None:
        """The first `length` tokens alone, at most all of them, packed as of a cache that never had more.

        None where that cannot be: some of them, or of those behind them, are evicted.
        """
        if self._begin or length > self.length:
            return None
        parts = [group.head(length) for group in self._groups]
        whole = tuple(part for part in parts if part is not None)
        return Packed(length, 0, whole) if len(whole) == len(parts) else None

    def unpack(self, packed: Packed) -> None:
        """Into an empty cache of the same layout, rule and max_rows; `head`s fit every rule.

        Raises ValueError for what was not packed of such a cache, and this one is of no use then.
        """
        for group, part in zip(self._groups, packed.parts, strict=True):
            group.unpack(part)
        self.length, self._begin = packed.length, packed.begin


def _grouped(layout: Layout, rule: Rule) -> dict[int | None, list[int]]:
    """Layers by the sliding window that they keep; None: they follow the rule."""
    grouped: dict[int | None, list[int]] = {}
    for index, layer in enumerate(layout.layers):
        grouped.setdefault(_own_window(layer, rule), []).append(index)
    return grouped


def _own_window(layer: Layer, rule: Rule) -> int | None:
    return layer.window if layer.window is not None and layer.window <= rule.capacity else None
