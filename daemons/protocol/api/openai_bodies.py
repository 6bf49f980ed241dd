"""OpenAI's request bodies, with the additions of SGLang and vLLM that their clients send.

A body is read as its own struct and as :class:`SharedBody`; a field that neither names is unknown.
``docs/API.md`` tells of every field whether it is honoured, accepted or refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from daemons.protocol.api.sampling_params import Seed


class StreamOptions(msgspec.Struct, frozen=True):
    """``stream_options``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # usage in every chunk, not only in the last
    include_obfuscation: bool | None = None  # taken, without effect


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
    response_format: dict[str, Any] | None = None
    user: str | None = None  # a hint to the balancer, as the next one
    session_id: str | None = None
    # SGLang's and vLLM's
    rid: str | list[str] | None = None
    min_tokens: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: Any = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    sampling_seed: Seed | None = None
    # of SGLang's routers: nulls and defaults, refused only when they ask for something
    lora_path: Any = None
    session_params: Any = None
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    return_cached_tokens_details: Any = None
    custom_logit_processor: Any = None
    custom_params: Any = None
    data_parallel_rank: Any = None
    extra_key: Any = None


class CompletionBody(msgspec.Struct, frozen=True):
    """What only ``/v1/completions`` has."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class FunctionSpec(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # JSON schema of its arguments
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """An entry of ``tools``."""

    type: str
    function: FunctionSpec


class ChatBody(msgspec.Struct, frozen=True):
    """What only ``/v1/chat/completions`` has."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
    prediction: Any = None
    web_search_options: Any = None
    moderation: Any = None
    # SGLang's
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
