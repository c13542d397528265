"""`sinkahead sessions`: what is kept on the disk, whether or not a server runs."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from server.journal_file import JournalFile
from server.persistence import FolderError, lock, sessions_folder
from server.record import JournalError, Key, Stored
from server.settings import Settings
from server.snapshots import CACHES, SUFFIX


def list_all(settings: Settings) -> None:
    """A line each, those used last first."""
    file = _open(settings)
    stored = sorted(file.load_all(), key=lambda one: -one.conversation.last_used)
    print(f"{'last used':19}  {'turns':>7}  {'tokens':>9}  {'key':8}  id")
    for one in stored:
        conversation = one.conversation
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(conversation.last_used))
        key = conversation.namespace.hex()[:8]
        print(f"{used}  {conversation.num_turns:7,}  {conversation.length:9,}  {key:8}  {conversation.id}")
    print(f"{len(stored)} sessions, {file.size() / 1e6:.1f} MB", file=sys.stderr)


def show(settings: Settings, id_: str) -> None:
    """What was said in it."""
    file = _open(settings)
    for message in file.messages(_find(file, id_)) or []:
        print(f"{message['role']}: {message['content']}")


def export(settings: Settings, id_: str) -> None:
    """As JSON: messages as a request takes them, and the token ids."""
    file = _open(settings)
    key = _find(file, id_)
    json.dump({"id": key.id, "messages": file.messages(key), "token_ids": list(file.ids(key) or [])}, sys.stdout)
    print()


def remove(settings: Settings, id_: str) -> None:
    """Nothing of it is left. Not while a server runs: that has DELETE /v1/sessions/{id}."""
    folder = sessions_folder(settings)
    with lock(folder):
        file = _open(settings)
        stored = _stored(file, id_)
        file.begin()
        file.remove(_key(stored), time.time())
        file.commit()
        file.scrub()
        (folder / CACHES / f"{stored.conversation.handle}{SUFFIX}").unlink(missing_ok=True)


def _open(settings: Settings) -> JournalFile:
    folder: Path = sessions_folder(settings)
    if not folder.exists():
        raise FolderError(f"there is no sessions folder {folder}")
    try:
        return JournalFile(folder)
    except JournalError as error:
        raise FolderError(str(error)) from None


def _find(file: JournalFile, id_: str) -> Key:
    return _key(_stored(file, id_))


def _stored(file: JournalFile, id_: str) -> Stored:
    found = [one for one in file.load_all() if one.conversation.id == id_]
    if len(found) != 1:
        raise FolderError(f"there {'are several sessions' if found else 'is no session'} {id_!r}")
    return found[0]


def _key(stored: Stored) -> Key:
    return Key(stored.conversation.namespace, stored.conversation.id)


COMMANDS: dict[str, Any] = {"list": list_all, "show": show, "rm": remove, "export": export}
