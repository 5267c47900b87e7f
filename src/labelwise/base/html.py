"""Markup that is escaped by construction.

``tag("p", "a < b", class_="note")`` returns ``Markup``; every child and attribute that is not
already ``Markup`` is escaped. Nothing else in the project builds angle brackets.
"""

from html import escape

from labelwise.base.text import printable

_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


Child = str | int | float | None


def trusted(text: str) -> Markup:
    """Mark text written by this package (style, script) as markup."""
    return Markup(text)


def join(*children: Child) -> Markup:
    """Return the children one after the other; ``None`` is nothing, plain text is escaped."""
    texts = (
        child if isinstance(child, Markup) else escape(_text(child), quote=False)
        for child in children
    )
    return Markup("".join(texts))


def tag(name: str, /, *children: Child, **attributes: Child | bool) -> Markup:
    """Return one element. ``class_`` and ``stroke_width`` become ``class`` and ``stroke-width``.

    An attribute that is ``None`` or ``False`` is left out, ``True`` stands without a value.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = _CASED.get(key) or key.rstrip("_").replace("_", "-")
        words.append(label if value is True else f'{label}="{escape(_text(value), quote=True)}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


# SVG attributes are case-sensitive and some hold a capital.
_CASED = {"viewbox": "viewBox", "preserve_aspect": "preserveAspectRatio"}


def _text(value: Child | bool) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))
