"""A cache packed and unpacked at random moments against a twin that never is: equal bits in all that follows."""

import random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from cache.attention import Scores
from cache.layout import Layer, Layout
from cache.policy import POLICIES, Policy
from cache.rope import Rope
from cache.rule import Rule
from cache.session_cache import SessionCache
from cache.slab import UndoExhaustedError

CPU = torch.device("cpu")
GROUPS, KV_HEADS, HEAD_DIM, MAX_ROWS = 2, 2, 16, 24
ROPE = Rope(10000.0 ** -(torch.arange(8, dtype=torch.float64) / 8))
PARTIAL = Rope(500.0 ** -(torch.arange(4, dtype=torch.float64) / 4), interleaved=True)
LAYERS = {
    "rule": (Layer(ROPE), Layer(PARTIAL)),
    "mixed": (Layer(ROPE), Layer(ROPE, window=9), Layer(None), Layer(PARTIAL, window=50)),
    "windows": (Layer(ROPE, window=9), Layer(ROPE, window=13)),
}
RULES = [Rule(4, 24, 1), Rule(4, 24, 5), Rule(10, 24, 14), Rule(0, 70, 7)]


class Pair(NamedTuple):
    """Two caches of one text."""

    twin: SessionCache
    moved: SessionCache


def layout_of(layers: str, dtype: torch.dtype, exact: bool) -> Layout:
    return Layout(LAYERS[layers], KV_HEADS, HEAD_DIM, dtype, CPU, exact)


def empty(policy: Policy, layout: Layout, rule: Rule) -> SessionCache:
    """Every row that nothing was written to is poison."""
    cache = policy.new_cache(layout, policy.rule(rule.sinks, rule.capacity, rule.block), max_rows=MAX_ROWS)
    for tensor in cache.tensors():
        tensor.fill_(torch.nan)
    return cache


def repacked(policy: Policy, layout: Layout, rule: Rule, cache: SessionCache) -> SessionCache:
    packed = cache.pack()
    for tensor in (tensor for part in packed.parts for tensor in part.tensors):
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    fresh = empty(policy, layout, rule)
    fresh.unpack(packed)
    return fresh


