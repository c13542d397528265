"""Thousands of bodies that nobody should send, to a server with a tiny random model: nothing of it may break.

    python -m benchmarks.mutants --num 10000 --seed 0

Prints what was answered, and what the server's processes held before and after; ends with 1 where anything is wrong.
"""

import argparse
import http.client
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil

from benchmarks.mutations import Mutant, mutants
from benchmarks.server_process import Footprint, ServerProcess

PATIENCE = 120.0  # seconds for an answer; after that it is taken to hang
WARM = 0.3  # of the requests, before memory is looked at for the first time
ALLOWED = 1.15  # growth after that
SETTINGS = {
    "served_model_name": "tiny", "dtype": "float32", "threads": 1, "memory": "64MiB", "host_memory": "16MiB",
    "max_output_tokens": 4, "max_prompt_tokens": 20_000, "max_sessions": 100, "max_waiting": 300, "disk": "20MB",
}  # fmt: skip
SOUND = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


class Client:
    """One connection, for as long as the server keeps it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self.slowest = 0.0

    def close(self) -> None:
        self._connection.close()

    def send(self, mutant: Mutant) -> tuple[int, bytes]:
        start = time.monotonic()
        self._connection.request("POST", mutant.path, mutant.body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        self.slowest = max(self.slowest, time.monotonic() - start)
        return answer.status, content


def wrong(status: int, content: bytes) -> str | None:
    """What should not be so about an answer."""
    if status >= 500 or b'"type":"server_error"' in content:
        return "the server failed"
    if status >= 400:
        error = json.loads(content)["error"]
        if set(error) != {"message", "type", "param", "code"} or not error["message"]:
            return "the error has another shape"
    return None


def attack(client: Client, some: Iterator[Mutant]) -> tuple[Counter[tuple[str, int]], list[str]]:
    """How often each path answered what; and what was wrong."""
    answers: Counter[tuple[str, int]] = Counter()
    faults = []
    for mutant in some:
        status, content = client.send(mutant)
        answers[mutant.path, status] += 1
        if fault := wrong(status, content):
            faults.append(f"{fault}: {mutant.path} {mutant.body[:500]!r}: {status} {content[:300]!r}")
        elif answers.total() % 100 == 0 and client.send(sound())[0] != 200:
            faults.append(f"a sound request fails after {mutant.path} {mutant.body[:500]!r}")
    return answers, faults


def sound() -> Mutant:
    return Mutant("/v1/chat/completions", json.dumps(SOUND).encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    from tests.tiny import save_tiny_model

    with tempfile.TemporaryDirectory() as folder, ServerProcess(save_tiny_model(Path(folder)), **SETTINGS) as server:
        client, all_of_them = Client(server.port), islice(mutants("tiny", arguments.seed), arguments.num)
        start = time.monotonic()
        first, faults = attack(client, islice(all_of_them, int(WARM * arguments.num)))
        processes = [server.api, *server.api.children(recursive=True)]
        before = {process: Footprint.of(process) for process in processes}
        rest, more = attack(client, all_of_them)
        after = {process: Footprint.of(process) for process in processes if psutil.pid_exists(process.pid)}
        seconds = time.monotonic() - start
        for process in processes:
            if process not in after or after[process].bytes > ALLOWED * before[process].bytes:
                more.append(f"process {process.pid}: {before[process]}, then {after.get(process, 'gone')}")
        log = server.log
    faults += more + [line for line in log.splitlines() if "ERROR" in line or "Traceback" in line]
    print("| path | answers |\n|---|---|")
    answers = first + rest
    for path in sorted({path for path, _ in answers}):
        told = (f"{status}: {num:,}" for (where, status), num in sorted(answers.items()) if where == path)
        print(f"| {path} | {', '.join(told)} |")
    print(f"\n{arguments.num:,} bodies in {seconds:.0f} s, the slowest answer after {client.slowest:.1f} s")
    for process, footprint in after.items():
        print(f"process {process.pid}: {before[process]}; at the end {footprint}")
    print("\n".join(["", f"Wrong, {len(faults)} times:", *faults[:20]]) if faults else "Nothing is wrong.")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
