"""Prints the exercises without their answers, as Markdown for students:

python docs/student_sheet.py en > sheet.md

The text of each section before its first command is kept, and all commands and code; outputs,
figures, answers and links to the code of this package are not.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = {"en": DOCS / "exercises.md"} | {
    file.parent.name: file for file in sorted(DOCS.glob("*/exercises.md"))
}
ANSWER = {"en": "Your answer:", "zh": "你的答案：", "fr": "Votre réponse :"}
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
IMAGE = re.compile(r"!\[[^]]*\]\([^)]*\)")
LINK = re.compile(r"\[(?P<text>(?:`[^`]*`|[^]`])*)\]\((?P<to>[^)]*)\)")


def without_answers(page: str, language: str) -> str:
    """Returns the exercises of a page, with a line for the answer in each section."""
    title, *sections = re.split(r"(?=^##)", hidden_comments(page), flags=re.MULTILINE)
    kept = [title.splitlines()[0], *(section_without_answer(one, language) for one in sections)]
    return "\n\n".join(kept) + "\n"


def section_without_answer(section: str, language: str) -> str:
    """The heading, the text before the first block, or else the first paragraph, and all blocks
    but outputs.
    """
    section = section.replace("\0", "#")
    heading, _, rest = section.partition("\n")
    blocks = BLOCK.findall(rest)
    before = BLOCK.split(rest)[0].strip() if blocks else rest.strip().partition("\n\n")[0]
    shown = [block for block in blocks if not block.startswith("```text")]
    text = LINK.sub(without_link, IMAGE.sub("", before)).strip()
    answer = [ANSWER.get(language, ANSWER["en"])] if heading.startswith("###") or shown else []
    return "\n\n".join(filter(None, [heading, text, *shown, *answer]))


def hidden_comments(page: str) -> str:
    """The page with another letter instead of # in blocks, where it begins no heading."""
    return BLOCK.sub(lambda block: block[0].replace("#", "\0"), page)


def without_link(link: re.Match[str]) -> str:
    """The text of a link; of a link to a line of code only a name, because a line is an answer."""
    text = link["text"]
    is_name = text.startswith("`") and text.strip("`").isidentifier()
    return "…" if "#L" in link["to"] and not is_name else text


if __name__ == "__main__":
    language = "".join(sys.argv[1:]) or "en"
    if language not in PAGES:
        sys.exit(f"error: {language!r} is none of {', '.join(PAGES)}")
    print(without_answers(PAGES[language].read_text("utf-8"), language), end="")
