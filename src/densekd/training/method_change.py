"""Whether a method can go on from what another one learned."""

from collections.abc import Mapping
from typing import Any

from densekd.methods.method import Method
from densekd.methods.terms import Term


def check_successor(method: Method, facts: Mapping[str, Any], *, change_method: bool) -> None:
    """Refuse a method that can't go on from a state with these facts; see `Learner.load_state`.

    States of earlier versions lack some of these facts; there, methods are compared by name.
    """
    name, before = method.name, facts["method"]
    if not change_method and name != before:
        raise ValueError(f"This was learned by {before}, not by {name}.")
    head = facts.get("head", method.head)
    if head != method.head:
        raise ValueError(
            f"{name} has the head {method.head!r}, so it can't go on from {before}, whose head is "
            f"{head!r}; take a method with that head."
        )
    kept = facts.get("keeps", method.keeps if name == before else "exemplars")
    if method.keeps == "everything" and kept != "everything":
        raise ValueError(
            f"{name} replays all images, but {before} kept only exemplars of the earlier tasks; "
            f"take another method, or learn all tasks by {name}."
        )


def fits_term(slot: str, term: Term, method: Method, facts: Mapping[str, Any]) -> bool:
    """Whether a term can take over the state of the term that was in its slot."""
    kinds = facts.get("terms")
    if kinds is None:  # written by an earlier version
        return bool(facts["method"] == method.name)
    return bool(kinds.get(slot) == term.state_kind)
