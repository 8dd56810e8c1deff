"""The sandbox that chat templates render in, with its hottest questions answered fast.

Most of a render's time goes into looking up fields of messages. What the sandbox would answer is unchanged: it is asked
once per type where the answer depends on the type alone, and not at all where a key is found in a plain dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.runtime
from jinja2 import nodes
from jinja2.compiler import Frame
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


_METHODS = {
    **dict.fromkeys(("split", "strip", "lstrip", "rstrip", "startswith", "endswith", "replace", "lower", "upper"), "str"),
    **dict.fromkeys(("get", "items", "keys", "values"), "dict"),
}
"""Methods that templates call, and the type of which they are harmless."""

_LOOP_NAMES = frozenset({"first", "last", "index", "index0", "revindex", "revindex0", "length", "previtem", "nextitem"})


class _Compiler(jinja2.compiler.CodeGenerator):
    """Answers right where the template stands what the environment would be asked: most of a render's time goes there.

    What it writes are conditional expressions: for a plain type the answer, for all else the question as ever.
    """

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802 - Jinja calls it so
        if node.attr in _LOOP_NAMES and isinstance(node.node, nodes.Name) and node.node.name == "loop":
            loop = frame.symbols.ref("loop")
            self.write(f"({loop}.{node.attr} if type({loop}) is LoopContext else ")
            super().visit_Getattr(node, frame)
            self.write(")")
        elif node.attr in _DICT_NAMES:  # A method of dict goes before a key when it is asked for with a dot.
            super().visit_Getattr(node, frame)
        else:
            key = repr(node.attr)
            name = self._if("dict", lambda name: f"{name}[{key}]", node.node, frame, f" and {key} in {{0}}")
            self.write(f"environment.getattr({name}, {key}))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        key = node.arg.value if isinstance(node.arg, nodes.Const) else None
        if isinstance(key, str):
            name = self._if("dict", lambda name: f"{name}[{key!r}]", node.node, frame, f" and {key!r} in {{0}}")
        elif type(key) is int and key in (0, -1):
            name = self._if("list", lambda name: f"{name}[{key}]", node.node, frame, " and {0}")
        else:
            super().visit_Getitem(node, frame)
            return
        self.write(f"environment.getitem({name}, {key!r}))")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        method = node.node
        # The arguments are written twice, so they must not hold calls themselves.
        simple = not (node.kwargs or node.dyn_args or node.dyn_kwargs or forward_caller) and all(
            isinstance(argument, nodes.Const | nodes.Name) for argument in node.args
        )
        if not simple or not isinstance(method, nodes.Getattr) or method.attr not in _METHODS:
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return

        def call(name: str) -> str:
            return f"{name}.{method.attr}({', '.join(self._written(argument, frame) for argument in node.args)})"

        name = self._if(_METHODS[method.attr], call, method.node, frame)
        self.write(f"environment.call(context, environment.getattr({name}, {method.attr!r})")
        self.signature(node, frame, {key: key for key in _variables_of(frame)})
        self.write("))")

    def _if(self, kind: str, answer: Callable[[str], str], value: nodes.Expr, frame: Frame, also: str = "") -> str:
        """Write `(ANSWER if type(VALUE) is KIND ALSO else `, the value evaluated once; returns its name."""
        name = self.temporary_identifier()
        self.write(f"({answer(name)} if type({name} := ")
        self.visit(value, frame)
        self.write(f") is {kind}{also.format(name)} else ")
        return name

    def _written(self, node: nodes.Expr, frame: Frame) -> str:
        """What the compiler writes for an expression."""
        stream, self.stream = self.stream, StringIO()
        try:
            self.visit(node, frame)
            return self.stream.getvalue()
        finally:
            self.stream = stream


def _variables_of(frame: Frame) -> Iterator[str]:
    """The variables of loops and blocks, which calls are given."""
    if frame.loop_frame:
        yield "_loop_vars"
    if frame.block_frame:
        yield "_block_vars"


class _Absent(dict[str, jinja2.Undefined]):
    """What a key that a dict lacks is worth: one value for every name, since nothing else is told of it."""

    def __missing__(self, name: str) -> jinja2.Undefined:
        self[name] = found = jinja2.Undefined(obj={}, name=name)
        return found


class Sandbox(ImmutableSandboxedEnvironment):
    """The immutable sandbox of Jinja; see above."""

    code_generator_class = _Compiler

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._safe: dict[tuple[type, str], bool] = {}
        self.absent = _Absent()

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_NAMES:
            # What the sandbox does after the attribute lookup has failed.
            return obj.get(attribute, self.absent[attribute])
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