def rows_for(layout: Layout, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Queries and keys with values; whatever the numbers, both caches are given the same."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, KV_HEADS * GROUPS, HEAD_DIM, generator=generator)
    kv = torch.randn(rows, 2, KV_HEADS, HEAD_DIM, generator=generator)
    return query.to(layout.dtype), kv.to(layout.dtype)


def attend(cache: SessionCache, rows: int, seed: int, ancestors: list[int] | None, kept: list[int]) -> Tensor:
    """A step of one cache: what all layers answer."""
    cache.begin(rows, GROUPS, ancestors)
    outputs = []
    for layer in range(len(cache.layout.layers)):
        query, kv = rows_for(cache.layout, rows, 1000 * seed + layer)
        outputs.append(cache.attend(layer, query, kv, Scores(0.25)))
    cache.commit(kept)
    return torch.stack(outputs)


def draw_tree(draw: random.Random, reach: int) -> tuple[list[int], list[int]]:
    """Masks of a random tree, and a path from its root no longer than the reach."""
    masks, parents = [1], [-1]
    for row in range(1, draw.randint(2, 8)):
        parents.append(draw.choice([row - 1, draw.randrange(row)]))
        masks.append(masks[parents[row]] | 1 << row)
    node, path = draw.choice([row for row in range(len(masks)) if masks[row].bit_count() <= reach]), []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return masks, path[::-1]


def step(pair: Pair, draw: random.Random, length: int) -> None:
    """Forwards all that a text of so many tokens waits for, or one token with drafts behind it."""
    seed = draw.randrange(2**20)
    waiting = [cache.waiting(length) for cache in pair]
    assert waiting[0] == waiting[1]
    limit = pair.twin.limit
    if waiting[0] == 1 and draw.random() < 0.7:
        reach = pair.twin.reach() if limit is None else limit - pair.twin.length
        masks, path = draw_tree(draw, reach)
        answers = [attend(cache, len(masks), seed, masks, path) for cache in pair]
        assert torch.equal(*answers)
        return
    while rows := min(pair.twin.waiting(length), draw.choice([1, 5, MAX_ROWS])):
        assert pair.moved.waiting(length) >= rows
        answers = [attend(cache, rows, seed, None, list(range(rows))) for cache in pair]
        assert torch.equal(*answers)


def roll_back(pair: Pair, length: int) -> bool:
    """Whether it could be; both say the same."""
    said = []
    for cache in pair:
        try:
            cache.roll_back(min(length, cache.length))
            said.append("")
        except UndoExhaustedError as error:
            said.append(str(error))
    assert said[0] == said[1]
    return not said[0]


def converse(policy: Policy, layout: Layout, rule: Rule, seed: int, operations: int) -> int:
    """Random steps, roll-backs and moves; returns how many roll-backs went through."""
    draw, done = random.Random(seed), 0
    pair = Pair(empty(policy, layout, rule), empty(policy, layout, rule))
    for _ in range(operations):
        if draw.random() < 0.4:
            pair = Pair(pair.twin, repacked(policy, layout, rule, pair.moved))
        length, limit = pair.twin.length, pair.twin.limit
        if draw.random() < 0.35 and length:
            if roll_back(pair, draw.randint(max(0, length - 2 * rule.capacity), length)):
                done += 1
            else:
                pair = Pair(empty(policy, layout, rule), empty(policy, layout, rule))
            continue
        length += draw.choice([1, 1, 1, rule.block, rule.capacity, 3 * rule.capacity])
        if limit is not None and length > limit:
            length = draw.randint(1, limit)
            roll_back(pair, length - 1)
        step(pair, draw, length)
    assert pair.twin.length == pair.moved.length
    return done


@pytest.mark.parametrize("exact", [True, False], ids=["bits", "fast"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
def test_a_packed_cache_goes_on_as_if_it_had_never_been(
    policy: Policy, layers: str, dtype: torch.dtype, exact: bool
) -> None:
    layout = layout_of(layers, dtype, exact)
    done = sum(converse(policy, layout, rule, seed, 24) for seed, rule in enumerate(RULES))
    assert done > 8


def test_all_that_can_be_undone_is_packed() -> None:
    """Two roll-backs in a row behind one packing, to the last token that the ring reaches, and no further."""
    layout, policy, rule = layout_of("rule", torch.float32, True), POLICIES["sinks"], Rule(4, 24, 5)
    draw = random.Random(0)
    for far in range(1, 30):
        pair = Pair(empty(policy, layout, rule), empty(policy, layout, rule))
        step(pair, draw, 100)
        pair = Pair(pair.twin, repacked(policy, layout, rule, pair.moved))
        if roll_back(pair, 100 - far):
            pair = Pair(pair.twin, repacked(policy, layout, rule, pair.moved))
            roll_back(pair, 100 - far - 5)
        step(pair, draw, 160)


def test_packed_is_a_copy_and_may_be_unpacked_many_times() -> None:
    layout, policy, rule = layout_of("mixed", torch.bfloat16, True), POLICIES["sinks"], RULES[1]
    cache = empty(policy, layout, rule)
    cache.begin(20, GROUPS)
    attend(cache, 20, 1, None, list(range(20)))
    packed = cache.pack()
    want = attend(cache, 20, 2, None, list(range(20)))
    for _ in range(3):
        fresh = empty(policy, layout, rule)
        fresh.unpack(packed)
        assert torch.equal(attend(fresh, 20, 2, None, list(range(20))), want)


def test_there_is_no_slack() -> None:
    """Live rows, the pristine sinks, and the ring: C + (C + B) rows at most in layers that follow the rule."""
    layout, policy, rule = layout_of("rule", torch.bfloat16, True), POLICIES["sinks"], Rule(4, 24, 5)
    cache = empty(policy, layout, rule)
    for _ in range(20):
        attend(cache, 1, 3, None, [0])
    assert cache.pack().bytes == 2 * 20 * layout.token_bytes
    for _ in range(100):
        attend(cache, 7, 3, None, list(range(7)))
    rows = 4 + (cache.length - rule.evicted(cache.length - 1) - 4) + 29
    assert cache.pack().bytes == 2 * rows * layout.token_bytes


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
def test_a_head_is_a_prefill_of_so_many_tokens(policy: Policy, layers: str) -> None:
    layout, rule = layout_of(layers, torch.bfloat16, True), Rule(10, 24, 5)
    whole, short = empty(policy, layout, rule), empty(policy, layout, rule)
    for row in range(10):
        for cache in (whole, short):
            attend(cache, 1, row, None, [0])
    for row in range(10, 20):
        attend(whole, 1, row, None, [0])
    packed = whole.head(10)
    assert packed is not None
    fresh = empty(policy, layout, rule)
    fresh.unpack(packed)
    draw = random.Random(0)
    for length in (11, 18, 24):
        step(Pair(short, fresh), draw, length)
    assert whole.head(21) is None


def test_there_is_no_head_once_something_is_evicted() -> None:
    for policy, layers in (("sinks", "rule"), ("window", "mixed"), ("recompute", "windows")):
        rule = POLICIES[policy].rule(4, 24, 5)
        cache = empty(POLICIES[policy], layout_of(layers, torch.float32, True), rule)
        while rows := min(cache.waiting(90), MAX_ROWS):
            attend(cache, rows, 1, None, list(range(rows)))
        assert cache.head(4) is None


def test_a_head_of_a_text_that_was_rolled_back_forgets_that_it_was_longer() -> None:
    layout, policy, rule = layout_of("rule", torch.float32, True), POLICIES["sinks"], Rule(4, 24, 5)
    cache = empty(policy, layout, rule)
    attend(cache, 24, 1, None, list(range(24)))
    attend(cache, 24, 2, None, list(range(24)))
    cache.roll_back(20)
    packed = cache.head(15)
    assert packed is not None
    fresh, plain = empty(policy, layout, rule), empty(policy, layout, rule)
    fresh.unpack(packed)
    attend(plain, 24, 1, None, list(range(15)))  # the rows behind are forgotten: a prefill of 15 of these
    draw = random.Random(0)
    for length in (40, 70):
        step(Pair(plain, fresh), draw, length)
    assert roll_back(Pair(plain, fresh), 45)


@pytest.mark.parametrize("other", ["rule", "rows", "layers", "dtype"])
def test_what_is_packed_of_another_cache_is_refused(other: str) -> None:
    layout, policy, rule = layout_of("rule", torch.float32, True), POLICIES["sinks"], Rule(4, 24, 5)
    cache = empty(policy, layout, rule)
    for seed in range(4):
        attend(cache, 24, seed, None, list(range(24)))
    if other == "rule":
        fresh = empty(policy, layout, Rule(5, 24, 5))
    elif other == "rows":
        fresh = policy.new_cache(layout, Rule(4, 12, 5), max_rows=1)
    elif other == "layers":
        fresh = empty(policy, layout_of("mixed", torch.float32, True), rule)
    else:
        fresh = empty(policy, layout_of("rule", torch.bfloat16, True), rule)
    with pytest.raises(ValueError, match=r"fit into|not in|argument|not of"):
        fresh.unpack(cache.pack())
