"""The server's settings: frozen, each in one place, layered defaults < YAML < environment < flags."""

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ByteSize, Field, StringConstraints, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from yaml import YAMLError

from decoding.drafting import MAX_ROWS, DraftingError, resolve
from decoding.options import EngineOptions, Exactness, PolicyName
from decoding.turn import Drafting, StrategyName
from server.logs import LogStyle
from server.model_files import DEFAULT_MODEL_NAME

ENV_PREFIX = "SINKAHEAD_"
CONFIGS = Path(__file__).resolve().parents[1] / "configs"  # in a checkout and in site-packages alike
DEFAULT_CONFIG = CONFIGS / "default.yaml"
NOT_SETTINGS = {"SINKAHEAD_HOME"}  # where fetched models are kept; read by model_files
MIN_SINKS = 4


class SettingsError(Exception):
    """Settings that cannot be used; the message names each one, what is wrong and where it was set."""


def setting(default: Any, group: str, description: str, **limits: Any) -> Any:
    """A field with the group it is listed under, in --help and in docs/configuration.md."""
    return Field(default, description=description, json_schema_extra={"group": group}, **limits)


KEY = r"[!-+\--~]+"


ORIGIN = r"(\*|[a-z][a-z0-9+.-]*://[^\s/,?#]+)"


def _listed(value: Any) -> Any:
    """Text with commas; that there is none is said by not setting it."""
    if not isinstance(value, str):
        return value
    listed = tuple(filter(None, map(str.strip, value.split(","))))
    if not listed:
        raise ValueError("there is none in it")
    return listed


Listed = NoDecode, BeforeValidator(_listed)
Keys = Annotated[tuple[Annotated[str, StringConstraints(pattern=f"^{KEY}$")], ...], *Listed]
Origins = Annotated[tuple[Annotated[str, StringConstraints(pattern=f"^{ORIGIN}$")], ...], *Listed]
Size = Annotated[int | None, BeforeValidator(lambda value: None if value == "null" else value)]  # flags are text


