"""Texts that a store might change: other alphabets, quotes, control characters, and long texts.

No NUL and no lone surrogate: `core.codec` refuses them before any engine sees them.
"""

MEBIBYTE = 1 << 20

TEXTS = {
    "empty": "",
    "plain": "[]",
    "quotes": """["it's", "\\"quoted\\"", "back\\\\slash", "`tick`"]""",
    "alphabets": '"Zürich · Ελλάδα · Україна · עברית · العربية · हिन्दी · 日本語 · 한국어"',
    "emoji": '"👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \U0010ffff"',
    "odd": '"\u200f\u2028\u2029\ufeff\ufffd\x7f\x01\x1f"',
    "lines": "\r\n\t line \r end\n\n",
    "sql": "'; drop table jobs; -- %s %(x)s ? $1 :name {0} \\x00",
    "numbers": "[1e400,-0.0,0.1,12345678901234567890,1E5]",
    "spaces": '{ "b" : 1 , "a" : 2 }',
    "big": '"' + "ä" * (MEBIBYTE // 2 - 1) + '"',
}
