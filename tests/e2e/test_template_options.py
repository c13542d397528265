"""Values for the chat template's variables, and answers that go on with what was begun, through real sockets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.vocabulary import Vocabulary
from tests.e2e.serving import MODEL, Server, ask
from tests.tiny import build_tokenizer, save_tiny_model

TEMPLATE = (
    "{% if mood is defined %}{{ '<|im_start|>system\nBe ' + mood + '.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}{{ '(' + reasoning_effort + ')' if reasoning_effort else '' }}"
    "{{ '<think>\n' if enable_thinking else '' }}{# </think> #}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model(tmp_path_factory.mktemp("optional"))
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(folder, tmp_path_factory.mktemp("server")) as server:
        yield server.wait_until_ready()


def told(server: Server, **changes: Any) -> Any:
    response = server.post(ask(**changes))
    assert response.status_code == 200, response.text
    return response.json()


def completed(server: Server, prompt: Any, **changes: Any) -> str:
    """What the model goes on with behind a text that has all control tokens in it."""
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 8} | changes
    text: str = server.post(body, "/v1/completions").json()["choices"][0]["text"]
    return text


USER = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_variables_are_the_templates(server: Server) -> None:
    plain = told(server)
    assert plain["choices"][0]["message"]["content"] == completed(server, USER)
    moody = told(server, chat_template_kwargs={"mood": "kind"}, store=False)
    prompt = f"<|im_start|>system\nBe kind.<|im_end|>\n{USER}"
    assert moody["choices"][0]["message"]["content"] == completed(server, prompt)
    effort = told(server, reasoning_effort="low", store=False)
    assert effort["choices"][0]["message"]["content"] == completed(server, f"{USER}(low)")


def test_the_same_question_with_and_without_thinking(server: Server) -> None:
    """Asked again it is an answer to the same prompt, which now ends otherwise."""
    for thinking in (True, False, True):
        answer = told(server, content="think?", chat_template_kwargs={"enable_thinking": thinking})
        message = answer["choices"][0]["message"]
        prompt = USER.replace("hi", "think?") + ("<think>\n" if thinking else "")
        said = message["reasoning_content" if thinking else "content"]
        assert said == completed(server, prompt).strip() if thinking else completed(server, prompt)


@pytest.mark.parametrize("thinking", [False, True])
def test_an_answer_goes_on_with_what_was_begun(server: Server, thinking: bool) -> None:
    user, begun = {"role": "user", "content": f"Go {thinking}"}, {"role": "assistant", "content": "Once <|im_end|>"}
    options = {"chat_template_kwargs": {"enable_thinking": True}} if thinking else {}
    asked = {"messages": [user, begun], "continue_final_message": True, "max_tokens": 12} | options
    answer = told(server, **asked)
    said = answer["choices"][0]["message"]["content"]
    ids = build_tokenizer()(f"<|im_start|>user\nGo {thinking}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    ids += build_tokenizer()("Once <", split_special_tokens=True)["input_ids"]
    ids += build_tokenizer()("|im_end|>")["input_ids"]
    assert said == completed(server, ids, max_tokens=12)
    assert "reasoning_content" not in answer["choices"][0]["message"]

    again = told(server, **asked, add_generation_prompt=False)
    assert again["choices"][0]["message"]["content"] == said
    whole = {"role": "assistant", "content": begun["content"] + said}
    more = told(server, messages=[user, whole, {"role": "user", "content": "More"}], **options)
    assert more["session"]["matched"] == "extend"
    alone = told(server, messages=[user, whole, {"role": "user", "content": "More"}], store=False, **options)
    assert alone["choices"][0]["message"] == more["choices"][0]["message"]
    edited = told(server, messages=[user, {"role": "user", "content": "No"}], **options)
    assert edited["session"]["matched"] in ("edit", "new")


def test_a_turn_back_is_no_beginning_where_nothing_was_thought(server: Server) -> None:
    """What such a template may write otherwise is rendered anew each time: what came out the same stays."""
    vocabulary = Vocabulary(build_tokenizer().backend_tokenizer)
    # Bytes that are no text would come back as others.
    plain = {"logit_bias": {str(token): -100 for token in range(259) if not vocabulary.octets(token).isalnum()}}
    history = [{"role": "user", "content": "One, at some length"}]
    for text in ("Two", "Three"):
        answer = told(server, messages=history, **plain)
        history += [answer["choices"][0]["message"], {"role": "user", "content": text}]
    last = told(server, messages=history, **plain)
    asked = [[*history[:2], {"role": "user", "content": "Else"}], history[:3], history]
    backs = [told(server, messages=messages, **plain) for messages in asked]
    for back, messages, matched in zip(backs, asked, ("edit", "regenerate", "extend"), strict=True):
        assert back["session"]["matched"] == matched
        assert back["usage"]["prompt_tokens_details"]["cached_tokens"] > 30
        alone = told(server, messages=messages, store=False, **plain)
        assert back["choices"][0]["message"] == alone["choices"][0]["message"]
    assert backs[-1]["choices"][0]["message"] == last["choices"][0]["message"]


def test_further_choices_go_on_with_it_too(server: Server) -> None:
    messages = [{"role": "user", "content": "n"}, {"role": "assistant", "content": "Begun"}]
    sampled = {"messages": messages, "continue_final_message": True, "temperature": 1.0}
    answer = told(server, **sampled, seed=3, n=2)
    for number, choice in enumerate(answer["choices"]):
        alone = told(server, **sampled, seed=3 + number, store=False)
        assert alone["choices"][0]["message"] == choice["message"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"chat_template_kwargs": {"moot": 1}}, "chat_template_kwargs.moot"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs.add_generation_prompt"),
        ({"chat_template_kwargs": {"mood": 5}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"mood": "x" * 3000}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"continue_final_message": True}, "messages"),
        ({"continue_final_message": True, "messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        (
            {
                "continue_final_message": True,
                "response_format": {"type": "json_object"},
                "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}],
            },
            "continue_final_message",
        ),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
    ],
)
def test_what_cannot_be_is_refused_by_name(server: Server, changes: dict[str, Any], param: str) -> None:
    response = server.post(ask(**changes))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert server.post(ask()).status_code == 200


def test_a_template_without_variables_takes_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    from server.template import ChatTemplate

    assert ChatTemplate(build_tokenizer()).variables == frozenset()
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE.replace("{% endfor %}", "{% generation %}x{%- endgeneration %}{% endfor %}")
    assert ChatTemplate(tokenizer).variables == {"mood", "reasoning_effort", "enable_thinking"}
