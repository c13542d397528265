"""Conversations that go on: which session a request meets, what it costs, what is remembered, over a real server."""

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.serving import CHAT, MODEL, Server, is_silent, receive_until, send, wait_for
from tests.replay import Oracle

Messages = list[dict[str, Any]]
CAPACITY = 256


@dataclass
class Reply:
    """Of a chat: its text, and what it cost."""

    text: str
    session: str
    matched: str
    rebuilt: str | None
    cached: int
    prompt: int

    @property
    def read(self) -> int:
        """Tokens that were forwarded for the prompt."""
        return self.prompt - self.cached


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def chat(server: Server, messages: Messages, session: str | None = None, **changes: Any) -> Reply:
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 8} | changes
    response = server.post(body, **({"X-Session-ID": session} if session else {}))
    assert response.status_code == 200, response.text
    answer = response.json()
    block, usage = answer["session"], answer["usage"]
    assert response.headers["x-session-id"] == block["id"]
    assert block["tokens"] == block["live"] + block["evicted"]
    return Reply(
        answer["choices"][0]["message"]["content"],
        block["id"],
        block["matched"],
        block["rebuilt"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["prompt_tokens"],
    )


@contextlib.contextmanager
def running(model: Path, folder: Path, **settings: Any) -> Iterator[Server]:
    with Server(model, folder, capacity=CAPACITY, block=16, **settings) as server:
        yield server.wait_until_ready()


def stop(server: Server) -> None:
    server.signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """All that was said is checked against one stream of the same ids in the end."""
    folder = tmp_path_factory.mktemp("sessions")
    with running(tiny_model, folder) as server:
        yield server
        stop(server)
    assert Oracle(tiny_model, capacity=CAPACITY, block=16).check(folder / "sessions") > 0


def test_a_client_that_sends_everything_again_pays_for_what_is_new(server: Server) -> None:
    messages: Messages = [system("Be brief.")]
    costs, session = [], None
    for number in range(30):  # past the capacity
        messages.append(user(f"question {number % 10}"))
        reply = chat(server, messages)
        assert session in (None, reply.session)
        session = reply.session
        messages.append(assistant(reply.text))
        costs.append(reply.read)
    assert (
        max(costs[1:]) - min(costs[1:]) <= 1
    )  # where a reply ends by its length, its last token is read with the next
    assert reply.cached > CAPACITY // 2


def test_two_clients_with_the_same_opening_are_both_right_and_both_warm(server: Server) -> None:
    first, second = [user("hi")], [user("hi")]
    for number in range(4):
        for client, messages in enumerate((first, second)):
            reply = chat(server, messages)
            assert number == 0 or reply.read < 40
            messages += [assistant(reply.text), user(f"from {client}" if number else "the same")]


def test_what_is_regenerated_or_edited_without_a_name_leaves_the_session_as_it_is(server: Server) -> None:
    opening = [user("one")]
    first = chat(server, opening)
    history = [*opening, assistant(first.text), user("two")]
    second = chat(server, history)
    assert second.session == first.session
    again = chat(server, history)
    assert (again.text, again.matched, again.read) == (second.text, "regenerate", 1)
    edited = chat(server, [*opening, assistant(first.text), user("TWO")])
    assert (edited.matched, edited.read < 40) == ("edit", True)
    assert len({first.session, again.session, edited.session}) == 3
    goes_on = chat(server, [*history, assistant(second.text), user("three")])
    assert (goes_on.matched, goes_on.rebuilt) == ("extend", None)


def test_a_named_session_in_every_way(server: Server) -> None:
    def say(*messages: dict[str, str], **changes: Any) -> Reply:
        reply = chat(server, list(messages), "every-way", **changes)
        assert reply.session == "every-way"
        return reply

    one = say(user("1"))
    two = say(user("2"), session_mode="append")
    three = say(user("3"))  # a client that keeps no history
    history = [user("1"), assistant(one.text), user("2"), assistant(two.text), user("3"), assistant(three.text)]
    four = say(*history, user("4"))
    history += [user("4"), assistant(four.text)]
    five = say(*history[-3:], user("5"))  # one that cuts it
    history += [user("5")]
    assert [reply.matched for reply in (two, three, four, five)] == ["append", "append", "extend", "align"]
    assert all(reply.read < 40 for reply in (two, three, four, five))
    again = say(*history)
    assert (again.matched, again.text, again.read) == ("regenerate", five.text, 1)
    edited = say(*history[:2], user("other"))
    assert (edited.matched, edited.rebuilt) == ("edit", None)
    old = chat(server, [*history, assistant(again.text), user("6")])
    assert (old.matched, old.rebuilt) == ("extend", None)  # the branch that was cut off
    assert old.session != "every-way"
    changed = say(system("Now you are a pirate."), *history[:2], user("other"))
    assert (changed.rebuilt, changed.cached) == ("system", 0)


def test_names_are_refused_where_an_answer_would_come_from_nothing(server: Server) -> None:
    for body, status in (
        ({"session_mode": "append", "session_id": "nobody"}, 404),
        ({"session_mode": "append"}, 400),
        ({"session_id": "a b"}, 400),
    ):
        response = server.post({"model": MODEL, "messages": [user("hi")], **body})
        assert response.status_code == status, response.text
        assert response.json()["error"]["param"] in ("session_id", "session_mode")
    chat(server, [user("hi")], "short-lived")
    assert httpx.delete(f"{server.url}/v1/sessions/short-lived").json()["deleted"]
    gone = server.post({"model": MODEL, "messages": [user("more")]}, **{"X-Session-ID": "short-lived"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "session_not_found")
    chat(server, [user("hi"), assistant("ho"), user("more")], "short-lived")  # its history makes up for what is lost


def test_two_requests_at_once_in_one_session_come_one_after_the_other(server: Server) -> None:
    first = {"model": MODEL, "messages": [user("a")], "session_id": "both", "max_tokens": 300, "temperature": 0}
    second = first | {"messages": [user("b")], "session_mode": "append", "max_tokens": 5}
    with server.request(first | {"stream": True}) as one, server.connect() as two:
        receive_until(one, b'"content":"')
        send(two, second)
        answer = receive_until(two, b'"kept":true}}')
        assert not is_silent(one)  # long since at its end
        assert receive_until(one, b"data: [DONE]").count(b'"finish_reason":"length"') == 1
    assert b'"matched":"append"' in answer
    card = cards(server)["both"]
    assert (card["turns"], card["messages"]) == (2, 4)


def cards(server: Server) -> dict[str, dict[str, Any]]:
    return {card["id"]: card for card in httpx.get(f"{server.url}/v1/sessions?limit=1000").json()["data"]}


def test_a_turn_that_is_given_up_leaves_the_session_as_it_was(server: Server) -> None:
    first = chat(server, [user("a")], "given-up")
    body = {"model": MODEL, "messages": [user("endless")], "session_id": "given-up", "session_mode": "append"}
    with server.request(body | {"stream": True, "max_tokens": 100_000, "temperature": 0}) as stream:
        receive_until(stream, b'"content":"')
    assert cards(server)["given-up"]["messages"] == 2
    reply = chat(server, [user("a"), assistant(first.text), user("b")], "given-up")
    assert (reply.matched, reply.rebuilt) == ("extend", None)


def test_stop_strings_and_lengths_are_closed_by_the_next_turn(server: Server) -> None:
    text = chat(server, [user("hi")], max_tokens=20).text
    stop_at = text[5]
    cut = chat(server, [user("hi")], "cut", max_tokens=20, stop=[stop_at])
    assert cut.text == text[: text.index(stop_at)]
    reply = chat(server, [user("hi"), assistant(cut.text), user("more")], "cut")
    assert (reply.matched, reply.rebuilt) == ("extend", None)


def test_endpoints(server: Server) -> None:
    url = f"{server.url}/v1/sessions"
    made = httpx.post(url).json()
    assert len(made["id"]) == 32
    assert httpx.post(url, json={"id": "mine"}).status_code == 201
    assert httpx.post(url, json={"id": "mine"}).status_code == 409
    chat(server, [user("hi")], "mine", session_mode="append")
    card = httpx.get(f"{url}/mine").json()
    assert (card["turns"], card["messages"], card["state"], card["running"]) == (1, 2, "device", False)
    assert card["capacity"] == CAPACITY
    copy = httpx.post(f"{url}/mine/fork", json={"id": "copy"}).json()
    assert (copy["id"], copy["tokens"]) == ("copy", card["tokens"])
    assert {made["id"], "mine", "copy"} <= set(cards(server))
    assert chat(server, [user("more")], "copy").rebuilt is None
    assert httpx.get(f"{url}/mine").json()["messages"] == 2
    first = httpx.get(f"{url}?limit=1").json()
    assert first["has_more"]
    assert httpx.get(f"{url}?after={first['data'][0]['id']}").json()["data"][0]["id"] != first["data"][0]["id"]
    for query in ("limit=0", "limit=x", "limit=1001", "before=x"):
        assert httpx.get(f"{url}?{query}").status_code == 400
    assert httpx.get(f"{url}/nobody").status_code == httpx.delete(f"{url}/nobody").status_code == 404


def test_what_must_not_be_stored_is_found_in_no_file(tiny_model: Path, tmp_path: Path) -> None:
    secret = "the secret word is xylophone"
    with running(tiny_model, tmp_path) as server:
        reply = chat(server, [user(secret)], store=False)
        more = chat(server, [user(secret), assistant(reply.text), user("more")], store=False)
        assert (more.session, more.matched) == (reply.session, "extend")
        chat(server, [user("known")], "named")
        aside = chat(server, [user(secret)], "named", session_mode="append", store=False)
        assert (aside.matched, aside.rebuilt, aside.session != "named") == ("append", None, True)
        assert cards(server)["named"]["messages"] == 2
        chat(server, [user(secret)], "private", store=False)
        refused = server.post({"model": MODEL, "messages": [user("x")], "session_id": "private"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")
        assert chat(server, [user("x")], "private", store=False).matched == "append"
        stop(server)
    files = [path for path in (tmp_path / "sessions").rglob("*") if path.is_file()]
    assert files
    assert not any(b"xylophone" in path.read_bytes() for path in files)
    assert len(list((tmp_path / "sessions" / "caches").iterdir())) == 1


def test_each_key_has_sessions_of_its_own(tiny_model: Path, tmp_path: Path) -> None:
    with running(tiny_model, tmp_path, api_keys="one,two") as server:

        def ask(key: str, path: str = CHAT, **changes: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            if path != CHAT:
                return httpx.get(f"{server.url}{path}", headers=headers)
            return server.post({"model": MODEL, "messages": [user("hi")], "max_tokens": 4, **changes}, **headers)

        for key in ("", "three", "ONE", "one,two"):
            refused = ask(key)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert ask(key, "/v1/models").status_code == 401
        assert server.health() == 200
        assert ask("one", session_id="same").status_code == ask("two", session_id="same").status_code == 200
        ask("one", session_id="only-one")
        assert ask("two", "/v1/sessions/only-one").status_code == 404
        assert len(ask("two", "/v1/sessions").json()["data"]) == 1
        refused = ask("two", session_id="only-one", session_mode="append")
        assert refused.json()["error"]["code"] == "session_not_found"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_restart_sessions_go_on_as_if_nothing_had_been(
    tiny_model: Path, tmp_path: Path, end: signal.Signals
) -> None:
    messages: Messages = [system("s"), user("0")]
    with running(tiny_model, tmp_path) as server:
        for number in range(1, 30):
            messages += [assistant(chat(server, messages).text), user(f"{number}")]
        named = chat(server, [user("hi")], "me")
        server.signal(end)
        server.process.wait(60)
    with running(tiny_model, tmp_path) as server:
        assert len(cards(server)) == 2
        reply = chat(server, messages)
        assert reply.matched == "extend"
        if end is signal.SIGTERM:  # its cache was saved
            assert reply.rebuilt is None
            assert reply.read < 40
        if end is signal.SIGTERM:
            httpx.post(f"{server.url}/v1/sessions/me/fork", json={"id": "copy"})
            assert chat(server, [user("more")], "copy").rebuilt is None
        assert chat(server, [user("more")], "me").matched == "append"
        assert chat(server, [user("hi"), assistant(named.text), user("x")], "me").rebuilt is None
        stop(server)
    assert Oracle(tiny_model, capacity=CAPACITY, block=16).check(tmp_path / "sessions") >= 30


def test_a_session_of_another_model_goes_on_from_its_messages(tiny_model: Path, tmp_path: Path) -> None:
    """Its token ids are of no use. Here it is the same model under another name."""
    with running(tiny_model, tmp_path) as server:
        first = chat(server, [user("hi")], "me")
        stop(server)
    with running(tiny_model, tmp_path, served_model_name="other", session_ttl_seconds=8) as server:
        more = chat(server, [user("more")], "me", model="other", session_mode="append")
        assert (more.matched, more.rebuilt) == ("append", "model")
        history = [user("hi"), assistant(first.text), user("more"), assistant(more.text), user("x")]
        again = chat(server, history, "me", model="other")
        assert (again.matched, again.rebuilt) == ("extend", None)
        wait_for(lambda: not cards(server), 30)  # too old at last
        stop(server)


def test_another_server_cannot_use_the_same_folder(tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with running(tiny_model, tmp_path), Server(tiny_model, other, sessions_folder=tmp_path / "sessions") as second:
        assert second.process.wait(60) == 2
        assert "another server uses the sessions folder" in second.log.splitlines()[-1]


def test_many_sessions_in_a_small_budget(tiny_model: Path, tmp_path: Path) -> None:
    """They leave their places, host memory and the list of snapshots, and come back from wherever they are."""
    budget = {"memory": "1500KiB", "host_memory": "700KiB", "disk": "3MB"}
    with running(tiny_model, tmp_path, **budget) as server:
        chats: list[Messages] = [[user(f"chat {number}")] for number in range(40)]
        for turn in range(3):
            for number, messages in enumerate(chats):
                reply = chat(server, messages)
                assert reply.matched == ("new" if turn == 0 else "extend")
                messages += [assistant(reply.text), user(f"turn {turn} of {number}")]
        states = [card["state"] for card in cards(server).values()]
        assert {"device", "host", "disk"} == set(states)
        stop(server)
    assert sum(path.stat().st_size for path in (tmp_path / "sessions").rglob("*") if path.is_file()) < 4_000_000
    assert Oracle(tiny_model, capacity=CAPACITY, block=16).check(tmp_path / "sessions") == 120
