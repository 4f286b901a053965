"""Texts that are hard to split into words."""

from functools import cache

from hypothesis import strategies as st

from imdbattn.data.tokenizer import Tokenizer

WORDS = [
    *("the", "i", "do", "n't", "'s", "well", "-", "--", "...", ".", "'"),
    *("unk", "<", ">", "b", "é", "i̇", "ς", "�"),
]
NASTY = "aAbBrRtTnNsSiIİΣσςéÉǅßﬁ109''\"\"..,,()!?;:</>`´’‘“”–—…-_*&$#@~😀\ud800\udfff"
NASTY += " \t\n\x00\x08\x0b\x1c\x1f\x85\x91\x92\x93\x94\x96\x97\xa0\u1680\u200b\u2028\u3000\u0307"
NASTY += "e\u0301\u0302\u0323\u0338ﬁﬄｆＦ０！＜가각\u1100\u1161\u11a8\u212b"
PIECES = ["<br />", "<BR>", "n't", "n’t", "'s", "...", "--", "u.s.", "<pad>", "<unk>", "<cls>"]
nasty_text = st.lists(st.sampled_from([*NASTY, *PIECES])).map("".join)
any_text = st.one_of(nasty_text, st.text(st.characters(exclude_categories=[])))


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer(name, WORDS)


def split(name: str, text: str) -> list[str]:
    return [word.text for word in tokenizer(name).words(text)]


HARD_TEXT = (
    "It's \"good\", {really} [so] = 5, a=b, #1 $x ${y} \\ 'quoted' <script>alert(1)</script>"
    " 100% \\"
)
