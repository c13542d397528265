"""Texts that follow a grammar: each token against a slow loop over the vocabulary, whatever was drafted."""

import json
import math
import random
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import torch
from llguidance import LLMatcher
from tokenizers import AddedToken

from decoding.budget import Costs
from decoding.build import build
from decoding.constraint import Constraint
from decoding.engine import Engine
from decoding.grammar import MAX_GRAMMAR, GrammarError, Grammars, json_grammar
from decoding.options import EngineOptions
from decoding.sampling import choose
from decoding.turn import Drafting, Fault, Output, Sampling, StrategyName, Turn
from tests.driver import GREEDY
from tests.schemas import random_schema
from tests.tiny import SPECIAL_TOKENS, VOCAB_SIZE, build_tokenizer

SINKS, CAPACITY, BLOCK = 4, 64, 8
END = 2
SAMPLED = Sampling(seed=5, temperature=1.0)
FILTERED = Sampling(seed=6, temperature=0.8, top_p=0.9, top_k=40, min_p=0.01)
PLAIN = Drafting(strategy="autoregressive")
STRATEGIES = [Drafting(), Drafting(strategy="lookahead", window=4, ngram=4, guesses=4), Drafting(strategy="jacobi")]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "age", "next"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": json_grammar(PERSON),
    "any object": json_grammar({"type": "object"}),
    "tool calls": 'start: (TEXT | call)*\nhead[lazy]: TEXT "<call>"\nTEXT: /[a-z<>]*/\n'
    'call: head %json {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]} "</call>"',
    "special": f"start: {SPECIAL_TOKENS[1]} /[a-z]{{3,30}}/ {SPECIAL_TOKENS[2]}",
}


@pytest.fixture(scope="module")
def built(tiny_model: Path) -> Engine:
    options = EngineOptions(
        model=str(tiny_model), device="cpu", dtype="float32", capacity=CAPACITY, block=BLOCK, memory_bytes=2**29
    )
    return build(options)


@pytest.fixture
def engine(built: Engine) -> Iterator[Engine]:
    """One for all tests, and no session in it when one begins. Rows cost next to nothing, as busy as the machine is."""
    built.costs = Costs([1, 128], [1, 2], [[1.0, 1.1], [1.0, 1.1]])
    yield built
    for session in list(built._sessions):
        built.close(session)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(build_tokenizer().backend_tokenizer.to_str(), VOCAB_SIZE, [END])


def turn_of(grammar: str | None, sampling: Sampling = SAMPLED, **more: Any) -> Turn:
    prompt = [1, *random.Random(1).choices(range(3, 259), k=12)]
    fields: dict[str, Any] = {"session": "s", "tokens": prompt, "max_tokens": 60, "end_ids": [END]} | more
    return Turn(sampling=sampling, grammar=grammar, **fields)


def run(engine: Engine, *turns: Turn) -> tuple[dict[str, list[list[int]]], dict[str, str | None]]:
    """What each step of each turn generated, in sessions of their own, and how the turns ended."""
    steps: dict[str, list[list[int]]] = {turn.session: [] for turn in turns}
    ends: dict[str, str | None] = {}
    for turn in turns:
        engine.open(turn.session, SINKS)
        engine.start(turn)
    while engine.has_work:
        for result in engine.step():
            assert isinstance(result, Output), result
            steps[result.session].append(result.tokens)
            ends[result.session] = result.finish
    for turn in turns:
        engine.close(turn.session)
    return steps, ends


def flat(steps: list[list[int]]) -> list[int]:
    return [token for tokens in steps for token in tokens]


def text(engine: Engine, turn: Turn) -> list[int]:
    return flat(run(engine, turn)[0][turn.session])


def spell(tokens: Sequence[int]) -> str:
    spelt = build_tokenizer().decode(list(tokens), skip_special_tokens=True)
    assert isinstance(spelt, str)
    return spelt


def raw_logits(engine: Engine, ids: Sequence[int]) -> list[float]:
    """What the model says behind the ids, before anything changes it."""
    engine.open("raw", SINKS)
    engine.start(Turn(session="raw", tokens=list(ids), sampling=GREEDY, max_tokens=1, end_ids=[]))
    while True:
        work = engine.plan()
        ranked = engine.run(work)
        if engine.settle(work, ranked):
            engine.close("raw")
            logits: list[float] = ranked.logits[0].tolist()
            return logits


