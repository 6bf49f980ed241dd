"""SGLang's ``sampling_params``; null means absent. OpenAI's bodies are brought into this form."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a client wants tokens chosen and its text ended."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    seed: Seed | None = None
    sampling_seed: Seed | None = None  # SGLang's name of seed
    n: int | None = None  # samples; the i-th one has seed + i, or a seed of its own
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None  # taken, without effect
    no_stop_trim: bool | None = None
    stream_interval: int | None = None  # taken, without effect
    custom_params: Any = None  # taken, without effect
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    json_object: bool | None = None  # OpenAI's response_format of that type
    stop_regex: Any = None  # refused
    logit_bias: dict[str, float] | None = None
