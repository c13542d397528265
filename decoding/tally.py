"""Who drafted what, and what came of it. No torch."""

from collections import Counter
from collections.abc import Sequence

from decoding.strategy import Draft
from decoding.turn import Credit
from decoding.verify import Verified

NOBODY = ["window"]  # of a node that no source proposed


class Tally:
    """Drafted tokens by source, of all steps."""

    def __init__(self) -> None:
        self.drafted: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()

    def add(self, credit: Credit) -> None:
        """One session's in one step."""
        self.drafted.update(credit.drafted)
        self.accepted.update(credit.accepted)


def credit(draft: Draft, verified: Verified, sources: Sequence[str]) -> Credit | None:
    """None where nothing was drafted. sources: names, in the order of the draft's evidence."""
    if len(draft) == 1:
        return None
    names = [[name for name, said in zip(sources, spoke, strict=False) if said] or NOBODY for spoke in draft.evidence]
    drafted = Counter(name for node in range(1, len(draft)) for name in names[node])
    accepted = Counter(name for node in verified.nodes[1:] for name in names[node])
    first = [names[node][0] for node in verified.nodes[1:]]
    return Credit(rows=len(draft) - 1, drafted=dict(drafted), accepted=dict(accepted), sources=[*first, ""])