def may_follow(grammars: Grammars, turn: Turn, generated: list[int]) -> set[int]:
    """Each token of the vocabulary is tried behind the text, by a matcher that reads it anew.

    A byte is a token here, so that no text can be written with other tokens. Where the grammar names the end token,
    another special token is read in its place: the matcher keeps the end token to itself.
    """
    assert turn.grammar is not None
    matcher = LLMatcher(grammars.tokenizer, turn.grammar.replace(SPECIAL_TOKENS[END], SPECIAL_TOKENS[0]))
    assert matcher.consume_tokens(generated)
    tokens = {token for token in range(VOCAB_SIZE) if matcher.validate_tokens([token])}
    if matcher.is_accepting():
        return tokens | set(turn.end_ids)
    return {token or END for token in tokens if token not in turn.end_ids}


def slow(engine: Engine, grammars: Grammars, turn: Turn) -> list[int]:
    """The definitions over lists and sets; the logits come from a new session that reads all anew for each token."""
    asked, generated = turn.sampling, list[int]()
    while len(generated) < turn.max_tokens and not (generated and generated[-1] in turn.end_ids):
        allowed = may_follow(grammars, turn, generated)
        if len(generated) < turn.min_tokens:
            allowed = allowed - set(turn.end_ids) or allowed
        row = raw_logits(engine, [*turn.tokens, *generated])
        for token in range(VOCAB_SIZE):
            row[token] += asked.logit_bias.get(token, 0.0) - asked.presence_penalty * (token in generated)
            if token not in allowed:
                row[token] = -math.inf
        if asked.temperature == 0:
            generated.append(row.index(max(row)))
        else:
            position = len(turn.tokens) + len(generated)
            generated.append(choose(torch.tensor(row, dtype=torch.float64), asked, position))
    return generated


BIASED: dict[str, Any] = {"logit_bias": {70: 100.0, END: 30.0, 200: -5.0}, "presence_penalty": 0.5}


@pytest.mark.parametrize("name", GRAMMARS)
def test_each_token_is_that_of_the_definitions(engine: Engine, grammars: Grammars, name: str) -> None:
    """Forbidden tokens stay so whatever the bias, and end tokens come where the text is complete, not before."""
    for sampling in (GREEDY, SAMPLED, msgspec.structs.replace(FILTERED, **BIASED)):
        turn = turn_of(GRAMMARS[name], sampling, min_tokens=7, max_tokens=24, end_ids=[END, 40], drafting=PLAIN)
        want = slow(engine, grammars, turn)
        assert text(engine, turn) == want
        assert text(engine, msgspec.structs.replace(turn, drafting=None)) == want


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_what_is_drafted_changes_nothing(engine: Engine, sampling: Sampling) -> None:
    """Alone and side by side with others that follow another grammar or none, past evictions."""
    turns, texts = [], {}
    for index, (name, grammar) in enumerate([*GRAMMARS.items(), ("none", None)]):
        turn = turn_of(grammar, sampling, session=name, max_tokens=70, drafting=PLAIN)
        steps, _ = run(engine, turn)
        assert {len(tokens) for tokens in steps[name]} == {1}
        texts[name] = flat(steps[name])
        for drafting in STRATEGIES:
            again = msgspec.structs.replace(turn, drafting=drafting, prediction=texts[name][:30])
            assert text(engine, again) == texts[name], drafting
        turns.append(msgspec.structs.replace(turn, drafting=STRATEGIES[index % 3]))
    together, _ = run(engine, *turns)
    assert {name: flat(steps) for name, steps in together.items()} == texts


def test_what_is_forced_is_drafted_and_accepted(engine: Engine) -> None:
    constant = {"const": {f"member {number}": "the same for all" for number in range(6)}}
    engine.tally.drafted.clear()
    engine.tally.accepted.clear()
    turn = turn_of(json_grammar(constant), max_tokens=500)
    steps, ends = run(engine, turn)
    assert json.loads(spell(flat(steps["s"]))) == constant["const"]
    assert ends["s"] == "stop"
    assert engine.tally.accepted["grammar"] == engine.tally.drafted["grammar"] > 150
    assert len(steps["s"]) < 40  # a step goes no further than the next eviction, every 8 tokens
    without = msgspec.structs.replace(turn, drafting=Drafting(sources=("suffix", "recycling")))
    assert flat(run(engine, without)[0]["s"]) == flat(steps["s"])


