"""The cache against a dense forward that knows only the definition, on a tiny model in float64."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaForCausalLM

from cache.attention import Scores
from cache.layout import Layer, Layout
from cache.rope import Rope
from cache.rule import Rule
from cache.session_cache import SessionCache
from cache.slab import UndoExhaustedError
from decoding.model import Model
from decoding.step import Slice, Step
from tests import oracle
from tests.shift import shift

LENGTH = 150
IDS = random.Random(0).choices(range(3, 259), k=LENGTH)
MAX_ROWS = 40


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return Model(tiny_model, torch.device("cpu"), torch.float64)


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)


def new_cache(model: Model, rule: Rule, max_rows: int = MAX_ROWS) -> SessionCache:
    return SessionCache(model.layout, rule, max_rows=max_rows)


def feed(model: Model, cache: SessionCache, ids: Sequence[int], chunks: Sequence[int]) -> Tensor:
    """Logits of ids[cache.length:], forwarded in chunks of these sizes, the last of them repeated."""
    out, sizes = [], list(chunks)
    while cache.length < len(ids):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        tokens = ids[cache.length : cache.length + size]
        step = Step([Slice(cache, tokens, len(tokens))], model.device, model.groups)
        out.append(model.forward(step))
        step.commit()
    return torch.cat(out)


RULES = [Rule(4, 20, 1), Rule(4, 20, 5), Rule(4, 20, 16), Rule(11, 32, 4), Rule(0, 20, 5), Rule(1, 64, 7)]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equals_the_dense_oracle(model: Model, plain: LlamaForCausalLM, rule: Rule) -> None:
    want = oracle.logits(plain, IDS, sinks=rule.sinks, capacity=rule.capacity, block=rule.block)
    for chunks in ([1], [7], [MAX_ROWS], [rule.capacity - rule.sinks, 1, 13], [3, 1, 40, 1, 1, 9]):
        got = feed(model, new_cache(model, rule), IDS, chunks)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("packed", [True, False])
def test_equals_the_plain_model_while_everything_fits(tiny_model: Path, packed: bool) -> None:
    plain = LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model = Model(tiny_model, torch.device("cpu"), torch.float32, packed=packed)
    with torch.no_grad():
        want = plain(torch.tensor([IDS])).logits[0]
    got = feed(model, new_cache(model, Rule(4, LENGTH, 8)), IDS, [9])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("fault", ["sinks not moved", "E off by one", "S = 0"])
def test_a_faulty_cache_fails_the_oracle(
    model: Model, plain: LlamaForCausalLM, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controls: the comparison above sees these faults."""
    rule = Rule(4, 20, 5)
    want = oracle.logits(plain, IDS, sinks=rule.sinks, capacity=rule.capacity, block=rule.block)
    cache = new_cache(model, Rule(0, 20, 5) if fault == "S = 0" else Rule(4, 21, 5) if "off" in fault else rule)
    if fault == "sinks not moved":
        monkeypatch.setattr("cache.rope.Rope.advance", lambda self, keys, by: keys)
    got = feed(model, cache, IDS, [7])
    assert (got[:20] - want[:20]).abs().max() < 1e-10
    assert (got - want).abs().max() > 1e-3


@settings(max_examples=60)
@given(data=st.data())
def test_rolling_back_equals_never_having_seen_the_rest(model: Model, data: st.DataObject) -> None:
    """Across evictions, the undo ring, and moves of the window to the front; several times in a row."""
    sinks, block = data.draw(st.integers(0, 6), "sinks"), data.draw(st.integers(1, 12), "block")
    rule = Rule(sinks, sinks + block + data.draw(st.integers(0, 16), "slack"), block)
    cache, fresh = new_cache(model, rule), new_cache(model, rule)
    want = feed(model, fresh, IDS, [MAX_ROWS])
    stream = list(IDS)
    for _ in range(data.draw(st.integers(1, 4), "roll-backs")):
        upto = data.draw(st.integers(cache.length + 1, LENGTH), "upto")
        wrong = stream[:upto] if upto < 2 else [*stream[: upto - 1], 3]  # what is rolled back differs from what follows
        feed(model, cache, wrong, [data.draw(st.integers(1, MAX_ROWS), "chunk")])
        target = data.draw(st.integers(max(0, upto - rule.capacity), upto - 1), "target")
        try:
            cache.roll_back(target)
        except UndoExhaustedError:
            assert cache.length == upto
            cache = new_cache(model, rule)
            target = 0
        assert cache.length == target
    got = feed(model, cache, IDS, [data.draw(st.integers(1, MAX_ROWS), "chunk")])
    torch.testing.assert_close(got, want[-len(got) :], rtol=0, atol=1e-10)


