"""The code of a response, and what it defines.

One rule: text in, text out; nothing is run here.
"""

from __future__ import annotations

import ast
import re

_FENCE = re.compile(r"```[ \t]*([\w+-]*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def code_of(text: str, name: str | None = None) -> str:
    """The code of a response: of its fenced blocks the first that defines `name`, else the first; without a block all.

    A block that the response's end cut off counts, as code that was not finished.
    """
    blocks = [body for language, body in _FENCE.findall(text) if language.lower() in ("", "python", "py", "python3")]
    if not blocks:
        return text
    chosen: str = next((body for body in blocks if name and defines(body, name)), blocks[0])
    return chosen


def defines(code: str, name: str) -> bool:
    """Whether a line of the code begins the definition of a function or class of that name."""
    return re.search(rf"^(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b", code, re.MULTILINE) is not None


def last_function(code: str) -> str | None:
    """The function that the code defines last at its top level; None if it is no Python or defines none."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    names = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    return names[-1] if names else None
