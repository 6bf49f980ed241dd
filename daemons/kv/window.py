"""Which pages a layer still needs that sees only so many tokens.

What lies before is never read again, so it need not travel.
"""

from __future__ import annotations


def first_needed_page(tokens: int, window: int | None, page_size: int) -> int:
    """Return the first page that the next token sees, and so every later one, behind a text.

    Args:
        tokens: of the text; the next one has this position.
        window: tokens that one sees, itself included; None: all.
        page_size: tokens per page.
    """
    if window is None:
        return 0
    return max(0, tokens - window + 1) // page_size
