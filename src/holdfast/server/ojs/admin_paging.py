"""Pages of the administrator's lists: which one is asked for, and in which order. Must not know what is listed."""

from typing import Any

from holdfast.server.call import Call
from holdfast.server.ojs.problems import bad

PER_PAGE, MOST_PER_PAGE = 20, 100


def page_in(call: Call) -> tuple[int, int]:
    """The number of the page that is asked for, and how many items it has."""
    per_page = call.number("per_page", PER_PAGE, most=MOST_PER_PAGE)
    return call.number("page", 1, most=1_000_000), per_page


def cut(items: list[Any], page: int, per_page: int) -> list[Any]:
    """The items of a page."""
    return items[(page - 1) * per_page : page * per_page]


def pagination(total: int, page: int, per_page: int) -> dict[str, int]:
    """What an answer says about its page."""
    return {"total": total, "page": page, "per_page": per_page}


def is_falling_by(call: Call, name: str) -> bool:
    """Whether a list that is always sorted by this name is asked for in falling order."""
    if call.query_params.get("sort", name) != name:
        raise bad("sort", f"give {name}")
    return is_falling(call, "asc")


def is_falling(call: Call, usual: str) -> bool:
    """Whether a list is asked for in falling order."""
    order = call.query_params.get("order", usual)
    if order not in ("asc", "desc"):
        raise bad("order", "give asc or desc")
    return order == "desc"
