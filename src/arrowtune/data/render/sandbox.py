"""The sandbox that chat templates render in, with its hottest questions answered fast.

Most of a render's time goes into looking up fields of messages. What the sandbox would answer is unchanged: it is asked
once per type where the answer depends on the type alone, and not at all where a key is found in a plain dict.
"""

from __future__ import annotations

from typing import Any

import jinja2
import jinja2.compiler
import jinja2.runtime
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateDict:
    """`dict` for templates, without the attributes of the real one."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class TemplateNamespace(jinja2.utils.Namespace):
    """`namespace` for templates; underscored names are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


_DICT_NAMES = frozenset(dir(dict))


class _Compiler(jinja2.compiler.CodeGenerator):
    """Looks a name up in a plain dict right where the template stands: half the time of asking the environment."""

    def visit_Getattr(self, node: nodes.Getattr, frame: jinja2.compiler.Frame) -> None:  # noqa: N802 - Jinja calls it so
        # A method of dict goes before a key when it is asked for with a dot.
        key = None if node.attr in _DICT_NAMES else node.attr
        closes = self._key_of_dict(node.node, key, frame)
        super().visit_Getattr(node, frame)
        self.write(closes)

    def visit_Getitem(self, node: nodes.Getitem, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        key = node.arg.value if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str) else None
        closes = self._key_of_dict(node.node, key, frame)
        super().visit_Getitem(node, frame)
        self.write(closes)

    def _key_of_dict(self, value: nodes.Expr, key: str | None, frame: jinja2.compiler.Frame) -> str:
        if key is None or not isinstance(value, nodes.Name):
            return ""
        name = frame.symbols.ref(value.name)
        self.write(f"({name}[{key!r}] if type({name}) is dict and {key!r} in {name} else ")
        return ")"


class Sandbox(ImmutableSandboxedEnvironment):
    """The immutable sandbox of Jinja; see above."""

    code_generator_class = _Compiler

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._safe: dict[tuple[type, str], bool] = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_NAMES:
            # What the sandbox does after the attribute lookup has failed.
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind is TemplateNamespace:
            # Only templates put values there, under names that were checked. Its own attribute lookup is slow.
            values = _attributes_of(obj, "_Namespace__attrs")
            if attribute in values:
                return values[attribute]
        if self._safe.get((kind, attribute)) and attribute not in _FORMATTERS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) not in _PLAIN_TYPES:
            return super().is_safe_attribute(obj, attr, value)
        key = (type(obj), attr)
        if (safe := self._safe.get(key)) is None:
            safe = self._safe[key] = super().is_safe_attribute(obj, attr, value)
        return safe


_attributes_of = object.__getattribute__

_FORMATTERS = frozenset({"format", "format_map"})
"""Methods of strings that the sandbox replaces by its own."""

_PLAIN_TYPES = frozenset({str, list, dict, tuple, int, float, bool, type(None), jinja2.runtime.LoopContext})
"""For values of these types the answer depends on the type and the name alone."""


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a template cannot store the underscored name {name!r} in a namespace")
