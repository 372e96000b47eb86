"""Varied strings for the tokenizer. Everything is made here, from a fixed seed."""

import random
import sys
import unicodedata

PROSE = """The scheduler keeps one queue per core, and a task that wakes up goes back to the queue it left.
Don't assume the cache is warm: it's cold after a restart, and we'll pay for that. They'd said so; I'm not sure you've seen it.
In 2024 the fleet had 1,024 machines; by 2026 it had 16,384 (that's 2**14). Latency fell from 12.75 ms to 3.1 ms.
"Who owns this page?" she asked. 'Nobody', he said, "and that's the bug."
""".splitlines()

CODE = [
    "func (p *Pool) Release(l Lease) error {\n\tif l.state != held {\n\t\treturn errTwice\n\t}\n\tp.free = append(p.free, l.pages...)\n\treturn nil\n}\n",
    "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "SELECT u.id, COUNT(*) AS n FROM users u JOIN orders o ON o.user_id = u.id WHERE o.total >= 99.95 GROUP BY u.id;",
    '{"model":"smollm2","messages":[{"role":"user","content":"hi\\n"}],"stream":true,"n":1e-3}',
    "<html>\r\n  <body class=\"a b\">\r\n    <p>&amp; caf\u00e9</p>\r\n  </body>\r\n</html>\r\n",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; } // O(n)\n",
    "#!/bin/sh\nset -eu\nfind . -name '*.go' -print0 | xargs -0 wc -l | sort -rn | head -20\n",
    "0x7fff_ffff 0b1010 1e10 3.14159 .5 5. 1_000_000 0o755 #ff00aa 192.168.0.1:8080 2001:db8::1",
    "a=b+c-d*e/f%g^h&i|j~k!l@m#n$o`p\\q[r]s{t}u(v)w<x>y?z,.;:'\"",
    "\tif x:\n\t\ty = 1\n\n\n\n    z = 2   \n  \n",
    "https://example.org/a/b?c=d&e=%20f#g mailto:someone@example.org C:\\Users\\x\\y.txt",
]

WORLD = [
    "Größe, Übermut und Straßenfußball", "L'été à la plage, ça va où?", "¿Dónde está el niño? ¡Aquí!",
    "Привет, мир! Ещё раз.", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم ١٢٣٤", "नमस्ते दुनिया १२३", "สวัสดีชาวโลก ๑๒๓",
    "안녕하세요 세계", "こんにちは世界、元気ですか?", "你好,世界!今天是2024年5月6日。", "Xin chào thế giới", "გამარჯობა მსოფლიო",
    "Բարեւ աշխարհ", "ሰላም ዓለም", "ꦱꦸꦒꦼꦁ", "ᚠᚢᚦᚨᚱᚲ", "𐌰𐌱𐌲", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚", "①②③ Ⅷ ½ ¾ ²³ ₁₂ 〇 ㊿", "٠١٢٣٤٥٦٧٨٩ ۰۱۲ ०१२ ০১২ ୦୧ ௧௨ ౦౧ ೦೧ ൦൧ ๐๑ ໐໑ ༠༡ ၀၁ ០១ ᠐᠑ ０１２",
]

EMOJI = [
    "😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷🇯🇵", "❤️", "☕", "1️⃣2️⃣", "🧑🏿‍🚀", "👨‍💻 codes", "a😀b😀c", "😀😀😀😀", "☺︎☺️", "🫠", "⏳", "™️©®",
]

MARKS = [
    "e\u0301", "a\u0308o\u0308u\u0308", "Z\u0351\u036b\u0343a\u0340l\u0321g\u0321o\u0301", "\u0301abc", " \u0301 x", "n\u0303o", "\u1100\u1161\u11a8", "क्षि",
    "\u200bzero\u200bwidth\u200b", "\u200ddangling\u200d", "\u202eright\u202c to left", "\ufeffbom", "soft\u00adhyphen", "word\u2060joiner",
]

