"""Turns messages into a prompt with the model's own template.

The template is the operator's, the messages are a client's: it runs in a sandbox that changes
nothing. Source: the template environment of ``transformers`` (``utils/chat_template_utils.py``),
whose whitespace rules, functions and variables templates rely on.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from daemons.cluster.errors import OperatorError


class TemplateRefusal(Exception):
    """The template does not take these messages; the text is fit for a client."""


class ChatTemplate:
    """A compiled chat template with the model's special tokens."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile the template.

        Raises:
            OperatorError: it is not a template.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationBlock],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now_as
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise OperatorError(
                f"the model's chat template: {error}", "mend it or take it out"
            ) from error
        self._special = dict(special_tokens)
        self.source = source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt; ``more`` are variables of the client (``chat_template_kwargs``).

        Raises:
            TemplateRefusal: the template raises, for whatever reason.
        """
        variables = {
            "tools": None,
            "documents": None,
            **(more or {}),
            **self._special,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise TemplateRefusal(str(error)) from error


class GenerationBlock(Extension):
    """``{% generation %}`` marks training text in some templates; here its body is just text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001 - templates pass it by place
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)


def _now_as(form: str) -> str:
    return datetime.datetime.now().strftime(form)
