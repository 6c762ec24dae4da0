"""A book, chapter by chapter, with nothing but a list and a function.

    python examples/ebook.py

Stop it with Ctrl-C or kill -9 and start it again: finished chapters aren't written again. Open book.json to see the
status of each chapter. To write one that needs review again, set its "status" back to PENDING.
"""

import random
import time

from holdfast import run_items

CHAPTERS = ["Dawn", "The Lamp", "Fog", "A Ship", "The Storm", "Rope and Stone", "Morning"]


def write_chapter(title: str) -> tuple[bool, str | None]:
    time.sleep(0.3)  # a real model would take a minute and cost money
    if random.random() < 0.2:
        return False, "the model lost its thread"
    with open("book.md", "a") as book:
        book.write(f"# {title}\n\nOnce upon a time there was {title.lower()}.\n\n")
    return True, None


if __name__ == "__main__":
    counts = run_items("book.json", CHAPTERS, write_chapter, retries=5, backoff=0.2)
    print(f"{counts.done} chapters are written, {counts.failed} need you")
