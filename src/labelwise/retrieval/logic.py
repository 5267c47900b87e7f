"""A query in fewer words: the same truth for every image, with fewer labels named twice.

    not (a or b)             not a and not b              signs go down to the labels
    a and (a or b)           a                            what is said once holds everywhere
    not a and (a or b)       not a and b
    (a or b) and (a or b or c)  a or b                    the weaker of two parts is left out

and the same with "and" and "or" exchanged. A label that is still named twice doubles the work of
the exact probability, so only a few may be.
"""

from collections import Counter
from collections.abc import Mapping

from labelwise.errors import DataError
from labelwise.retrieval.expression import AllOf, AnyOf, Expression, Has, Not, labels_of, literal_of

MOST_REPEATED = 6


def simplified(expression: Expression) -> Expression:
    """Return an equal expression over the same labels or fewer; refuse one that takes too long."""
    simple = _simple(expression, wanted=True, facts={})
    # Always or never true: there is no word for that, so it stays as it was written.
    kept = expression if isinstance(simple, bool) else simple
    repeated = repeated_labels(kept)
    if len(repeated) > MOST_REPEATED:
        raise DataError(
            f"a query may name {MOST_REPEATED} labels more than once, as in (cat | dog), "
            f"(cat | sofa), got {len(repeated)} that cannot be simplified; ask in several queries"
        )
    return kept


def given(expression: Expression, name: str, present: bool) -> Expression | bool:
    """Return what is left to be asked where a label is known."""
    return _simple(expression, wanted=True, facts={name: present})


def independent_parts(expression: Expression) -> list[Expression]:
    """Return the parts of "all of" or "any of", those that share a label joined into one.

    A label, a sign, and parts that all hang together come back as they are.
    """
    if not isinstance(expression, AllOf | AnyOf):
        return [expression]
    groups: list[tuple[set[str], list[Expression]]] = []
    for part in expression.parts:
        names, members = set(labels_of(part)), [part]
        for group in [group for group in groups if group[0] & names]:
            names, members = names | group[0], group[1] + members
            groups.remove(group)
        groups.append((names, members))
    kind = type(expression)
    return [members[0] if len(members) == 1 else kind(tuple(members)) for _, members in groups]


def repeated_labels(expression: Expression) -> list[str]:
    """Return the labels that are named more than once, the most frequent first."""
    return [name for name, count in Counter(labels_of(expression)).most_common() if count > 1]


def _simple(expression: Expression, wanted: bool, facts: Mapping[str, bool]) -> Expression | bool:
    """Return an expression (its opposite, if not ``wanted``) where some labels are known."""
    match expression:
        case Has(name):
            if name in facts:
                return facts[name] == wanted
            return expression if wanted else Not(expression)
        case Not(part):
            return _simple(part, not wanted, facts)
        case AllOf(parts) | AnyOf(parts):
            return _joined(parts, wanted, isinstance(expression, AllOf) == wanted, facts)
        case _:
            raise ValueError("an expression must be bound to columns first")


def _joined(
    parts: tuple[Expression, ...], wanted: bool, every: bool, facts: Mapping[str, bool]
) -> Expression | bool:
    """Return all of some parts (``every``), or any of them, each negated if not ``wanted``."""
    own = AllOf if every else AnyOf
    flat: dict[Expression, None] = {}
    for part in parts:
        simple = _simple(part, wanted, facts)
        if isinstance(simple, bool):
            if simple != every:
                return simple
            continue
        flat |= dict.fromkeys(simple.parts if isinstance(simple, own) else (simple,))
    # A label alone decides what it is wherever the result still depends on other parts.
    alone = dict(literal for literal in map(literal_of, flat) if literal is not None)
    if any((Has(name) in flat) and (Not(Has(name)) in flat) for name in alone):
        return not every
    others = [part for part in flat if literal_of(part) is None]
    if any(name in alone for part in others for name in labels_of(part)):
        told = {**facts, **{name: yes == every for name, yes in alone.items()}}
        literals = tuple(part for part in flat if part not in others)
        rest = _joined(tuple(others), True, every, told)
        if isinstance(rest, bool):
            return rest if rest != every else _of(own, literals)
        return _joined((*literals, rest), True, every, facts)
    return _of(own, _without_weaker(tuple(flat)), empty=every)


def _without_weaker(parts: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """Return the parts without those that follow from, or are followed by, another one."""
    sets = [
        frozenset(part.parts) if isinstance(part, AllOf | AnyOf) else frozenset((part,))
        for part in parts
    ]
    return tuple(
        part for part, own in zip(parts, sets, strict=True) if not any(s < own for s in sets)
    )


def _of(
    kind: type[AllOf] | type[AnyOf], parts: tuple[Expression, ...], empty: bool = True
) -> Expression | bool:
    if not parts:
        return empty
    return parts[0] if len(parts) == 1 else kind(parts)