def test_rolling_back_the_last_capacity_of_tokens_always_works(model: Model) -> None:
    rule = Rule(4, 20, 5)
    for upto in range(30, 90):
        for back in (1, 5, 19):
            cache = new_cache(model, rule)
            feed(model, cache, IDS[:upto], [MAX_ROWS])
            cache.roll_back(upto - back)
            assert cache.length == upto - back


def test_a_second_deeper_roll_back_counts_from_the_furthest_eviction(model: Model) -> None:
    """What the undo ring holds ends at the deepest E reached, also after a roll-back: it cannot bridge a gap."""
    rule = Rule(4, 20, 5)  # 25 rows can be undone
    cache = new_cache(model, rule)
    want = feed(model, new_cache(model, rule), IDS, [13])
    feed(model, cache, IDS[:100], [13])  # E = 80
    cache.roll_back(85)  # E = 65
    with pytest.raises(UndoExhaustedError, match="30 evicted tokens are needed, 25 are kept"):
        cache.roll_back(70)  # E = 50
    cache.roll_back(75)  # E = 55
    torch.testing.assert_close(feed(model, cache, IDS, [13]), want[75:], rtol=0, atol=1e-10)


def test_rolling_back_too_far_says_so_and_changes_nothing(model: Model) -> None:
    rule = Rule(4, 20, 5)
    cache = new_cache(model, rule)
    want = feed(model, new_cache(model, rule), IDS, [13])[-50:]
    feed(model, cache, IDS[:100], [13])
    with pytest.raises(UndoExhaustedError):
        cache.roll_back(10)
    with pytest.raises(ValueError, match="cannot roll back to 101"):
        cache.roll_back(101)
    torch.testing.assert_close(feed(model, cache, IDS, [13]), want, rtol=0, atol=1e-10)


def test_sessions_in_one_step_equal_their_single_runs(model: Model) -> None:
    """Different sinks, lengths and E side by side in one batch."""
    rules = [Rule(4, 20, 5), Rule(9, 32, 4), Rule(4, 64, 16)]
    starts = [5, 60, 100]
    want = [feed(model, new_cache(model, rule), IDS[:140], [11])[-20:] for rule in rules]
    caches = [new_cache(model, rule) for rule in rules]
    for cache, start in zip(caches, starts, strict=True):
        feed(model, cache, IDS[:start], [17])
    got: list[list[Tensor]] = [[], [], []]
    while any(cache.length < 140 for cache in caches):
        slices, owners = [], []
        for index, cache in enumerate(caches):
            if cache.length < 140:
                tokens = IDS[cache.length : min(140, cache.length + index + 1)]
                slices.append(Slice(cache, tokens, len(tokens)))
                owners.append(index)
        step = Step(slices, model.device, model.groups)
        logits = model.forward(step)
        step.commit()
        for owner, part in zip(owners, torch.split(logits, [len(s.tokens) for s in slices]), strict=True):
            got[owner].append(part)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(torch.cat(mine)[-20:], theirs, rtol=0, atol=1e-10)


