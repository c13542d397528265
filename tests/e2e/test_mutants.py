"""A fixed part of what `python -m benchmarks.mutants` sends by the thousands."""

from contextlib import closing
from itertools import islice

import httpx

from benchmarks.mutants import Client, attack
from benchmarks.mutations import mutants
from tests.e2e.serving import Server, ask


def test_the_same_seed_gives_the_same_bodies() -> None:
    one, again, other = (list(islice(mutants("tiny", seed), 200)) for seed in (1, 1, 2))
    assert one == again != other
    assert len(set(one)) > 150


def test_bodies_that_nobody_should_send_break_nothing(server: Server) -> None:
    with closing(Client(server.port)) as client:
        answers, faults = attack(client, islice(mutants("tiny", 5), 300))
    assert not faults
    statuses = {status for _, status in answers}
    assert {200, 400} <= statuses <= {200, 201, 400, 404, 409, 413, 429}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=ask()).status_code == 200
