"""Write the generated pages of `docs/`: the keys of the run file, and its JSON schema for editors.

Both come from the section classes, so that they cannot say anything else than the code; a test compares them.

    python tools/make_docs.py            write them
    python tools/make_docs.py --check    print the names of those that are stale
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from arrowtune.section import Section

Section.model_config["use_attribute_docstrings"] = True  # Before the sections are made of it.

from arrowtune.config import SFTConfig  # noqa: E402

DOCS = Path(__file__).parents[1] / "docs"
HEAD = """# The run file

<!-- Generated from the section classes by `make docs`; edit their docstrings instead. -->

A run is a YAML 1.2 file, so `1e-5` is a number and `no` is a word. Unknown keys are refused with a suggestion, and all
faults are reported at once. Any key can be given on the command line instead, after the file:

    arrowtune train run.yaml batch.examples=64 model.path=tiny data.train.0.limit=1000

Editors check a run file against [run-file.schema.json](run-file.schema.json) when its first line is
`# yaml-language-server: $schema=docs/run-file.schema.json`. Files to start from are in [examples/](../examples).
"""


def page() -> str:
    """The text of `docs/run-file.md`."""
    parts = [HEAD, *_section("The run", SFTConfig, scalars_only=True)]
    for name, field in SFTConfig.model_fields.items():
        if section := section_in(field.annotation):
            parts += _section(f"`{name}`", section)
            for inner, inner_field in section.model_fields.items():
                if entry := section_in(inner_field.annotation):
                    title = f"An entry of `{name}.{inner}`" if is_list(inner_field.annotation) else f"`{name}.{inner}`"
                    parts += _section(title, entry)
    # `data.train` and `data.eval` hold the same kind of entry: describe it once.
    return _once("\n".join(parts)).rstrip() + "\n"


def _once(text: str) -> str:
    first, second = "## An entry of `data.train`", "## An entry of `data.eval`"
    start = text.index(second)
    end = text.find("\n## ", start + 1)
    text = text[:start] + (text[end + 1 :] if end >= 0 else "")
    return text.replace(first, "## An entry of `data.train` or `data.eval`")


def _section(title: str, section: type[Section], *, scalars_only: bool = False) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{_one_line(section.__doc__)}\n"
    yield "| key | values | default | meaning |\n|---|---|---|---|"
    for name, field in section.model_fields.items():
        if not (scalars_only and section_in(field.annotation) and name != "track"):
            yield f"| `{name}` | {values(section, name)} | {default(field)} | {_one_line(field.description)} |"
    yield ""


def section_in(annotation: Any) -> type[Section] | None:
    """The section class inside an annotation, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    inner = (section_in(part) for part in getattr(annotation, "__args__", ()))
    return next((found for found in inner if found), None)


def is_list(annotation: Any) -> bool:
    """Whether a key holds several of the sections inside its annotation."""
    return any(get_origin(part) is tuple for part in (annotation, *get_args(annotation)))


def values(section: type[Section], name: str) -> str:
    """What a key may hold, from the JSON schema of its section."""
    annotation = section.model_fields[name].annotation
    if section_in(annotation):
        return "list" if is_list(annotation) else "mapping"
    found = section.model_json_schema()["properties"][name]
    return " or ".join(_kind(option) for option in found.get("anyOf", [found]) if option.get("type") != "null")


_NAMES = {"string": "text", "boolean": "true, false", "integer": "integer", "number": "number", "object": "mapping"}


def _kind(found: dict[str, Any]) -> str:
    if "enum" in found or "const" in found:
        return ", ".join(f"`{value}`" for value in found.get("enum", [found.get("const")]))
    if found.get("type") == "array":
        return f"list of {len(found['prefixItems'])} numbers" if "prefixItems" in found else f"list of {found['items']['type']}s"
    return _NAMES[found["type"]] + _bounds(found)


def _bounds(found: dict[str, Any]) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    return "".join(f", {word} {found[key]:g}" for key, word in words.items() if key in found)


def default(field: FieldInfo) -> str:
    """The default of a key as YAML would write it."""
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return "required"
    if value is None:
        return ""
    if field.annotation is not None and "TrackerConfig" in str(field.annotation):
        return "`[console, jsonl]`"
    if isinstance(value, Section):
        return ""
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value).strip(chr(34))}`"


def _one_line(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip().replace("|", r"\|")


def schema() -> str:
    """The text of `docs/run-file.schema.json`."""
    tree = SFTConfig.model_json_schema()
    sources, run = tree["$defs"]["DataConfig"]["properties"], tree["properties"]
    for holder in (sources["train"], sources["eval"], run["track"]):
        # The short forms that the sections accept: a name for an entry, and one entry for a list of one.
        holder["items"] = {"anyOf": [{"type": "string"}, holder["items"]]}
    for name in ("train", "eval"):
        whole = sources[name]
        rest = {key: whole.pop(key) for key in ("type", "items")}
        whole["anyOf"] = [rest, *rest["items"]["anyOf"]]
    tree["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def pages() -> dict[Path, str]:
    """Every generated file and its text."""
    return {DOCS / "run-file.md": page(), DOCS / "run-file.schema.json": schema()}


if __name__ == "__main__":
    for path, text in pages().items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
            print(path)
        elif path.read_text(encoding="utf-8") != text:
            print(path)