def test_evicted_values_do_not_matter_and_live_ones_do(model: Model) -> None:
    """Poison in every row outside the view: it must never be read."""
    rule = Rule(4, 20, 5)
    want = feed(model, new_cache(model, rule), IDS, [7])[-50:]
    cache = new_cache(model, rule)
    for tensor in cache.tensors():
        tensor.fill_(float("nan"))
    torch.testing.assert_close(feed(model, cache, IDS, [7])[-50:], want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("start", [2**17, 2**20, 2**24 + 1])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_logits_at_millions_equal_those_at_small_positions(
    tiny_model: Path, start: int, dtype: torch.dtype, atol: float
) -> None:
    """The state depends on distances only: the same text, begun at a large position after a long evicted past."""
    model = Model(tiny_model, torch.device("cpu"), dtype)
    rule = Rule(4, 20, 5)
    start -= start % rule.block
    want = feed(model, new_cache(model, rule), IDS, [7])[rule.capacity + 30 :]
    cache = new_cache(model, rule)
    feed(model, cache, IDS[: rule.capacity], [7])
    shift(cache, start)  # as if `start` tokens had come and gone: the window's rows are turned on, E moves with them
    stream = Stream(start, IDS)
    got = feed(model, cache, stream, [7])[30:]
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


class Stream(Sequence[int]):
    """ids whose first one has the text position `start`."""

    def __init__(self, start: int, ids: list[int]) -> None:
        self.start, self.ids = start, ids

    def __len__(self) -> int:
        return self.start + len(self.ids)

    def __getitem__(self, item):  # type: ignore[no-untyped-def]
        return self.ids[item.start - self.start : item.stop - self.start]


def test_memory_is_what_is_announced_and_never_grows(model: Model) -> None:
    rule = Rule(4, 20, 5)
    cache = new_cache(model, rule)
    assert sum(tensor.numel() * tensor.element_size() for tensor in cache.tensors()) == SessionCache.bytes(
        model.layout, rule, max_rows=MAX_ROWS
    )
    pointers = [tensor.data_ptr() for tensor in cache.tensors()]
    feed(model, cache, IDS * 5, [MAX_ROWS])
    assert [tensor.data_ptr() for tensor in cache.tensors()] == pointers


def test_a_prompt_of_five_times_the_capacity_equals_the_same_tokens_one_by_one(model: Model) -> None:
    rule = Rule(4, 30, 7)
    at_once, one_by_one = new_cache(model, rule), new_cache(model, rule)
    want = feed(model, at_once, IDS, [MAX_ROWS])
    torch.testing.assert_close(feed(model, one_by_one, IDS, [1]), want, rtol=0, atol=1e-10)
    more = [*IDS, *reversed(IDS)]
    want = feed(model, at_once, more, [1])
    torch.testing.assert_close(feed(model, one_by_one, more, [MAX_ROWS]), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equals_the_papers_path(model: Model, plain: LlamaForCausalLM, rule: Rule) -> None:
    """Raw keys, all of them rotated to their places in the cache whenever E moves."""
    want = oracle.logits(plain, IDS, sinks=rule.sinks, capacity=rule.capacity, block=rule.block, cache_positions=True)
    torch.testing.assert_close(feed(model, new_cache(model, rule), IDS, [7]), want, rtol=0, atol=1e-10)


def test_the_oldest_live_key_and_the_sinks_matter_and_evicted_ones_do_not(model: Model) -> None:
    rule = Rule(4, 20, 5)

    def logits(*changed: int) -> Tensor:
        """Of the last token, with the values at these text positions changed before it came."""
        cache = new_cache(model, rule)
        feed(model, cache, IDS[:61], [13])  # the next query has the same E
        (group,) = cache._sinks
        for position in changed:
            row = position + rule.evicted(61) if position < rule.sinks else position
            group._slab.view(0, row, row + 1)[1] += 1.0
        return feed(model, cache, IDS[:62], [1])[0]

    want, oldest = logits(), rule.sinks + rule.evicted(61)
    assert rule.evicted(60) == rule.evicted(61) == 45
    assert torch.equal(logits(oldest - 1 - rule.sinks), want)  # the rows right before the window hold the sinks
    for position in (oldest, *range(rule.sinks)):
        assert (logits(position) - want).abs().max() > 1e-6


def test_sinks_do_not_drift_over_a_hundred_thousand_evictions() -> None:
    """In bfloat16, where keys that are turned on from turned ones are destroyed after 4,096 of them."""
    rope = Rope(10000.0 ** -(torch.arange(8, dtype=torch.float64) / 8))
    layout = Layout((Layer(rope),), 1, 16, torch.bfloat16, torch.device("cpu"))
    rule = Rule(4, 70, 1)
    cache = SessionCache(layout, rule, max_rows=512)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(512, 2, 1, 16, generator=generator).bfloat16()
    while cache.length < 100_000 + rule.capacity:
        cache.begin(512, 1)
        cache.attend(0, rows[:, :1, 0], rows, Scores(0.25))
        cache.commit(range(512))
    (group,) = cache._sinks
    evicted = rule.evicted(cache.length - 1)
    assert evicted > 100_000
    sinks = group._slab.view(0, evicted, evicted + 4)
    assert torch.equal(sinks[0, 0], rope.advance(rows[:4, 0, 0], evicted))
    assert torch.equal(sinks[1, 0], rows[:4, 1, 0])