def test_what_a_grammar_forbids_is_not_drafted(engine: Engine) -> None:
    """A prediction of words, where only digits may come."""
    turn = turn_of("start: /[0-9]{50}/", prediction=[70, 71, 72, 73] * 10)
    engine.open("s", SINKS)
    engine.start(turn)
    drafted = 0
    while engine.has_work:
        work = engine.plan()
        for _, draft in work:
            if draft is not None:
                drafted += len(draft) - 1
                assert all(spell([token]).isdigit() or token == END for token in draft.tokens[1:])
        engine.settle(work, engine.run(work))
    assert drafted


def test_a_complete_text_ends_with_an_end_token(engine: Engine) -> None:
    """Digits that are end tokens come where the number could end, and are no part of it."""
    digits = {spell([token]): token for token in range(3, VOCAB_SIZE)}
    ends = [END, digits["5"], digits["7"]]
    seen = set()
    for seed in range(12):
        sampling = Sampling(seed=seed, temperature=1.0)
        steps, finish = run(engine, turn_of("start: /[1-9][0-9]{3,}/", sampling, end_ids=ends, max_tokens=200))
        tokens = flat(steps["s"])
        assert finish["s"] == "stop"
        assert tokens[-1] in ends
        assert len(tokens) > 4
        assert not set(tokens[:-1]) & set(ends)
        seen.add(tokens[-1])
    assert len(seen) > 1


@pytest.mark.parametrize("min_tokens", [0, 5])
@pytest.mark.parametrize("strategy", ["auto", "autoregressive"])
def test_a_text_ends_at_an_end_token_that_it_cannot_do_without(
    engine: Engine, strategy: StrategyName, min_tokens: int
) -> None:
    b = next(token for token in range(3, VOCAB_SIZE) if spell([token]) == "b")
    changes: dict[str, Any] = {"end_ids": [END, b], "min_tokens": min_tokens, "drafting": Drafting(strategy=strategy)}
    steps, ends = run(engine, turn_of('start: "abc"', **changes, max_tokens=100))
    assert spell(flat(steps["s"])) == "ab"
    assert ends["s"] == "stop"


@pytest.mark.parametrize("min_tokens", [2, 4, 5, 60])
def test_min_tokens_gives_way_to_a_text_that_can_only_end(engine: Engine, min_tokens: int) -> None:
    eager = msgspec.structs.replace(SAMPLED, logit_bias={END: 100.0})
    for grammar, length in (('start: "abc"', 3), ("start: /[a-c]+/", min_tokens)):
        steps, ends = run(engine, turn_of(grammar, eager, min_tokens=min_tokens, max_tokens=100))
        assert len(flat(steps["s"])) == length + 1
        assert ends["s"] == "stop"


def test_a_text_that_is_cut_is_the_beginning_of_a_longer_one(engine: Engine) -> None:
    turn = turn_of(GRAMMARS["schema"], max_tokens=80)
    whole = text(engine, turn)
    for length in (1, 7, 30):
        steps, ends = run(engine, msgspec.structs.replace(turn, max_tokens=length))
        assert flat(steps["s"]) == whole[:length]
        assert ends["s"] == "length"


def test_a_turn_of_a_session_that_goes_on_begins_its_grammar_anew(engine: Engine) -> None:
    engine.open("s", SINKS)
    for tokens in ([1, 50, 51], [52, 53], [54]):
        engine.start(msgspec.structs.replace(turn_of('start: "yes" | "no"'), tokens=tokens))
        answer: list[int] = []
        while engine.has_work:
            for result in engine.step():
                assert isinstance(result, Output), result
                answer += result.tokens
        assert spell(answer) in ("yes", "no")
    engine.close("s")


def test_a_grammar_that_cannot_be_followed_fails_its_turn_alone(engine: Engine) -> None:
    good = turn_of(GRAMMARS["schema"], session="good")
    want = text(engine, good)
    bad = {"syntax": 'start: "a', "empty": json_grammar({"$ref": "#"}), "long": f'start: "{"a" * MAX_GRAMMAR}"'}
    for name in ("good", *bad):
        engine.open(name, SINKS)
        engine.start(good if name == "good" else turn_of(bad[name], session=name, tokens=[5]))
    tokens, faults = [], {}
    while engine.has_work:
        for result in engine.step():
            if isinstance(result, Fault):
                faults[result.session] = result.reason
            else:
                tokens += result.tokens
    assert tokens == want
    assert faults.keys() == bad.keys()
    assert "no text satisfies it" in faults["empty"]
    for name in ("good", *bad):
        engine.finish(name, 0)
        engine.start(msgspec.structs.replace(good, session=name))
        engine.close(name)