WHITE = [" ", "\t", "\n", "\r", "\r\n", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\x1c", "\x1f"]

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<jupyter_code>", "<empty_output>", "<|im_end", "|im_end|>", "<|IM_END|>"]


def categories():
    """Code points by general category, as this Python knows them."""
    out = {}
    for cp in range(sys.maxunicode + 1):
        c = unicodedata.category(chr(cp))
        if c not in ("Cs", "Cn"):
            out.setdefault(c, []).append(cp)
    return out


def strings():
    """About 3,000 byte strings, the same on every run of one Python version."""
    r = random.Random(20261129)
    cats = categories()
    out = []

    def add(s):
        out.append(s.encode("utf-8") if isinstance(s, str) else bytes(s))

    for group in (PROSE, CODE, WORLD, EMOJI, MARKS, CONTROL):
        for s in group:
            add(s)
    add("")
    for b in range(256):
        add(bytes([b]))
        add(b"a" + bytes([b]) + b"b")
    for w in WHITE:
        for n in (2, 3, 4, 9):
            add(w * n)
            add("x" + w * n + "y")
            add("x" + w * n + "7")
            add(w * n + "(")
    for c in ("'", "'s", "'S", "'re", "'RE", "'ll", "'LL", "'ve", "'d", "'m", "'t", "''s", "' s", "'\u017f", "\u2019s", "'l", "'r", "'lls"):
        for form in ("%s", "a%s", "a%sb", " %s", "1%s", "\n%s ", "%s%s" % ("%s", c.replace("%", "%%"))):
            add(form % c)
    for s in ("a", "A", " ", "\n", "\t", "0", "9", "é", "字", "😀", "-", "=", "_", "ab", "a ", " \n", "\r\n", "1 ", "' ", "\u200d", "\u0301", "\x04", "\xad"):
        for n in (15, 33, 64, 129, 300):
            add(s * n)
    # The bytes without a token, among and beside others.
    gone = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D]
    for b in gone:
        for form in (b"(%c(", b" %c ", b"a%cb", b"the%cre", b"  %c  ", b"\n%c\n", b"1%c2", b"%c%c", b"x %c", b"%c y"):
            add(form % ((b,) * form.count(b"%c")))
    for cp in (0x40000, 0x80000, 0xBFFFF, 0xF0000, 0x10FFFF, 0xE000, 0xFFFD, 0xFFFF, 0x110, 0xD7FF):
        add(chr(cp))
        add("a" + chr(cp) + chr(cp) + "b")
    # Invalid UTF-8.
    for s in (b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82x", b"\xf0\x9f\x98", b"\xf0\x9f\x98 ok", b"\xff\xfe", b"\x80\x80", b"\xed\xa0\x80", b"\xc0\xaf",
              b"\xf8\x88\x80\x80\x80", b"\xf4\x90\x80\x80", b"caf\xe9", b"a\xc2 b", b"\xe2(\xa1", b"\xf0\x28\x8c\xbc", b"1\xe22", b" \xe2 ", b"\n\xff\n"):
        add(s)
        add(b"x" + s + b"y")
    for _ in range(60):
        add(bytes(r.randrange(256) for _ in range(r.randrange(1, 24))))
    # Every category, alone and in company.
    names = sorted(cats)
    for c in names:
        for _ in range(12):
            add(chr(r.choice(cats[c])))
        for _ in range(12):
            add("".join(chr(r.choice(cats[c])) for _ in range(r.randrange(2, 9))))
        for _ in range(10):
            add("x" + chr(r.choice(cats[c])) + " " + chr(r.choice(cats[c])) + "1")
    # Mixtures.
    words = " ".join(PROSE + WORLD).split(" ")
    pieces = [" ", "  ", "\n", "\n\n", "\t", "'s", "'", '"', ".", ",", "...", "7", "42", "1999", "(", ")", "=>", "->", "//", "\r\n"]
    while len(out) < 2700:
        s = ""
        for _ in range(r.randrange(1, 14)):
            k = r.random()
            if k < 0.45:
                s += r.choice(words)
            elif k < 0.8:
                s += r.choice(pieces)
            elif k < 0.86:
                s += r.choice(EMOJI)
            elif k < 0.9:
                s += r.choice(MARKS)
            elif k < 0.93:
                s += r.choice(WHITE)
            else:
                s += chr(r.choice(cats[r.choice(names)]))
        add(s)
    while len(out) < 3000:
        add("".join(chr(r.choice(cats[r.choice(names)])) for _ in range(r.randrange(1, 20))))
    return out


def tricky():
    """Strings dense in what pre-tokenizers decide on."""
    r = random.Random(7)
    alphabet = list("aZ'sStTrevVmMlLdD ' '  \n\r\t09.,-") + [
        "\u00e9", "\u017f", "\u0130", "\u4e16", "\u0301", "\u00bd", "\u0663", "\u2167", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\x00", "\u200d", "\U0001f600", "\u1d7d8", "\U0001d7d8", "\ufffd"]
    return ["".join(r.choice(alphabet) for _ in range(r.randrange(1, 22))) for _ in range(2400)]
