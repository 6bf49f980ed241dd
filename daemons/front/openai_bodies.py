"""OpenAI's request bodies, brought into the form that the sampler reads.

Unknown fields are let be, as OpenAI does; wrong types are refused, and so is what changes the
answer but is not here yet. SGLang's additions (``top_k``, ``min_p``, ``ignore_eos`` ...) are taken.
"""

from __future__ import annotations

from typing import Any

import msgspec

from daemons.front.sampling import LogprobWishes, Seed, Wishes
from daemons.runtime.http import invalid

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
DEFAULT_CHAT_TOKENS = 1024  # OpenAI's is "as many as fit", which no queue likes


class StreamOptions(msgspec.Struct, frozen=True):
    """``stream_options``."""

    include_usage: bool | None = None


class SharedBody(msgspec.Struct, frozen=True):
    """What both of OpenAI's bodies have."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    seed: Seed | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, float] | None = None
    # SGLang's
    rid: str | None = None
    min_tokens: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None

    @property
    def usage_in_stream(self) -> bool:
        """Whether a stream ends with a chunk that counts the tokens."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    def wishes(self, max_tokens: int | None) -> Wishes:
        """Return the same in SGLang's words."""
        return Wishes(
            max_new_tokens=max_tokens,
            min_new_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            seed=self.seed,
            n=self.n,
            skip_special_tokens=self.skip_special_tokens,
            no_stop_trim=self.no_stop_trim,
            json_schema=self.json_schema,
            regex=self.regex,
            ebnf=self.ebnf,
            logit_bias=self.logit_bias,
        )


class CompletionBody(msgspec.Struct, frozen=True):
    """What only ``/v1/completions`` has."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def prompts(self) -> tuple[list[str | list[int]], bool]:
        """Return the prompts, and whether they were given as a list.

        Raises:
            Refusal: 400, none, or texts and tokens mixed.
        """
        if isinstance(self.prompt, str):
            return [self.prompt], False
        ids = [one for one in self.prompt if isinstance(one, int)]
        rest = [one for one in self.prompt if not isinstance(one, int)]
        if not self.prompt or (ids and rest):
            raise invalid("prompt: a text, token ids, or a list of either; not empty, not mixed")
        return ([ids], False) if ids else (list(rest), True)

    def check(self) -> None:
        """Raise Refusal for what is not here yet."""
        if self.suffix:
            raise invalid("suffix is not supported yet")
        if self.best_of not in (None, 1):
            raise invalid(f"best_of: {self.best_of} is not supported yet, only 1")
        if self.echo and self.logprobs is not None:
            raise invalid("echo together with logprobs is not supported yet")

    def logprob_wishes(self) -> LogprobWishes:
        """Return which log-probabilities are wanted."""
        return LogprobWishes(output_top=self.logprobs)


class ChatBody(msgspec.Struct, frozen=True):
    """What only ``/v1/chat/completions`` has."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Raise Refusal for what is not here yet, and for messages that are none."""
        for name in ("tools", "functions", "audio", "continue_final_message", "chat_template"):
            if getattr(self, name):
                raise invalid(f"{name} is not supported yet")
        if self.response_format and self.response_format.get("type", "text") != "text":
            raise invalid("response_format: only text is supported yet")
        if self.modalities not in (None, [], ["text"]):
            raise invalid("modalities: only text is supported yet")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs needs logprobs: true")

    def logprob_wishes(self) -> LogprobWishes:
        """Return which log-probabilities are wanted."""
        return LogprobWishes(output_top=(self.top_logprobs or 0) if self.logprobs else None)

    def plain_messages(self) -> list[dict[str, Any]]:
        """Return the messages with their contents as texts.

        Raises:
            Refusal: 400, with the place of a message that has no role or no text.
        """
        if not self.messages:
            raise invalid("messages: an empty list")
        return [_plain(n, message) for n, message in enumerate(self.messages)]


def _plain(n: int, message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise invalid(f"messages[{n}].role: a word is needed")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_text_of(n, part) for part in content)
    if not isinstance(content, str):
        raise invalid(f"messages[{n}].content: a text, or a list of text parts, is needed")
    return {**message, "content": content}


def _text_of(n: int, part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise invalid(f"messages[{n}].content: only parts of type text are supported yet")
