"""What a front knows about the model: its directory without the weights.

End-of-sequence tokens are those of ``generation_config.json``; where that file has none, those
of ``config.json``; where that has none, the tokenizer's. So ``transformers`` chooses too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from daemons.cluster.errors import OperatorError
from daemons.front.chat_template import ChatTemplate
from daemons.front.validate import too_long
from daemons.runtime.http import invalid

INLINE_CHARACTERS = 4096  # longer texts are tokenized off the event loop
SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's table: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return table | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF = _byte_of_character()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Tokenizer, limits and chat template of a model."""

    directory: Path
    tokenizer: Tokenizer
    vocabulary: int  # token ids are below
    context_tokens: int  # longest prompt + output that the model was made for
    eos_token_ids: tuple[int, ...]
    chat: ChatTemplate | None
    byte_level: bool = False  # words are bytes in GPT-2's printable disguise
    longest_word: int = 1024  # characters of the longest token

    async def tokens(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the tokens of a text.

        Raises:
            Refusal: 400 when the text has no tokens, or more than can ever be served.
        """
        if len(text) > self.context_tokens * self.longest_word:
            raise too_long(
                f"the prompt has {len(text)} characters, {self.context_tokens} tokens"
                f" have at most {self.context_tokens * self.longest_word}"
            )
        if len(text) <= INLINE_CHARACTERS:
            ids = self._encode(text, add_special_tokens)
        else:
            ids = await asyncio.to_thread(self._encode_long, text, add_special_tokens)
        if not ids:
            raise invalid("the prompt has no tokens")
        return ids

    def checked(self, ids: list[int]) -> tuple[int, ...]:
        """Return token ids that a client gave.

        Raises:
            Refusal: 400 when there are none or too many, or one is not of the vocabulary.
        """
        if not ids:
            raise invalid("the prompt has no tokens")
        if len(ids) >= self.context_tokens:  # before millions of them are looked at
            limit = self.context_tokens - 1
            raise too_long(f"the prompt has {len(ids)} tokens, the limit is {limit}")
        wrong = next((id_ for id_ in ids if not 0 <= id_ < self.vocabulary), None)
        if wrong is not None:
            raise invalid(f"token id {wrong} is not of the vocabulary, 0 to {self.vocabulary - 1}")
        return tuple(ids)

    def token_text(self, id_: int) -> str:
        """Return the text of one token, special ones included."""
        return self.tokenizer.decode([id_], skip_special_tokens=False)

    def token_bytes(self, id_: int) -> bytes:
        """Return the bytes of one token, which need not be whole characters."""
        word = self.tokenizer.id_to_token(id_) or ""
        if self.byte_level and all(character in BYTE_OF for character in word):
            return bytes(BYTE_OF[character] for character in word)
        if len(word) == 6 and word.startswith("<0x") and word.endswith(">"):  # byte fallback
            return bytes([int(word[3:5], 16)])
        return self.token_text(id_).encode()

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:  # noqa: FBT001
        return tuple(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def _encode_long(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:  # noqa: FBT001
        """The same; of the library's ways only those for batches give up the interpreter lock."""
        (encoded,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(encoded.ids)


def load(directory: str) -> ModelCard:
    """Read a Hugging Face model directory.

    Raises:
        OperatorError: a file is missing or is not what its name says.
    """
    path = Path(directory)
    config = _json(path / "config.json")
    generation = _json(path / "generation_config.json", needed=False)
    settings = _json(path / "tokenizer_config.json", needed=False)
    tokenizer = _tokenizer(path / "tokenizer.json")
    context = config.get("max_position_embeddings")
    if not isinstance(context, int) or context < 2:
        raise OperatorError(
            f"{path / 'config.json'}: max_position_embeddings is {context!r}",
            "give the directory of a decoder-only language model",
        )
    return ModelCard(
        path,
        tokenizer,
        int(config.get("vocab_size") or tokenizer.get_vocab_size(with_added_tokens=True)),
        context,
        _eos(generation, config, settings, tokenizer),
        _chat(path, settings),
        byte_level="ByteLevel" in str(tokenizer.decoder),
        longest_word=max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1),
    )


def _tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise OperatorError(
            f"cannot read {path}: {error}", "the model directory needs a tokenizer.json"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _json(path: Path, *, needed: bool = True) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        if not needed:
            return {}
        raise OperatorError(f"no {path}", "model: takes a Hugging Face directory") from error
    except (OSError, msgspec.DecodeError) as error:
        raise OperatorError(f"cannot read {path}: {error}", "is the file whole?") from error


def _eos(
    generation: dict[str, Any],
    config: dict[str, Any],
    settings: dict[str, Any],
    tokenizer: Tokenizer,
) -> tuple[int, ...]:
    for source in (generation, config):
        given = source.get("eos_token_id")
        if given is not None:
            return tuple(given) if isinstance(given, list) else (int(given),)
    token = _content(settings.get("eos_token"))
    id_ = tokenizer.token_to_id(token) if token else None
    return () if id_ is None else (id_,)


def _chat(path: Path, settings: dict[str, Any]) -> ChatTemplate | None:
    file = path / "chat_template.jinja"
    source = file.read_text() if file.exists() else settings.get("chat_template")
    if isinstance(source, list):  # named templates
        source = next((t.get("template") for t in source if t.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    special = {name: _content(settings.get(name)) for name in SPECIAL}
    return ChatTemplate(source, {name: text for name, text in special.items() if text})


def _content(token: object) -> str:
    if isinstance(token, dict):  # how transformers writes an added token
        token = token.get("content")
    return token if isinstance(token, str) else ""
