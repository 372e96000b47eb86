"""Byte-level BPE, written plainly: the oracle for token ids.

It shares nothing with the Go tokenizer: the pre-tokenizers are the regular
expressions themselves, run by the `regex` module, and merging is the naive loop.
"""

import regex

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
MODERN = (
    CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Each name is a list of patterns; every one splits the pieces of the one before.
# Text between two matches is a piece too.
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [MODERN % r"\p{N}{1,3}"],
    "qwen2": [MODERN % r"\p{N}"],
}

# The regex module's \s also matches 1C to 1F, which have no White_Space property.
WHITE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def white(pattern):
    pattern = pattern.replace(r"[^\s\p{L}", "[^" + WHITE + r"\p{L}")
    return pattern.replace(r"\s", "[" + WHITE + "]").replace(r"\S", "[^" + WHITE + "]")


COMPILED = {n: [regex.compile(white(p)) for p in ps] for n, ps in PATTERNS.items()}


def split(name, text):
    """The pieces of text, in order; together they are text."""
    pieces = [text]
    for pattern in COMPILED[name]:
        out = []
        for piece in pieces:
            at = 0
            for m in pattern.finditer(piece):
                if m.start() > at:
                    out.append(piece[at : m.start()])
                out.append(m.group())
                at = m.end()
            if at < len(piece):
                out.append(piece[at:])
        pieces = out
    return pieces


def byte_runes():
    """The rune by which a vocabulary spells each byte."""
    out, more = [], 0
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b:
            out.append(chr(b))
        else:
            out.append(chr(256 + more))
            more += 1
    return out


class BPE:
    def __init__(self, name, tokens, merges):
        self.name = name
        self.ids = {t: i for i, t in enumerate(tokens)}
        self.ranks = {tuple(m.split(" ")): i for i, m in enumerate(merges)}
        self.runes = byte_runes()

    def word(self, data):
        parts = [self.runes[b] for b in data]
        while len(parts) > 1:
            ranks = [self.ranks.get(p, 1 << 60) for p in zip(parts, parts[1:])]
            best = min(ranks)
            if best == 1 << 60:
                break
            i = ranks.index(best)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        # A byte without a token vanishes here, after merging: it has kept its
        # neighbours apart.
        return [self.ids[p] for p in parts if p in self.ids]

    def encode(self, data):
        """Token ids of bytes. An invalid byte is classed as U+FFFD but stays itself."""
        text = data.decode("utf-8", "surrogateescape")
        out, cache = [], {}
        shown = "".join("\ufffd" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)
        at = 0
        for piece in split(self.name, shown):
            raw = text[at : at + len(piece)].encode("utf-8", "surrogateescape")
            at += len(piece)
            if raw not in cache:
                cache[raw] = self.word(raw)
            out += cache[raw]
        return out
