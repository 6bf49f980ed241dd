"""A text to measure a language model by, written for this; and how well a model foretells one."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from tokenizers import Tokenizer

from daemons.engine.batch import lay_out
from daemons.engine.device import Place
from daemons.engine.kernels import Attention
from daemons.engine.kv_cache import make_pool, memory_of
from daemons.engine.models import Model
from daemons.engine.step import Item
from daemons.protocol.ids import RoomKey

_PAGE = 16
TEXT = """\
The lighthouse on the northern cape had not been lit for eleven years when Marta came to live in \
it. She was a retired teacher of geography, and she had always wanted a house from which one \
could see the weather before it arrived. The village below was small: a harbour with nine boats, \
a shop that sold bread, batteries and fishing line, and a church whose bell rang a little late, \
because the sexton did not trust his watch.

In the first winter a storm took the roof of the old oil store. The men of the village came up \
the path with ropes and planks, and nobody asked for money. When the work was done they sat in \
the kitchen, drank tea with rum, and told her about the ships that had been lost on the rocks. \
"Before there was a light," said the oldest of them, "people put lanterns on the cliff. Some of \
them meant well, and some of them did not."

Water boils at one hundred degrees Celsius at sea level, and at a lower temperature on a \
mountain, because the air there presses less upon it. Marta had explained this to children for \
thirty years, and every year somebody asked whether an egg could be cooked on the top of Mount \
Everest. It can, she said, but it takes a long time. The Earth turns once in about twenty-four \
hours, and it goes around the Sun in a little more than three hundred and sixty-five days; that \
is why every fourth year has one day more.

In spring she wrote a letter to the ministry and asked whether the light could be lit again. The \
answer came in June. It said that ships today find their way with the help of satellites, that a \
lamp of this size would use as much electricity as forty households, and that the ministry \
thanked her for her interest. She read it twice, put it under the clock, and went down to the \
harbour to ask who knew anything about lamps.

It took them until October. The lens was clean, for she had cleaned it herself; the motor came \
from a washing machine, and the lamp from a football ground. On the evening of the third they \
switched it on, and the beam went out over the water, slowly, like somebody who has been ill and \
takes the first walk around the garden. A fishing boat far out sounded its horn. Nobody said \
anything for a while. Then the sexton looked at his watch, and for once he was sure that it was \
right.
"""


@torch.inference_mode()
def perplexity(model: Model, attention: Attention, place: Place, directory: Path) -> float:
    """Return how many tokens the model hesitates between, on average, at each token of the text."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = tuple(tokenizer.encode(TEXT).ids)
    pages = -(-len(ids) // _PAGE)
    spec = model.spec
    pool = make_pool(spec.layers, spec.kv_heads, pages, _PAGE, spec.head_dim, place)
    item = Item(RoomKey(1, 1), ids, 0, tuple(range(pages)), samples=False)
    batch = lay_out([item], _PAGE, place.device)
    logits = model.logits(model.hidden(batch, attention(memory_of(pool), batch))[:-1])
    said = torch.tensor(ids[1:], device=place.device)
    return math.exp(float(torch.nn.functional.cross_entropy(logits, said)))
