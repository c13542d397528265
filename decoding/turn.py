"""What the engine is asked and what it answers. No torch: the API process builds these, too."""

from typing import Literal

import msgspec

FLOOR = -9999.0  # of logarithms that are told: minus infinity is no JSON


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen from its logits; temperature 0 is greedy, whatever the filters say."""

    seed: int  # 0 <= seed < 2**64; the noise of a token is a function of (seed, position, token) alone
    temperature: float = 1.0
    top_k: int = 0  # keep the k most likely tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest set of most likely tokens whose mass reaches top_p
    min_p: float = 0.0  # keep tokens at least min_p times as likely as the most likely one
    presence_penalty: float = 0.0  # off the logit of each token that this turn has generated
    frequency_penalty: float = 0.0  # the same, times how often
    repetition_penalty: float = 1.0  # > 0; divides positive logits of the tokens that the query sees, multiplies others
    logit_bias: dict[int, float] = {}  # token id to what is added to its logit


SourceName = Literal["suffix", "recycling", "prediction", "pool", "grammar"]
StrategyName = Literal["auto", "lookahead", "jacobi", "autoregressive"]


class Drafting(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drafted. Nothing of it changes a text, only how fast it comes. None: the strategy's own size."""

    strategy: StrategyName = "auto"
    window: int | None = None  # W: columns of the window, the pending token's among them
    ngram: int | None = None  # N: length of an n-gram; the window has N - 1 rows
    guesses: int | None = None  # G: most sequences that are verified in a step
    # that may be asked for guesses
    sources: tuple[SourceName, ...] = ("suffix", "recycling", "prediction", "pool", "grammar")


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a session: ids to forward behind all that the session holds, then tokens to generate."""

    session: str
    tokens: list[int]  # new ids, at least one; the session's pending token is not repeated here
    sampling: Sampling
    max_tokens: int  # at most so many generated, >= 1
    end_ids: list[int]  # any of these ends the turn, and is part of the output
    min_tokens: int = 0  # none of them comes before so many tokens are generated
    drafting: Drafting | None = None  # None: the engine's own
    prediction: list[int] = []  # tokens that the client expects, to draft from
    grammar: str | None = None  # that the text follows, as `decoding.grammar` takes it; it ends where that may
    logprobs: int | None = None  # so many likeliest tokens are told with each generated one; None: nothing is
    prompt_logprobs: bool = False  # the same with each of the turn's own tokens but a session's first; reads them all


class Scored(msgspec.Struct, frozen=True, array_like=True):
    """A token as the model saw it, before anything was done to its logits: natural logarithms, at least `FLOOR`."""

    logprob: float
    top: list[tuple[int, float]]  # the likeliest tokens, falling, and the smaller id first at ties


class Credit(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a step's draft, by source; "window" where none proposed a token. Two that agree count both."""

    rows: int  # drafted tokens
    drafted: dict[str, int]  # of them, each source's
    accepted: dict[str, int]  # of these, those that the model chose, too
    sources: list[str]  # of each token of the step, the first that proposed it; "" for none


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What one step generated for one session."""

    session: str
    tokens: list[int]  # at least one
    length: int  # the session's tokens after the last of these; the next one will have this text position
    finish: Literal["stop", "length"] | None  # set on the turn's last output
    scores: list[Scored] = []  # of the tokens, where the turn asks for them
    prompt_scores: list[Scored] = []  # with the turn's first output, where it asks for them
    credit: Credit | None = None  # where the step had a draft


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose turn has ended by an error of its own; it can go on with another turn."""

    session: str
    reason: str
