"""`sinkahead models check`: a model loaded as `serve` would load it, and what came of it."""

import sys
from pathlib import Path

from rich.console import Console

from server import model_files
from server.banner import model_table
from server.service import check_together
from server.settings import Settings
from server.template import ChatTemplate, TokenizerError


def check(settings: Settings) -> int:
    """Prints how the model is served; 1, with the reason, where it is not. Raises `ModelFilesError`."""
    folder: Path = model_files.resolve(settings.model)
    from decoding.build import build
    from decoding.errors import ModelRefusedError

    try:
        facts = build(settings.engine_options(folder)).facts
        template = ChatTemplate.load(folder)
        check_together(settings, facts, template)
    except (ModelRefusedError, TokenizerError) as reason:
        print(f"{settings.public_model_name} is not served: {reason}", file=sys.stderr)
        return 1
    except Exception as error:  # transformers raises what it likes for broken folders
        words = " ".join(str(error).split())
        print(f"{settings.public_model_name} cannot be loaded: {type(error).__name__}: {words}", file=sys.stderr)
        return 1
    Console().print(f"{settings.public_model_name} is served", model_table(settings, facts, template.dialect))
    return 0
