"""The command line. Flags are made of the settings' fields, so that each is described once."""

import argparse
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from pydantic.fields import FieldInfo

from decoding.errors import ModelRefusedError
from server import model_files, needle, perplexity, sessions_cli
from server.persistence import FolderError
from server.settings import ENV_PREFIX, Settings, SettingsError, fields_by_group, shown_default

DESCRIPTION = "An OpenAI-compatible streaming server for language models: conversations without end, in bounded memory."
SERVE = "Serve a model over HTTP."
SERVE_NOTE = f"Each is also a variable (--max-rows: {ENV_PREFIX}MAX_ROWS) and a line of the YAML file (max_rows: 8)."
MODEL = "default (which it is where none is named), a folder, a .gguf file or org/name on the model hub"
CHECK = "Load a model as serve would, and say how it is served and at what memory per session, or why not."
SESSIONS = "Look at the conversations that are kept on this machine."
FETCH = "Fetch and convert a model, and print its folder. Without MODEL: the default one."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 2 for settings or models that cannot be used."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except (
        SettingsError,
        FolderError,
        model_files.ModelFilesError,
        perplexity.EvaluationError,
        ModelRefusedError,
    ) as error:
        print(f"sinkahead: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # as a shell reports it
    return code


def build_parser() -> argparse.ArgumentParser:
    """All commands; each sets `run`, a function of the parsed arguments that returns an exit code."""
    parser = argparse.ArgumentParser("sinkahead", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"sinkahead {version('sinkahead')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve", help=SERVE, description=SERVE, epilog=SERVE_NOTE, usage="%(prog)s [options]", **_SETTINGS_FLAGS
    )
    _add_settings_flags(serve, fields_by_group())
    serve.set_defaults(run=_serve)
    models = commands.add_parser("models", help="Manage the models on this machine.").add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    fetch = models.add_parser("fetch", help=FETCH, description=FETCH)
    fetch.add_argument("model", nargs="?", default="default", metavar="MODEL", help=MODEL)
    fetch.set_defaults(run=_fetch)
    check = models.add_parser(
        "check", help=CHECK, description=CHECK, usage="%(prog)s [options] [MODEL]", **_SETTINGS_FLAGS
    )
    check.add_argument("model", nargs="?", default="default", metavar="MODEL", help=MODEL)
    groups = {title: dict(fields) for title, fields in fields_by_group().items() if title in ("Model", "Cache")}
    del groups["Model"]["model"]
    _add_settings_flags(check, groups)
    check.set_defaults(run=_check)
    sessions = commands.add_parser("sessions", help=SESSIONS).add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    for name, command in sessions_cli.COMMANDS.items():
        words = command.__doc__.splitlines()[0]
        listed = sessions.add_parser(name, help=words, description=words, **_SETTINGS_FLAGS)
        if name != "list":
            listed.add_argument("session", metavar="ID")
            listed.add_argument("--key", default="", help="whose it is, where two keys use the id: as in the list")
        folder = Settings.model_fields["sessions_folder"]
        _add_settings_flags(listed, {"Sessions": {"sessions_folder": folder}})
        listed.set_defaults(run=_sessions, command=command)
    evaluations = commands.add_parser("eval", help="Measure a model under the cache policies.").add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    for name, evaluation in (("ppl", perplexity), ("needle", needle)):
        words = evaluation.DESCRIPTION
        evaluation.add_arguments(evaluations.add_parser(name, help=words, description=words))
    return parser


_SETTINGS_FLAGS: dict[str, Any] = {
    "allow_abbrev": False,
    "argument_default": argparse.SUPPRESS,  # a flag that is not given leaves the layers below alone
    "formatter_class": lambda prog: argparse.HelpFormatter(prog, max_help_position=38, width=120),
}


def _add_settings_flags(parser: argparse.ArgumentParser, groups: Mapping[str, Mapping[str, FieldInfo]]) -> None:
    for title, fields in groups.items():
        group = parser.add_argument_group(title)
        for name, field in fields.items():
            # Text goes to `Settings` as it is: one place parses it, from wherever it comes.
            how: dict[str, Any] = {"metavar": name.rpartition("_")[2].upper()}
            if field.annotation is bool:
                how = {"action": "store_const", "const": "true", "dest": name}
            words = f"{field.description} (default: {shown_default(field)})"
            group.add_argument(f"--{name.replace('_', '-')}", help=words, **how)
            if field.default is True:
                how["const"] = "false"
                group.add_argument(f"--no-{name.replace('_', '-')}", help="the opposite", **how)


def _settings(arguments: argparse.Namespace) -> Settings:
    return Settings.load({name: value for name, value in vars(arguments).items() if name != "run"})


def _serve(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    from server.app import serve

    code = serve(settings)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is said and written; to take the interpreter apart takes seconds


def _check(arguments: argparse.Namespace) -> int:
    from server.model_check import check

    return check(_settings(arguments))


def _sessions(arguments: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(arguments).items() if name == "sessions_folder"}
    which = [arguments.session, arguments.key] if "session" in arguments else []
    try:
        arguments.command(Settings.load(given), *which)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough
        os._exit(0)
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    start = time.monotonic()
    print(model_files.resolve(arguments.model))
    print(f"Ready after {time.monotonic() - start:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
