"""OpenAI's request bodies: read, checked, and brought into the form that the sampler reads.

An unknown field is refused by its name, as OpenAI does; SGLang's and vLLM's additions are known,
and nulls are absent fields. What would change the answer and is not here is refused; hints that
need not change it are accepted. ``docs/API.md`` has a line for every field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web

from daemons.front.sampling import LogprobWishes
from daemons.protocol.api.openai_bodies import ChatBody, CompletionBody, SharedBody
from daemons.protocol.api.pair import PairBody
from daemons.protocol.api.sampling_params import Wishes
from daemons.runtime.http import invalid, read_json

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
DEFAULT_CHAT_TOKENS = 1024  # OpenAI's is "as many as fit", which no queue likes
SHARED_NAMES = frozenset((*SharedBody.__struct_fields__, *PairBody.__struct_fields__))
OURS = "bootstrap_"  # routers put more of these into bodies than we read

# Refused when they ask for something: not null, false, empty.
REFUSED_SHARED = (
    "stop_regex",
    "lora_path",
    "session_params",
    "return_hidden_states",
    "return_routed_experts",
    "custom_logit_processor",
)
REFUSED_COMPLETION = ("suffix",)
REFUSED_CHAT = (
    "functions",
    "function_call",
    "audio",
    "prediction",
    "web_search_options",
    "moderation",
    "store",
    "chat_template",
)

B = TypeVar("B", ChatBody, CompletionBody)


@dataclass(frozen=True, slots=True)
class Read(Generic[B]):
    """One body in its three parts."""

    own: B
    shared: SharedBody
    pair: PairBody


async def read_openai(request: web.Request, form: type[B]) -> Read[B]:
    """Return a body of one of OpenAI's endpoints.

    Raises:
        Refusal: 400, wrong types, or a field that nobody knows.
    """
    own = await read_json(request, form)
    fields = await read_json(request, dict[str, msgspec.Raw])
    for name in fields:
        known = name in SHARED_NAMES or name in form.__struct_fields__
        if not known and not name.startswith(OURS):
            raise invalid(f"Unknown parameter: {name[:100]!r}.")
    return Read(own, await read_json(request, SharedBody), await read_json(request, PairBody))


def usage_in_stream(shared: SharedBody) -> bool:
    """Say whether a stream ends with a chunk that counts the tokens."""
    return shared.stream_options is not None and shared.stream_options.include_usage is True


def usage_in_chunks(shared: SharedBody) -> bool:
    """Say whether every chunk counts them."""
    options = shared.stream_options
    return usage_in_stream(shared) and options is not None and bool(options.continuous_usage_stats)


def wishes_of(
    shared: SharedBody, max_tokens: int | None, structural_tag: dict[str, Any] | None = None
) -> Wishes:
    """Return a body in SGLang's words; ``structural_tag`` is of the tools that must be called.

    Raises:
        Refusal: the response format is none.
    """
    given = {
        name: getattr(shared, name)
        for name in Wishes.__struct_fields__
        if name in SharedBody.__struct_fields__
    }
    given |= _format_wishes(shared.response_format or {})
    given |= {"max_new_tokens": max_tokens, "min_new_tokens": shared.min_tokens}
    if structural_tag is not None:
        if given.get("json_object") or any(
            given.get(name) is not None for name in ("json_schema", "regex", "ebnf")
        ):
            raise invalid("tools: a text that must be a call has no other grammar")
        given["structural_tag"] = structural_tag
    return Wishes(**given)


def _format_wishes(form: dict[str, Any]) -> dict[str, Any]:
    match form.get("type", "text"):
        case "text":
            return {}
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            said = form.get("json_schema")
            schema = said.get("schema") if isinstance(said, dict) else None
            if not isinstance(schema, dict | bool):
                raise invalid("response_format.json_schema.schema: a JSON schema is needed")
            return {"json_schema": schema if isinstance(schema, dict) else str(schema).lower()}
        case "structural_tag":  # SGLang's
            return {"structural_tag": form}
        case other:
            raise invalid(
                f"response_format.type: {str(other)[:40]!r}; it is text, json_object or json_schema"
            )


def check_shared(shared: SharedBody) -> None:
    """Raise Refusal for what is not here."""
    _refuse(shared, REFUSED_SHARED)


def prompts_of(body: CompletionBody) -> list[str | list[int]]:
    """Return the prompts.

    Raises:
        Refusal: 400, none, or texts and tokens mixed.
    """
    if isinstance(body.prompt, str):
        return [body.prompt]
    ids = [one for one in body.prompt if isinstance(one, int)]
    rest = [one for one in body.prompt if not isinstance(one, int)]
    if not body.prompt or (ids and rest):
        raise invalid("prompt: a text, token ids, or a list of either; not empty, not mixed")
    return [ids] if ids else list(rest)


def check_completion(body: CompletionBody, shared: SharedBody) -> None:
    """Raise Refusal for what is not here."""
    _refuse(body, REFUSED_COMPLETION)
    if body.best_of not in (None, shared.n or 1):
        raise invalid(f"best_of: {body.best_of}; only the same as n, {shared.n or 1}")
    if shared.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens: 0 only with echo, to have the prompt's log-probabilities")


def completion_logprobs(body: CompletionBody) -> LogprobWishes:
    """Return which log-probabilities are wanted: with ``echo`` those of the prompt too."""
    return LogprobWishes(body.logprobs, body.logprobs if body.echo else None)


def check_chat(body: ChatBody) -> None:
    """Raise Refusal for what is not here, and for what fits nothing else in the body."""
    _refuse(body, REFUSED_CHAT)
    if body.modalities not in (None, [], ["text"]):
        raise invalid("modalities: only text is supported")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs: true")
    if body.service_tier not in (None, "auto", "default"):
        raise invalid("service_tier: only auto and default are here")
    if body.verbosity not in (None, "medium"):
        raise invalid("verbosity: only medium is here")
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid("continue_final_message: not together with add_generation_prompt")


def chat_logprobs_of(body: ChatBody) -> LogprobWishes:
    """Return which log-probabilities are wanted."""
    return LogprobWishes(output_top=(body.top_logprobs or 0) if body.logprobs else None)


def _refuse(body: msgspec.Struct, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(body, name):
            raise invalid(f"{name}: not supported")