def test_what_cannot_be_is_refused_and_changes_nothing(engine: Engine) -> None:
    engine.open("s", SINKS)
    with pytest.raises(ValueError, match="needs an end token"):
        engine.start(turn_of(GRAMMARS["schema"], end_ids=[]))
    without = Engine(engine._model, engine.facts, engine.costs)
    without.open("s", SINKS)
    with pytest.raises(ValueError, match="no tokenizer"):
        without.start(turn_of(GRAMMARS["schema"]))
    assert not engine.has_work
    assert not without.has_work


def test_a_model_without_a_tokenizer_is_served_without_grammars(tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        if "token" not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    engine = build(EngineOptions(model=str(tmp_path), device="cpu", dtype="float32", memory_bytes=2**27))
    engine.open("s", SINKS)
    with pytest.raises(ValueError, match="has no tokenizer"):
        engine.start(turn_of(GRAMMARS["schema"]))
    engine.start(turn_of(None))
    assert engine.step()


def merged() -> Grammars:
    """Of a tokenizer that joins bytes, with ids that the model has and the tokenizer has not."""
    tokenizer = build_tokenizer().backend_tokenizer
    pairs = ['":', ' "', "na", "me", '{"', "name", '",', "tr", "ue", "true", '"}', "12", "34"]
    tokenizer.add_tokens([AddedToken(pair, normalized=False) for pair in pairs])
    return Grammars(tokenizer.to_str(), VOCAB_SIZE + 40, [END])


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_it_tells_depends_on_the_tokens_alone(grammars: Grammars, name: str) -> None:
    """A constraint that wanders among drafts, and one that reads the text anew; and never an id that has no token."""
    draw = random.Random(7)
    for tokenizer, vocab, size in ((grammars, VOCAB_SIZE, VOCAB_SIZE), (merged(), VOCAB_SIZE + 13, VOCAB_SIZE + 40)):
        for _ in range(6):
            ids = array("i", [1, 5])
            wandering = Constraint(tokenizer, GRAMMARS[name], [END])
            wandering.begin(ids)
            for _ in range(25):
                for _ in range(2):
                    drafted: list[int] = []
                    for _ in range(draw.randint(0, 5)):
                        wandering.seek(drafted)
                        guess = draw.choice(tokens_of(wandering.allowed()))
                        if wandering.forced() and draw.random() < 0.5:
                            assert wandering.forced()[0] == guess
                        if guess == END:
                            break
                        drafted.append(guess)
                anew = Constraint(tokenizer, GRAMMARS[name], [END])
                anew.begin(array("i", [1, 5]))
                anew.seek(ids[2:])
                wandering.seek([])
                allowed = tokens_of(wandering.allowed())
                assert allowed == tokens_of(anew.allowed())
                assert allowed == [token for token in range(size) if wandering.allows(token)]
                assert max(allowed) < vocab
                ids.append(draw.choice(allowed))
                if ids[-1] == END:
                    break


def tokens_of(mask: bytearray) -> list[int]:
    return [token for token in range(8 * len(mask)) if mask[token >> 3] >> (token & 7) & 1]


def test_few_compiled_grammars_are_remembered(grammars: Grammars) -> None:
    for number in range(40):
        grammars.matcher(f'start: "{number % 20}"').result()
    assert len(grammars._compiled) == 16


@pytest.mark.parametrize("schema", [{"const": math.nan}, {"const": "\ud800"}, json.loads("[" * 500 + "]" * 500)])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError):
        json_grammar({"enum": [schema]})


def test_answers_to_random_schemas_validate(tiny_model: Path) -> None:
    """At temperature 1, of a model that knows no JSON; and the same with and without drafts."""
    engine = build(
        EngineOptions(
            model=str(tiny_model), device="cpu", dtype="float32", exact="fast", memory_bytes=2**29, max_rows=512
        )
    )
    cut = 0
    for first in range(0, 200, 50):
        schemas = {str(seed): random_schema(seed) for seed in range(first, first + 50)}
        turns = [
            turn_of(json_grammar(schema), Sampling(seed=int(name)), session=name, max_tokens=500)
            for name, schema in schemas.items()
        ]
        steps, ends = run(engine, *turns)
        plain, _ = run(engine, *(msgspec.structs.replace(turn, drafting=PLAIN) for turn in turns))
        for name, schema in schemas.items():
            assert flat(steps[name]) == flat(plain[name])
            if ends[name] == "length":
                cut += 1
            else:
                jsonschema.validate(json.loads(spell(flat(steps[name]))), schema)
    assert cut <= 4
