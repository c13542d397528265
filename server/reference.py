"""docs/configuration.md, written from the settings: `python -m server.reference > docs/configuration.md`."""

from server.settings import ENV_PREFIX, fields_by_group, shown_default

HEAD = f"""\
# Configuration

Written by `make docs` from `server/settings.py`.

Four layers, each over the one before: built-in values, a YAML file, environment variables, flags. The file is
`configs/default.yaml`, or what `--config` or `{ENV_PREFIX}CONFIG` names; `configs/cpu.yaml` and `configs/gpu.yaml`
are others to start from. A name that is no setting is an error in all of them. Sizes may have a unit (`4GiB`, `32MB`).

```
echo 'port: 8001' > my.yaml && .venv/bin/sinkahead serve --config my.yaml
{ENV_PREFIX}PORT=8001 .venv/bin/sinkahead serve
.venv/bin/sinkahead serve --port 8001
```

`SINKAHEAD_HOME`, a variable only, is the folder that fetched and converted models are kept in; without it that is
`$XDG_CACHE_HOME/sinkahead`, or `~/.cache/sinkahead`.
"""


def render() -> str:
    """The whole page, as Markdown: one table for each group of settings."""
    parts = [HEAD]
    for title, fields in fields_by_group().items():
        rows = [
            f"| `{name}` | `--{name.replace('_', '-')}` | `{ENV_PREFIX}{name.upper()}` | `{shown_default(field)}` | "
            f"{field.description} |\n"
            for name, field in fields.items()
        ]
        parts.append(
            f"\n## {title}\n\n| in YAML | flag | variable | default | what |\n|---|---|---|---|---|\n{''.join(rows)}"
        )
    return "".join(parts)


if __name__ == "__main__":
    print(render(), end="")
