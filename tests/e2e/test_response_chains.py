"""Responses that go on from others: in place, as forks, over restarts, and not at all."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, NotFoundError, OpenAI

from tests.e2e.responding import PATH, beside, body, chat, connect, create, read, session
from tests.e2e.serving import Server, receive_until, send, wait_for
from tests.replay import Oracle


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with connect(server) as client:
        yield client


def test_a_chain_goes_on_in_place_and_pays_for_what_is_new(client: OpenAI) -> None:
    """As a chat that sends all again, in the same session."""
    response = create(client, "turn 0", instructions="Be brief.")
    said = [("system", "Be brief."), ("user", "turn 0")]
    assert response.output_text == chat(client, *said, extra_body={"session_id": "beside"})
    said.append(("assistant", response.output_text))
    first, before = session(response)["id"], response.id
    for number in range(1, 5):
        new = f"turn {number}"
        response = create(client, new, instructions="Be brief.", previous_response_id=before)
        assert response.previous_response_id == before
        assert read(response) < 40
        assert (session(response)["id"], session(response)["matched"]) == (first, "extend")
        said.append(("user", new))
        assert response.output_text == chat(client, *said, extra_body={"session_id": "beside"})
        said.append(("assistant", response.output_text))
        before = response.id


def test_to_go_on_from_an_older_response_is_a_fork(client: OpenAI) -> None:
    first = create(client, "a")
    second = create(client, "b", previous_response_id=first.id)
    fork = create(client, "c", previous_response_id=first.id)
    again = create(client, "b", previous_response_id=first.id)
    assert session(fork)["matched"] == "edit"
    assert again.output_text == second.output_text
    assert len({session(one)["id"] for one in (first, fork, again)}) == 3
    assert len({one.id for one in (first, second, fork, again)}) == 4
    for branch, word, rest in ((second, "b", "d"), (fork, "c", "d"), (again, "b", "e")):
        more = create(client, rest, previous_response_id=branch.id)
        assert (session(more)["id"], session(more)["matched"]) == (session(branch)["id"], "extend")
        assert read(more) < 40
        assert more.output_text == beside(client, f"fork-{word}-{rest}", "a", word, rest)


def test_two_conversations_with_the_same_words_stay_apart(client: OpenAI) -> None:
    one, two = create(client, "the same"), create(client, "the same")
    assert one.output_text == two.output_text
    assert session(one)["id"] != session(two)["id"]
    for opening in (one, two):
        more = create(client, "more", previous_response_id=opening.id)
        assert session(more)["id"] == session(opening)["id"]


def test_instructions_hold_for_one_response(client: OpenAI) -> None:
    first = create(client, "a", instructions="Be a pirate.")
    plain = create(client, "b", previous_response_id=first.id)
    said = ("user", "a"), ("assistant", first.output_text), ("user", "b")
    assert plain.output_text == chat(client, *said)
    other = create(client, "b", previous_response_id=first.id, instructions="Be a clerk.")
    assert other.output_text == chat(client, ("system", "Be a clerk."), *said)
    # What an item says as the system is no instruction: it stays.
    items = create(client, [{"role": "system", "content": "Be a pirate."}, {"role": "user", "content": "a"}])
    more = create(client, "b", previous_response_id=items.id)
    assert more.output_text == chat(client, ("system", "Be a pirate."), *said)
    both = create(client, "b", previous_response_id=items.id, instructions="Be a clerk.")
    assert both.output_text == chat(client, ("system", "Be a clerk."), ("system", "Be a pirate."), *said)


def test_what_is_not_stored_is_not_found_again(client: OpenAI) -> None:
    kept = create(client, "kept")
    more = create(client, "more", previous_response_id=kept.id, store=False)
    assert more.output_text == beside(client, "not-stored", "kept", "more")
    assert read(more) < 40  # from a copy
    assert session(more)["id"] != session(kept)["id"]
    assert more.store is False  # type: ignore[attr-defined]
    with pytest.raises(NotFoundError) as unknown:
        create(client, "again", previous_response_id=more.id)
    assert (unknown.value.code, unknown.value.param) == ("previous_response_not_found", "previous_response_id")
    assert session(create(client, "more", previous_response_id=kept.id))["matched"] == "extend"  # it is as it was


def test_a_session_that_a_chat_has_by_name_keeps_what_it_does_not_change(client: OpenAI) -> None:
    first = create(client, "by name")
    second = create(client, "two", previous_response_id=first.id)
    name = {"session_id": session(first)["id"]}
    said = ("user", "by name"), ("assistant", first.output_text)
    chat(client, *said, ("user", "TWO"), extra_body=name)
    assert session(create(client, "more", previous_response_id=first.id))["matched"] == "edit"
    with pytest.raises(NotFoundError):
        create(client, "more", previous_response_id=second.id)


def test_ids_survive_a_restart_and_are_their_keys_own(tiny_model: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"capacity": 256, "block": 16, "api_keys": "one,two"}
    with Server(tiny_model, tmp_path, **settings) as server, connect(server.wait_until_ready(), "one") as client:
        first = create(client, "a", instructions="Be brief.")
        second = create(client, "b", previous_response_id=first.id, instructions="Be brief.")
        third = create(client, "c", previous_response_id=second.id, instructions="Be brief.")
        with connect(server, "two") as other, pytest.raises(NotFoundError):
            create(other, "b", previous_response_id=first.id)
        server.signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    with Server(tiny_model, tmp_path, **settings) as server, connect(server.wait_until_ready(), "one") as client:
        fork = create(client, "c", previous_response_id=second.id, instructions="Be brief.")
        assert fork.output_text == third.output_text
        more = create(client, "d", previous_response_id=third.id, instructions="Be brief.")
        assert (session(more)["id"], session(more)["matched"]) == (session(first)["id"], "extend")
        assert read(more) < 40
        assert (
            create(client, "d", previous_response_id=fork.id, instructions="Be brief.").output_text == more.output_text
        )
        deleted = httpx.delete(
            f"{server.url}/v1/sessions/{session(first)['id']}", headers={"Authorization": "Bearer one"}
        )
        assert deleted.status_code == 200
        with pytest.raises(NotFoundError):
            create(client, "d", previous_response_id=third.id)
        create(client, "d", previous_response_id=fork.id)  # in a session of its own
        server.signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert Oracle(tiny_model, capacity=256, block=16).check(tmp_path / "sessions") > 0


def test_what_must_fit_is_refused_when_it_no_longer_does(tiny_model: Path, tmp_path: Path) -> None:
    with Server(tiny_model, tmp_path, capacity=64, block=8) as server, connect(server.wait_until_ready()) as client:
        first = create(client, "a", truncation="disabled")
        assert (first.truncation, create(client, "a").truncation) == ("disabled", "auto")
        long = create(client, "x" * 40, previous_response_id=first.id, truncation="auto")
        assert session(long)["evicted"] > 0
        with pytest.raises(APIStatusError) as refused:
            create(client, "x" * 40, previous_response_id=first.id, truncation="disabled")
        assert (refused.value.status_code, refused.value.code, refused.value.param) == (
            400, "context_length_exceeded", "input",
        )  # fmt: skip
    with Server(tiny_model, tmp_path, policy="dense") as server, connect(server.wait_until_ready()) as client:
        assert create(client, "a").truncation == "disabled"
        with pytest.raises(APIStatusError) as refused:
            create(client, "a", truncation="auto")
        assert refused.value.param == "truncation"


def test_a_client_that_goes_away_leaves_nothing_to_go_on_from(server: Server, client: OpenAI) -> None:
    first = create(client, "goes away")
    asked = body("never ends", previous_response_id=first.id, max_output_tokens=1_000_000, stream=True)
    with server.connect() as connection:
        send(connection, asked, PATH)
        told = receive_until(connection, b"output_text.delta").decode()
    gone = told.partition('"response":{"id":"')[2].partition('"')[0]
    wait_for(lambda: not server_is_running(server, session(first)["id"]))
    with pytest.raises(NotFoundError):
        create(client, "more", previous_response_id=gone)
    assert session(create(client, "more", previous_response_id=first.id))["matched"] == "extend"


def server_is_running(server: Server, name: str) -> bool:
    return bool(httpx.get(f"{server.url}/v1/sessions/{name}").json()["running"])
