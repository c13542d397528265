"""What is done for sessions while nobody asks: save those that have come to rest, forget what is old or too much."""

import asyncio
import logging
import time
from dataclasses import dataclass

from server.journal import Journal
from server.record import Key
from server.sessions import Sessions
from server.snapshots import Snapshots

logger = logging.getLogger(__name__)

TIDY_SECONDS = 0.5
MEMORY_BYTES = 2**28  # of conversations that are not to be stored


@dataclass(frozen=True)
class Limits:
    """What all sessions together may take; those used longest ago leave first."""

    ttl: float  # seconds
    disk_bytes: int
    sessions: int


class Housekeeping:
    """Of these sessions, in their event loop; journals and snapshots are theirs."""

    def __init__(
        self,
        sessions: Sessions,
        limits: Limits,
        memory: Journal,
        disk: Journal | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._sessions, self._limits = sessions, limits
        self._memory, self._disk, self._snapshots = memory, disk, snapshots

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            try:
                if self._snapshots is not None:
                    self._snapshots.save_resting()
                    journal = await self._disk.size() if self._disk is not None else 0
                    await self._snapshots.trim(self._limits.disk_bytes - journal)
                await self.expire()
            except Exception:  # of the disk, as a rule: it may pass
                logger.exception("Sessions could not be tidied up")

    async def expire(self) -> None:
        """Deletes what is too old or too much and not in use."""
        keys: set[Key] = set()
        if self._disk is not None:
            keys.update(await self._disk.expired(time.time(), self._limits.ttl, self._limits.disk_bytes))
        keys.update(await self._memory.expired(time.time(), self._limits.ttl, MEMORY_BYTES))
        num_surplus = max(0, len(self._sessions) - self._limits.sessions)
        if not keys and not num_surplus:  # as a rule: all of them are not looked at for nothing
            return
        used = sorted(self._sessions, key=lambda session: session.conversation.last_used)
        leaving = [*used[:num_surplus], *(session for session in used[num_surplus:] if session.key in keys)]
        old = {session: session.conversation.last_used for session in leaving}
        for session, last_used in old.items():  # somebody may have come for one meanwhile
            if session.kept and session.is_free and session.conversation.last_used == last_used:
                await self._sessions.delete(session)
