"""Keys: who may ask, whose is what, how often."""

import pytest

from server.errors import ApiError
from server.keys import NOBODY, Keys


def refusal(keys: Keys, authorization: str) -> ApiError:
    with pytest.raises(ApiError) as refused:
        keys.namespace(authorization)
    return refused.value


def test_without_keys_anybody_may_ask_and_has_all_in_common() -> None:
    assert Keys([]).namespace("") == Keys([]).namespace("Bearer anything") == NOBODY


def test_each_key_has_a_namespace_of_its_own() -> None:
    keys = Keys(["one", "two"])
    assert len({keys.namespace("Bearer one"), keys.namespace("Bearer two"), NOBODY}) == 3
    assert keys.namespace("bearer  one ") == keys.namespace("Bearer one")
    assert "one" not in repr(vars(keys))


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer One", "Bearer one two", "Basic one", "one", "Bearer \udcff"]
)
def test_any_other_is_refused(header: str) -> None:
    refused = refusal(Keys(["one"]), header)
    assert (refused.status, refused.body.code) == (401, "invalid_api_key")
    assert refused.response().headers["www-authenticate"] == "Bearer"
    assert "one" not in refused.body.message.replace("none", "")


def test_a_key_that_has_had_all_of_its_minute_is_told_when_to_come_again() -> None:
    now = 0.0
    keys = Keys(["one", "two"], requests_per_minute=6, clock=lambda: now)
    for _ in range(6):
        keys.spend(b"one")
    with pytest.raises(ApiError) as refused:
        keys.spend(b"one")
    assert (refused.value.status, refused.value.retry_after) == (429, 10)
    keys.spend(b"two")
    now = 10.0
    keys.spend(b"one")
    with pytest.raises(ApiError):
        keys.spend(b"one")
    now = 1e6
    for _ in range(6):  # no more than a minute's are ever saved up
        keys.spend(b"one")
    with pytest.raises(ApiError):
        keys.spend(b"one")
