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


def list_all(settings: Settings, _: None = None) -> None:
    """A line each, those used last first."""
    file = _open(settings)
    stored = sorted(file.load_all(), key=lambda one: -one.conversation.last_used)
    print(f"{'last used':19}  {'turns':>7}  {'tokens':>9}  {'key':8}  id")
    for one in stored:
        conversation = one.conversation
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(conversation.last_used))
        key = conversation.namespace.hex()[:8]
        print(f"{used}  {conversation.num_turns:7,}  {conversation.length:9,}  {key:8}  {conversation.id}")
    folder = sessions_folder(settings)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{len(stored)} sessions, {size / 1e6:.1f} MB in {folder}", file=sys.stderr)


def show(settings: Settings, id_: str, key: str = "") -> None:
    """What was said in it."""
    file = _open(settings)
    for message in file.messages(_find(file, id_, key)) or []:
        print(f"{message['role']}: {message['content']}")


def export(settings: Settings, id_: str, key: str = "") -> None:
    """As JSON: messages as a request takes them, and the token ids."""
    file = _open(settings)
    found = _find(file, id_, key)
    json.dump({"id": id_, "messages": file.messages(found), "token_ids": list(file.ids(found) or [])}, sys.stdout)
    print()


def remove(settings: Settings, id_: str, key: str = "") -> None:
    """Nothing of it is left. Not while a server runs: that has DELETE /v1/sessions/{id}."""
    folder = sessions_folder(settings)
    with lock(folder, "stop it, or use DELETE /v1/sessions/{id}"):
        file = _open(settings)
        stored = _stored(file, id_, key)
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


def _find(file: JournalFile, id_: str, key: str) -> Key:
    return _key(_stored(file, id_, key))


def _stored(file: JournalFile, id_: str, key: str) -> Stored:
    """key: how its column in the list begins."""
    found = [one for one in file.load_all() if one.conversation.id == id_]
    found = [one for one in found if one.conversation.namespace.hex().startswith(key)]
    if len(found) > 1:
        raise FolderError(f"there are several sessions {id_!r}: say with --key whose, as in the list")
    if not found:
        raise FolderError(f"there is no session {id_!r}")
    return found[0]


def _key(stored: Stored) -> Key:
    return Key(stored.conversation.namespace, stored.conversation.id)


COMMANDS: dict[str, Any] = {"list": list_all, "show": show, "rm": remove, "export": export}
