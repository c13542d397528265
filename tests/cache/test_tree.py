"""Trees of drafts in flight: each row equals a prefill of its path, and what is kept equals never having drafted."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cache.policy import POLICIES, Policy
from cache.rule import Rule
from cache.session_cache import SessionCache
from cache.span import Shape, branches, causal
from cache.tree import MAX_TREE_ROWS, tree
from decoding.drafts import ROOT, Trie
from decoding.model import Model
from decoding.step import Slice, Step
from tests.families import FAMILIES, build

IDS = random.Random(0).choices(range(3, 97), k=150)
MAX_ROWS = 40
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["llama", "native windows", "llama, exact", "native windows, exact"])
def model(request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    exact = "exact" in request.param
    folder = tiny_model
    if "llama" not in request.param:
        folder = tmp_path_factory.mktemp("family")
        build(FAMILIES["qwen2, window 9"].config).save_pretrained(folder)
    model = Model(folder, CPU, torch.float64)
    model.layout = replace(model.layout, exact=exact)
    return model


def draw_trie(data: st.DataObject, nodes: int) -> Trie:
    trie = Trie()
    for _ in range(nodes):
        trie.grow(data.draw(st.integers(0, len(trie) - 1), "parent"), data.draw(st.integers(3, 9), "token"))
    return trie


def path_to(trie: Trie, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = trie.parents[node]
    return path[::-1]


def forward(model: Model, cache: SessionCache, pending: int, trie: Trie) -> Tensor:
    step = Step([Slice(cache, [pending, *trie.tokens[1:]], len(trie), trie.ancestors)], model.device, model.groups)
    return model.forward(step)


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
def test_each_row_equals_a_prefill_of_its_path(model: Model, policy: Policy, data: st.DataObject) -> None:
    """Off-chain branches, every depth, before and behind evictions; then the kept path goes on as if prefilled."""
    rule = policy.rule(4, 24, data.draw(st.integers(1, 8), "block"))
    cache = policy.new_cache(model.layout, rule, max_rows=MAX_ROWS)
    length = data.draw(st.integers(1, 22 if policy.name == "dense" else 80), "length")
    text = IDS[:length]
    feed(model, cache, text)
    for _ in range(data.draw(st.integers(1, 3), "steps")):
        pending = data.draw(st.integers(3, 9), "pending")
        if cache.limit is not None and len(text) + 1 > cache.limit:
            return
        while cache.waiting(len(text) + 1) > 1:  # a policy that restarts does so here
            model.extend(cache, text[cache.length : cache.length + MAX_ROWS], 1)
        trie = draw_trie(data, data.draw(st.integers(0, 12), "nodes"))
        got = forward(model, cache, pending, trie)
        reach = cache.reach()
        ends = [node for node in range(len(trie)) if trie.depth(node) < reach]
        for node in {ROOT, *data.draw(st.lists(st.sampled_from(ends), max_size=3), "checked")}:
            path = [*text, pending, *(trie.tokens[n] for n in path_to(trie, node)[1:])]
            fresh = policy.new_cache(model.layout, rule, max_rows=MAX_ROWS)
            torch.testing.assert_close(got[node], feed(model, fresh, path), rtol=0, atol=1e-10)
        kept = path_to(trie, data.draw(st.sampled_from(ends), "end"))
        cache.commit(kept)
        text = [*text, pending, *(trie.tokens[node] for node in kept[1:])]
        assert cache.length == len(text)
    if cache.limit is None:
        fresh = policy.new_cache(model.layout, rule, max_rows=MAX_ROWS)
        want = feed(model, fresh, [*text, *IDS[:30]])
        got = feed(model, cache, [*text, *IDS[:30]])
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def feed(model: Model, cache: SessionCache, ids: list[int]) -> Tensor:
    """Forwards what is not there yet; logits of the last row."""
    out = torch.empty(0)
    while rows := cache.waiting(len(ids)):
        out = model.extend(cache, ids[cache.length : cache.length + min(rows, MAX_ROWS)], 1)[0]
    return out


def test_cached_tensors_after_a_branch_equal_a_prefill(model: Model) -> None:
    """0 to depth tokens of a branch that stands behind others: keys and values, not only logits."""
    rule = Rule(4, 24, 8)
    trie = Trie()
    for draft in ([5, 6, 7, 8], [5, 9], [10, 11, 12], [10, 11, 13, 14]):
        trie.add(draft)
    path = path_to(trie, trie.add([10, 11, 13, 14]))
    for length in (3, 16, 40):
        for count in range(1, len(path) + 1):
            cache, fresh = (SessionCache(model.layout, rule, max_rows=MAX_ROWS) for _ in range(2))
            feed(model, cache, IDS[:length])
            forward(model, cache, 3, trie)
            cache.commit(path[:count])
            feed(model, fresh, [*IDS[:length], 3, *(trie.tokens[node] for node in path[1:count])])
            for group, other in zip(cache._groups, fresh._groups, strict=True):
                first = getattr(group, "_evicted", max(0, length - 8))
                for layer in range(len(group._slab.layers)):
                    mine, theirs = (g._slab.view(layer, first, cache.length) for g in (group, other))
                    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_a_chain_is_masked_as_causal_rows_are() -> None:
    chain = tree([(1 << count) - 1 for count in range(1, 6)], CPU)
    assert chain.depths.tolist() == [0, 1, 2, 3, 4]
    shape = Shape(2, torch.float32, CPU)
    for window in (None, 1, 3, 7, 100):
        got = branches(chain, 0, 4, shape, length=11, window=window)
        want = causal(11, 16, 4, shape, length=11, window=window)
        assert got.mask is not None
        assert want.mask is not None
        assert torch.equal(got.mask, want.mask)
        assert got[:4] == want[:4] == (0, 5, 4, 16)


def test_a_tree_of_more_rows_than_there_are_bits_is_refused() -> None:
    assert tree([1] * MAX_TREE_ROWS, CPU).visible.shape == (128, 128)
    with pytest.raises(ValueError, match="at most 128 rows, not 129"):
        tree([1] * 129, CPU)
