"""Sessions that are millions of tokens old, without the wait."""

from cache.session_cache import SessionCache
from cache.window_group import WindowGroup


def shift(cache: SessionCache, by: int) -> None:
    """Moves a full cache's tokens on by so many text positions, evicted as they are: as if others had come and gone."""
    rule, length = cache.rule, cache.length
    assert length >= rule.capacity
    assert rule.evicted(length + by - 1) == rule.evicted(length - 1) + by
    for group in cache._groups:
        members = [layer for layer, (owner, _) in enumerate(cache._places) if owner is group]
        slab = group._slab
        first = (
            max(group._oldest, length - group._window + 1)
            if isinstance(group, WindowGroup)
            else group._evicted + rule.sinks
        )
        for place, layer in enumerate(members):
            rope = cache.layout.layers[layer].rope
            if not isinstance(group, WindowGroup) and not group._evicted:
                group._pristine.layers[place][:] = slab.view(place, 0, rule.sinks)
            if rope is not None:
                keys = slab.view(place, first, length)[0]
                keys[:] = rope.advance(keys, by)
        slab.origin -= by
        if isinstance(group, WindowGroup):
            group._oldest = group._begin = first + by
        else:
            group._evicted = group._deepest = group._evicted + by
            for place in range(len(members)):
                group._place_sinks(place, group._evicted)
    cache.length += by
