"""The Jinja environment of chat templates, set up as transformers sets it up, plus marks that say where turns begin and end.

Templates are untrusted text: they render in an immutable sandbox and see plain values only. The environment is our own
because importing transformers costs a worker process seconds; tests hold it byte-equal to `apply_chat_template`.

Marks: the parsed template gets a call at the start and at the end of the body of every loop that writes straight to the
output. A mark puts no text into the output; it notes how many pieces had been written and which object the loop held.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.parser
from jinja2 import nodes

from arrowtune.data.render.sandbox import Sandbox, TemplateDict, TemplateNamespace
from arrowtune.errors import RenderError

ENTER, LEAVE, GENERATE, GENERATED = "arrowtune_enter", "arrowtune_leave", "arrowtune_generate", "arrowtune_generated"
INNER, OUTER = "arrowtune_inner", "arrowtune_outer"
"""The filters that carry the marks: a loop body begins / ends, a generation block begins / ends, a loop body inside of a
loop body begins / ends."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: a scope of its own, as in transformers, but written straight to the output so that it can be marked."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        start, end = _mark(GENERATE, nodes.Const(None)), _mark(GENERATED, nodes.Const(None))
        return nodes.Scope([start, *body, end]).set_lineno(line)


def _tojson(x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _clock(date: str | None) -> Callable[[str], str]:
    def strftime_now(fmt: str) -> str:
        if date is None:
            raise RenderError(
                "the chat template reads the clock, so its output would change from day to day",
                hint="set tokenizer.date to the day the template shall see, such as 2026-11-30",
            )
        return datetime.fromisoformat(date).strftime(fmt)

    return strftime_now


@jinja2.pass_context
def _no_mark(context: Any, value: Any) -> None:
    """Stands in for the marks of generation blocks."""


def compile_template(source: str, date: str | None, marks: dict[str, Callable[..., Any]] | None) -> jinja2.Template:
    """Compile a chat template with marks.

    Args:
        source: The template.
        date: The day (YYYY-MM-DD) that `strftime_now` tells.
        marks: The mark functions by filter name; each takes the render's context and the object of the loop.
            None compiles the template without marks.

    Returns:
        The compiled template.

    Raises:
        RenderError: The template is not valid Jinja; names the line.
    """
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.filters.update(marks or dict.fromkeys((ENTER, LEAVE, GENERATE, GENERATED, INNER, OUTER), _no_mark))
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_clock(date), dict=TemplateDict(), namespace=TemplateNamespace
    )
    try:
        tree = environment.parse(source)
        if marks is not None:
            _mark_loops(tree)
        code = environment.compile(tree, "chat_template", "chat_template")
    except jinja2.exceptions.TemplateSyntaxError as error:
        raise RenderError(
            f"the chat template is not valid Jinja: {error.message} at line {error.lineno}",
            hint="correct the template that tokenizer.chat_template or the tokenizer's folder gives",
        ) from None
    # A plain dict, where Jinja takes a chain of them: every render makes a copy.
    return jinja2.Template.from_code(environment, code, dict(environment.globals))


def variables_of(source: str) -> frozenset[str]:
    """The names that a template may read from its arguments; it must have compiled."""
    environment = Sandbox(extensions=[_Generation, "jinja2.ext.loopcontrols"])
    environment.filters.update(dict.fromkeys((GENERATE, GENERATED), _no_mark))
    return frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))


def _mark(name: str, argument: nodes.Expr) -> nodes.ExprStmt:
    # A filter is bound to a local name by the compiler: half the cost of a sandboxed call.
    return nodes.ExprStmt(nodes.Filter(argument, name, [], [], None, None, lineno=1), lineno=1)


_WRITERS = (nodes.Output, nodes.CallBlock, nodes.FilterBlock, nodes.Include, nodes.Block)
"""What a loop must hold to write anything."""


def _mark_loops(tree: nodes.Template) -> None:
    """Put marks into the outermost loops whose output is not buffered, and take those of buffered generation blocks away."""
    reached = list(_direct(tree.body))
    for loop in (node for node in reached if isinstance(node, nodes.For)):
        if isinstance(loop.target, nodes.Name) and not loop.recursive and next(loop.find_all(_WRITERS), None):
            name = loop.target.name
            for inner in [node for node in _direct(loop.body) if isinstance(node, nodes.For) and not node.recursive]:
                _mark_jumps(inner.body, OUTER)
                inner.body = [_mark(INNER, nodes.Const(None)), *inner.body, _mark(OUTER, nodes.Const(None))]
            _mark_jumps(loop.body, LEAVE)
            loop.body = [_mark(ENTER, nodes.Name(name, "load")), *loop.body, _mark(LEAVE, nodes.Const(None))]
    direct = {id(node) for node in reached} | {id(node) for loop in reached for node in _direct_inside(loop)}
    for scope in tree.find_all(nodes.Scope):
        if id(scope) not in direct and _is_mark(scope.body[:1], GENERATE):
            scope.body = scope.body[1:-1]


def _direct(body: list[nodes.Node]) -> Iterator[nodes.Node]:
    """Loops and scopes that write straight to the output, outermost loops only."""
    for node in body:
        if isinstance(node, nodes.If):
            yield from _direct([*node.body, *node.elif_, *node.else_])
        elif isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.Scope | nodes.With):
            yield node
            yield from _direct(node.body)


def _direct_inside(loop: nodes.Node) -> Iterator[nodes.Node]:
    if isinstance(loop, nodes.For) and not loop.recursive:
        for node in _direct([*loop.body, *loop.else_]):
            yield node
            yield from _direct_inside(node)


def _mark_jumps(body: list[nodes.Node], name: str) -> None:
    """`continue` and `break` leave the body too."""
    for index in range(len(body) - 1, -1, -1):
        node = body[index]
        if isinstance(node, nodes.Continue | nodes.Break):
            body.insert(index, _mark(name, nodes.Const(None)))
        elif isinstance(node, nodes.If):
            for part in (node.body, *(branch.body for branch in node.elif_), node.else_):
                _mark_jumps(part, name)
        elif isinstance(node, nodes.Scope | nodes.With):
            _mark_jumps(node.body, name)


def _is_mark(statements: list[nodes.Node], name: str) -> bool:
    return bool(statements) and isinstance(statements[0], nodes.ExprStmt) and getattr(statements[0].node, "name", "") == name
