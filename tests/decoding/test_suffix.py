"""The suffix index against a search through all of the text."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.suffix import Suffixes


def search(ids: list[int], context: list[int], limit: int) -> list[tuple[int, int]]:
    """(length of the match, place of its last token) for all that is indexed, longest and latest first."""
    first = max(0, len(ids) - 1 - limit)
    found = []
    for place in range(first + 1, len(ids) - 1):
        length = 0
        while length < min(len(context), place - first + 1) and ids[place - length] == context[-1 - length]:
            length += 1
        if length:
            found.append((length, place))
    return sorted(found, reverse=True)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 3), min_size=3, max_size=60), st.lists(st.integers(0, 3), max_size=3))
def test_the_first_proposal_follows_the_longest_match(text: list[int], drafted: list[int]) -> None:
    index = Suffixes(text, limit=64)
    index.extend(len(text))
    context = [*text[-16:], *drafted][-16:]
    found = search(text, context, 64)
    got = list(index.propose(context))
    if not found:
        assert got == []
        return
    length, place = found[0]
    near = [match for match in found if match[0] >= 2][:16]
    if len(near) < 16:  # else later places hide an earlier, longer match: a lookup is bounded
        assert got[0] == (text[place + 1], 4 * min(length, 8) - 3)
    assert len({token for token, _ in got}) == len(got) <= 4
    assert {token for token, _ in got} <= {text[place + 1] for _, place in found}


def test_it_slides_over_a_text_without_end_and_its_memory_is_bounded() -> None:
    ids = random.Random(0).choices(range(6), k=3000)
    index = Suffixes(ids, limit=256)
    for length in range(1, len(ids) + 1):
        index.extend(length)
        if length % 7 == 0 and length > 2:
            got = dict(index.propose(ids[max(0, length - 4) : length]))
            allowed = {ids[place + 1] for _, place in search(ids[:length], ids[max(0, length - 4) : length], 256)}
            assert set(got) <= allowed
            assert got
    assert sum(len(array) for array in (index._pairs, index._pair_heads, index._singles, index._single_heads)) == 1024


@pytest.mark.parametrize("length", [1000, 1500, 2050, 5000, 9000])
def test_a_text_at_once_is_indexed_as_token_by_token(length: int) -> None:
    for ids in (list(range(length)), random.Random(length).choices(range(300), k=length)):
        at_once, one_by_one = Suffixes(ids, limit=4096), Suffixes(ids, limit=4096)
        at_once.extend(length)
        for end in range(length + 1):
            one_by_one.extend(end)
        for end in range(max(2, length - 4090), length, 7):
            proposed = list(at_once.propose(ids[end - 2 : end]))
            assert proposed
            assert proposed == list(one_by_one.propose(ids[end - 2 : end]))


@pytest.mark.parametrize("limit", [64, 1024])
def test_taking_tokens_back_equals_never_having_had_them(limit: int) -> None:
    random_ = random.Random(limit)
    ids: list[int] = []
    index = Suffixes(ids, limit=limit)
    for _ in range(200):
        if random_.random() < 0.4:
            keep = random_.randint(max(0, len(ids) - limit // 2), len(ids))
            index.truncate(keep)
            del ids[keep:]
        ids.extend(random_.choices(range(4), k=random_.randint(1, 40)))
        index.extend(len(ids))
        context = ids[-8:]
        if len(context) > 1:
            fresh = Suffixes(ids, limit=limit)
            fresh.extend(len(ids))
            shown = list(index.propose(context))
            if len(ids) < limit:
                assert shown == list(fresh.propose(context))
            assert {token for token, _ in shown} <= {ids[place + 1] for _, place in search(ids, context, len(ids))}


def test_a_long_text_at_once_is_indexed_from_its_end() -> None:
    ids = [1, 2, 3] * 1000 + [7, 8, 9] * 100 + [7, 8]
    index = Suffixes(ids, limit=256)
    index.extend(len(ids))
    assert next(iter(index.propose([3, 7, 8])))[0] == 9
    assert list(index.propose([1, 2])) == []  # too long ago