class Settings(BaseSettings):
    """What `sinkahead serve` runs with. Build it with `Settings.load`, which reports errors in words."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        env_parse_none_str="null",
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    config: Path = setting(DEFAULT_CONFIG, "Server", "YAML file with settings")
    host: str = setting("127.0.0.1", "Server", "address to listen on; 0.0.0.0 is every interface")
    port: int = setting(8000, "Server", "port to listen on; 0 takes a free one", ge=0, le=65535)
    api_keys: Keys = setting((), "Server", "keys clients must send, with commas between; none: anybody may ask")
    api_keys_file: Path | None = setting(None, "Server", "file with more of them, one a line")
    cors_origins: Origins = setting(
        (), "Server", "origins whose pages may ask, as https://chat.example, with commas; * is all"
    )
    tls_certificate: Path | None = setting(None, "Server", "file with a certificate and its chain, as PEM: HTTPS")
    tls_key: Path | None = setting(None, "Server", "file with its private key, as PEM")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Server", "debug, info, warning or error")
    log_format: Literal["text", "json"] = setting("text", "Server", "text, or json: an object a line")
    access_log: bool = setting(True, "Server", "log a line for each request, at level info, without what was said")

    model: str = setting("default", "Model", "default, a folder, a .gguf file or org/name on the model hub")
    served_model_name: str | None = setting(None, "Model", "name clients ask for; null takes it from the model")
    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = setting(
        "auto", "Model", "auto, cpu, cuda or cuda:N; auto takes CUDA where there is one"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "Model", "auto, float32, bfloat16 or float16; auto chooses by device"
    )
    exact: Exactness = setting("auto", "Model", "bits, fast or auto; bits: texts never depend on drafts or the batch")
    trust_model: bool = setting(False, "Model", "serve unproven model types, too, after a self-check")
    threads: int = setting(0, "Model", "CPU threads; 0 is one per core", ge=0)

    tool_block: Literal["generic", "refuse"] = setting(
        "generic", "Model", "for templates that show no tools: generic or refuse (docs/tools.md)"
    )

    policy: PolicyName = setting(
        "sinks", "Cache", "sinks, window, recompute or dense: which tokens stay (docs/caches.md)"
    )
    sinks: Literal["pinned"] | Annotated[int, Field(ge=MIN_SINKS)] = setting(
        "pinned", "Cache", "first tokens that stay; pinned: up to the system prompt's end"
    )
    capacity: int = setting(1024, "Cache", "most tokens a session keeps; with dense, also its end", ge=2 * MIN_SINKS)
    block: int = setting(64, "Cache", "tokens evicted at a time", ge=1)
    memory: Literal["auto"] | Annotated[ByteSize, Field(gt=0)] = setting(
        "auto", "Cache", "of all sessions together, as 4GiB; auto is half of what is free"
    )

    host_memory: Literal["auto"] | Annotated[ByteSize, Field(ge=0)] = setting(
        "auto", "Cache", "of sessions that are parked, beside `memory`; auto is a quarter of what is free"
    )

    sessions_folder: Path | None = setting(
        None, "Sessions", "where conversations are kept; null: sessions in the folder of fetched models"
    )
    persist: bool = setting(True, "Sessions", "keep conversations on the disk, over restarts; else in memory")
    session_ttl_seconds: float = setting(
        7 * 86400.0, "Sessions", "a conversation that nobody goes on with is forgotten after this time", gt=0
    )
    disk: ByteSize = setting(ByteSize(10_000_000_000), "Sessions", "most disk space they take, as 10GB", ge=1)
    thinking: Literal["strip", "keep"] = setting(
        "strip", "Sessions", "strip or keep what a model thinks before it answers, in what later turns see"
    )
    max_sessions: int = setting(100_000, "Sessions", "most conversations; the one unused for longest leaves", ge=1)

    strategy: StrategyName = setting(
        "auto",
        "Lookahead",
        "auto, lookahead, jacobi or autoregressive (no drafts)",
    )
    window: Size = setting(None, "Lookahead", "its columns, of lookahead (null: 5) and jacobi (null: 8)")
    ngram: Size = setting(None, "Lookahead", "length of n-grams, of lookahead (null: 4)")
    guesses: Size = setting(None, "Lookahead", "most n-grams tried in a step, of lookahead (null: 5)")

    max_rows: int = setting(0, "Limits", "most tokens computed in one step; 0 chooses by device", ge=0)
    max_running: int = setting(0, "Limits", "most requests decoded at once; 0 is as many as fit", ge=0)
    max_waiting: int = setting(64, "Limits", "most requests waiting for a place; the next is refused", ge=0)
    max_prompt_tokens: int = setting(
        1_000_000, "Limits", "most tokens that one request adds to its conversation; more are refused", ge=1
    )
    max_output_tokens: int = setting(4096, "Limits", "bound on one answer, also where a request sets none", ge=1)
    max_body_bytes: ByteSize = setting(ByteSize(32_000_000), "Limits", "largest request body, as 32MB", ge=1)
    request_timeout_seconds: float = setting(600.0, "Limits", "bound on one request, waiting included", gt=0)
    queue_timeout_seconds: float = setting(600.0, "Limits", "bound on the wait for a place", gt=0)
    requests_per_minute: int = setting(0, "Limits", "of each API key; 0 is as many as it likes", ge=0)
    max_unread_tokens: int = setting(
        4096, "Limits", "a stream is ended when its reader lags so many tokens behind", ge=1
    )
    stall_seconds: float = setting(120.0, "Limits", "a worker that owes a step so long is replaced; 0 is never", ge=0)
    drain_seconds: float = setting(30.0, "Limits", "for running requests to end after SIGTERM", ge=0)
    ping_seconds: float = setting(15.0, "Limits", "silence of a stream before a keep-alive; 0 is never", ge=0)

    @model_validator(mode="after")
    def _check_cache_shape(self) -> Self:
        sinks = MIN_SINKS if self.sinks == "pinned" else self.sinks
        if not sinks <= self.capacity // 2:
            raise ValueError(f"sinks ({sinks}) may take at most half of capacity ({self.capacity})")
        if not self.block <= self.capacity - sinks:
            raise ValueError(f"block ({self.block}) may be at most capacity - sinks ({self.capacity} - {sinks})")
        return self

    @model_validator(mode="after")
    def _check_drafting(self) -> Self:
        """What can be known without the device; it may have fewer rows."""
        try:
            resolve(self.drafting, self.max_rows or MAX_ROWS)
        except DraftingError as error:
            raise ValueError(f"{error.parameter}: {error}") from None
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key are of use together only")
        return self

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None) -> Self:
        """Read all layers; `flags` (only those given) win. Raises `SettingsError`."""
        flags = dict(flags or {})
        _refuse_unknown_variables()
        try:
            return cls(**flags)
        except ValidationError as error:
            raise SettingsError(_explain(error, flags)) from None
        except (OSError, YAMLError) as error:
            raise SettingsError(f"the settings file cannot be read: {' '.join(str(error).split())}") from None
        except ValueError:
            raise SettingsError(f"{_config_path(flags)}: a settings file holds lines of `name: value`") from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = Path(init_settings().get("config") or env_settings().get("config") or DEFAULT_CONFIG)
        with path.open("rb"):  # the source below takes a missing file for an empty one
            return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, path)

    @property
    def public_model_name(self) -> str:
        """The model's name in the API."""
        if self.served_model_name:
            return self.served_model_name
        if self.model == "default":
            return DEFAULT_MODEL_NAME
        path = Path(self.model)
        return path.resolve().name.removesuffix(".gguf") if path.exists() else self.model

    @property
    def address(self) -> str:
        """What clients reach the server by."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls_key else ''}://{host}:{self.port}"

    @property
    def log_style(self) -> LogStyle:
        return LogStyle(self.log_level, self.log_format)

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys) or self.api_keys_file is not None

    @property
    def all_keys(self) -> list[str]:
        """Those that are set, and those of the file. Raises `SettingsError` where it cannot be read, or has none."""
        if self.api_keys_file is None:
            return list(self.api_keys)
        try:
            lines = self.api_keys_file.read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"api_keys_file cannot be read: {error}") from None
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise SettingsError(f"api_keys_file: there is no key in {self.api_keys_file}")
        for number, line in enumerate(lines, 1):
            if line.strip() in keys and not re.fullmatch(KEY, line.strip()):
                raise SettingsError(f"api_keys_file: line {number} is no key: printable ASCII, no spaces, no commas")
        return [*self.api_keys, *keys]

    @property
    def drafting(self) -> Drafting:
        """Its sizes are still to be resolved."""
        return Drafting(strategy=self.strategy, window=self.window, ngram=self.ngram, guesses=self.guesses)

    def engine_options(self, model_path: Path) -> EngineOptions:
        """What the engine needs of this, with the model already a local folder."""
        return EngineOptions(
            model=str(model_path),
            device=self.device,
            dtype=self.dtype,
            exact=self.exact,
            trust_model=self.trust_model,
            threads=self.threads,
            policy=self.policy,
            capacity=self.capacity,
            block=self.block,
            memory_bytes=0 if self.memory == "auto" else int(self.memory),
            host_bytes=-1 if self.host_memory == "auto" else int(self.host_memory),
            max_rows=self.max_rows,
            drafting=self.drafting,
        )


def fields_by_group() -> dict[str, dict[str, FieldInfo]]:
    """The fields in their order, under the title they are listed with."""
    groups: dict[str, dict[str, FieldInfo]] = {}
    for name, field in Settings.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        groups.setdefault(str(extra["group"]), {})[name] = field
    return groups


def shown_default(field: FieldInfo) -> str:
    """The default as one would write it in a settings file."""
    if field.default == DEFAULT_CONFIG:
        return "configs/default.yaml"
    if isinstance(field.default, ByteSize):
        return field.default.human_readable(decimal=True).replace(".0", "")
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if field.default == ():
        return "none"
    return "null" if field.default is None else f"{field.default}".removesuffix(".0")


def _refuse_unknown_variables() -> None:
    """A misspelt variable would otherwise be ignored, and the server run with other settings than were asked for."""
    known = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields} | NOT_SETTINGS
    unknown = [name for name in os.environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known]
    if unknown:
        raise SettingsError("\n".join(f"{name}: no such setting{_nearest(name.upper(), known)}" for name in unknown))


def _explain(error: ValidationError, flags: Mapping[str, Any]) -> str:
    """One line for each setting at fault: where it was set, what it is, what is wrong with it."""
    lines: dict[str, list[str]] = {}
    for fault in error.errors():
        name = str(fault["loc"][0]) if fault["loc"] else ""
        if fault["type"] == "extra_forbidden":
            problem = f"no such setting{_nearest(name, Settings.model_fields)}"
        elif name:
            problem = f"{fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}"
        else:
            problem = fault["msg"].removeprefix("Value error, ")
        lines.setdefault(f"{_origin(name, flags)}: " if name else "", []).append(problem)
    return "\n".join(origin + ", or ".join(problems) for origin, problems in lines.items())


def _origin(name: str, flags: Mapping[str, Any]) -> str:
    """How the user wrote the setting, so that they find it again."""
    variable = f"{ENV_PREFIX}{name}".upper()
    if name in flags:
        return f"--{name.replace('_', '-')}"
    if variable in map(str.upper, os.environ):
        return variable
    return f"{name} in {_config_path(flags)}"


def _config_path(flags: Mapping[str, Any]) -> str:
    return str(flags.get("config") or os.environ.get(f"{ENV_PREFIX}CONFIG") or DEFAULT_CONFIG)


def _nearest(name: str, known: Iterable[str]) -> str:
    matches = get_close_matches(name, known, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""
