"""The page that shows the API."""

from __future__ import annotations

from html.parser import HTMLParser

from daemons.runtime.api_page import PAGE


def test_the_page_is_whole_and_loads_nothing() -> None:
    tags: list[str] = []
    links: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: (  # type: ignore[method-assign]
        tags.append(tag),
        links.extend(name for name, _ in attrs if name in ("src", "href")),
    )
    parser.feed(PAGE)
    parser.close()
    assert {"html", "main", "style", "script"} <= set(tags)
    assert links == []
