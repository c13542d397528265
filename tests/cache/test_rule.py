import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.rule import Rule
from tests import oracle


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    sinks, block = draw(st.integers(0, 9)), draw(st.integers(1, 9))
    return Rule(sinks, sinks + block + draw(st.integers(0, 9)), block)


@given(rules(), st.integers(0, 200))
def test_a_query_sees_itself_its_sinks_and_never_more_than_the_capacity(rule: Rule, t: int) -> None:
    seen = [j for j in range(t + 1) if rule.visible(t, j)]
    assert t in seen
    assert len(seen) <= rule.capacity
    assert seen[: rule.sinks] == list(range(min(rule.sinks, t + 1)))
    if rule.evicted(t):
        assert len(seen) >= rule.capacity - rule.block + 1
    assert max(rule.distance(t, j) for j in seen) <= rule.capacity - 1
    assert sorted((rule.distance(t, j) for j in seen), reverse=True) == list(range(len(seen) - 1, -1, -1))


@given(rules(), st.integers(0, 200))
def test_evicted_equals_counting(rule: Rule, t: int) -> None:
    assert rule.evicted(t) == oracle.evicted(t, rule.capacity, rule.block)


def test_nothing_beyond_the_query_is_visible() -> None:
    assert not Rule(4, 16, 4).visible(5, 6)


@given(rules(), st.integers(0, 100), st.integers(0, 100))
def test_runs_cut_where_e_moves_and_nowhere_else(rule: Rule, start: int, rows: int) -> None:
    runs = list(rule.runs(start, start + rows))
    assert [t for run in runs for t in range(run.start, run.stop)] == list(range(start, start + rows))
    assert all(rule.evicted(t) == run.evicted for run in runs for t in range(run.start, run.stop))
    assert len({run.evicted for run in runs}) == len(runs)


@pytest.mark.parametrize(("sinks", "capacity", "block"), [(4, 8, 0), (4, 8, 5), (8, 8, 1), (-1, 8, 1)])
def test_a_rule_by_which_a_query_could_evict_itself_is_refused(sinks: int, capacity: int, block: int) -> None:
    with pytest.raises(ValueError, match=r"sinks|block"):
        Rule(sinks, capacity, block)
