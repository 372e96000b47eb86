#!/usr/bin/env python3
"""Makes the golden files of model/testdata/golden from the demo model.

    golden.py MODEL.gguf OUTDIR [logits] [greedy] [tokens] [pieces] [chats] [essay]

With no part named it makes all of them. README.md there states the formats.
"""

import base64
import gzip
import io
import json
import os
import shutil
import sys
import tempfile

import gguf
import numpy as np

import bpe
import chats
import corpus

os.environ["TQDM_DISABLE"] = "1"  # no progress bars
os.environ["HF_HUB_OFFLINE"] = "1"

HERE = os.path.dirname(os.path.abspath(__file__))

# Every position but a prompt's last keeps its best TOP logits and a sample.
TOP, SAMPLE, STRIDE_POS, STRIDE = 16, 64, 197, 509

PROMPTS = [
    ("one", "The"),
    ("short", "Once upon a time"),
    ("question", "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"),
    ("code", "package main\n\nimport \"fmt\"\n\nfunc main() {\n\tfor i := 0; i < 10; i++ {\n\t\tfmt.Println(i, i*i)\n\t}\n}\n\n// The output of this program is:"),
    ("world", "Grüße aus Köln! 你好,世界。 Привет, мир. 42 + 17 = 59; naïve café, 👩‍👩‍👧 and ½ a cup."),
    ("prose", None),  # the first 1,300 bytes of the essay
]

GREEDY = [
    [("user", "What is the capital of France?")],
    [("user", "Write a haiku about the sea.")],
    [("user", "What is 17 + 25?")],
    [("user", "Write a Go function that reverses a slice of ints.")],
    [("user", "Explain in two sentences what a mutex is.")],
    [("system", "You answer like a pirate."), ("user", "Who are you?")],
    [("system", ""), ("user", "Name three colours.")],
    [("user", "Translate to German: The cat sleeps on the table.")],
    [("user", "List the planets of the solar system, one a line.")],
    [("user", "My name is Ada."), ("assistant", "Nice to meet you, Ada!"), ("user", "What is my name?")],
    [("user", "Give me a JSON object with the keys name and age.")],
    [("user", "你好,你是谁?")],
    [("user", "Tell me a very short story about a lighthouse keeper and a storm.")],
    [("user", "Why is the sky blue?"), ("assistant", "Because of Rayleigh scattering."), ("user", "Explain that to a child.")],
    [("system", "You are a careful reviewer of SQL."), ("user", "Is this safe?\n\nSELECT * FROM users WHERE name = '\" + name + \"';")],
    [("user", "hi")],
]


def write(out, name, value):
    """One JSON value, gzipped; the same bytes for the same value."""
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    write_bytes(out, name, data)


def write_bytes(out, name, data):
    buf = io.BytesIO()
    with gzip.GzipFile(fileobj=buf, mode="wb", compresslevel=9, mtime=0) as f:
        f.write(data)
    with open(os.path.join(out, name), "wb") as f:
        f.write(buf.getvalue())
    print("%-16s %9d bytes" % (name, len(buf.getvalue())))


class Model:
    """The file's vocabulary and template, and on demand its float32 network."""

    def __init__(self, path):
        self.path = path
        fields = gguf.GGUFReader(path).fields
        self.tokens = fields["tokenizer.ggml.tokens"].contents()
        self.types = fields["tokenizer.ggml.token_type"].contents()
        self.template = fields["tokenizer.chat_template"].contents()
        self.bos = self.tokens[fields["tokenizer.ggml.bos_token_id"].contents()]
        self.eos = self.tokens[fields["tokenizer.ggml.eos_token_id"].contents()]
        self.bpe = bpe.BPE(fields["tokenizer.ggml.pre"].contents(), self.tokens, fields["tokenizer.ggml.merges"].contents())
        self.control = {t: i for i, (t, k) in enumerate(zip(self.tokens, self.types)) if k == 3}
        self._net = None

    def encode(self, text):
        """Token ids of text in which control tokens are written out."""
        import regex

        out = []
        for part in regex.split("(" + "|".join(map(regex.escape, self.control)) + ")", text):
            if part in self.control:
                out.append(self.control[part])
            elif part:
                out += self.bpe.encode(part.encode())
        return out

    def chat(self, messages):
        r = chats.render(self.template, {"messages": [{"role": r, "content": c} for r, c in messages]}, self.bos, self.eos)
        return r["text"]

    def folder(self):
        d = tempfile.mkdtemp()
        os.symlink(os.path.abspath(self.path), os.path.join(d, "model.gguf"))
        return d

    def net(self):
        if self._net is None:
            import torch
            from transformers import AutoModelForCausalLM

            torch.manual_seed(0)
            d = self.folder()
            self._net = AutoModelForCausalLM.from_pretrained(d, gguf_file="model.gguf", dtype=torch.float32)
            self._net.eval()
            shutil.rmtree(d)
        return self._net

    def logits(self, ids):
        """float32 [len(ids), vocabulary], from one full pass."""
        import torch

        with torch.no_grad():
            return self.net()(torch.tensor([ids])).logits[0].numpy()


def essay():
    with open(os.path.join(HERE, "..", "..", "model", "testdata", "golden", "essay.txt"), encoding="utf-8") as f:
        return f.read()


def make_logits(m, out):
    index, body = [], io.BytesIO()
    for name, text in PROMPTS:
        if text is None:
            text = essay()[:1300]
        ids = m.encode(text)
        logits = m.logits(ids)
        index.append({"name": name, "text": text, "tokens": ids})
        for pos, row in enumerate(logits[:-1]):
            top = np.argsort(-row, kind="stable")[:TOP]
            sample = (STRIDE_POS * pos + STRIDE * np.arange(SAMPLE)) % len(row)
            body.write(top.astype("<u4").tobytes() + row[top].astype("<f4").tobytes() + row[sample].astype("<f4").tobytes())
        body.write(logits[-1].astype("<f4").tobytes())
    head = {"vocab": len(m.tokens), "top": TOP, "sample": SAMPLE, "stridePos": STRIDE_POS, "stride": STRIDE, "prompts": index}
    write_bytes(out, "logits.bin.gz", json.dumps(head, ensure_ascii=False).encode() + b"\n" + body.getvalue())


def make_greedy(m, out, steps=64):
    import torch

    cases = []
    for messages in GREEDY:
        prompt = m.encode(m.chat(messages))
        got, margins, second = [], [], []
        with torch.no_grad():
            r = m.net()(torch.tensor([prompt]), use_cache=True)
            for _ in range(steps):
                row = r.logits[0, -1]
                top = torch.topk(row, 2)
                best = int(torch.argmax(row))
                got.append(best)
                other = int(top.indices[1]) if int(top.indices[0]) == best else int(top.indices[0])
                second.append(other)
                margins.append(round(float(row[best] - row[other]), 6))
                r = m.net()(torch.tensor([[best]]), cache=r.past_key_values, use_cache=True)
        # One full pass over prompt and answer must choose the same tokens.
        full = m.logits(prompt + got)[len(prompt) - 1 : -1].argmax(-1)
        for i, (a, b) in enumerate(zip(got, full)):
            if a != b and margins[i] > 1e-3:
                raise SystemExit("cached and full pass differ at step %d of %r" % (i, messages))
        cases.append(
            {"messages": [{"role": r, "content": c} for r, c in messages], "prompt": prompt, "tokens": got, "second": second, "margins": margins}
        )
        print("  ", min(margins), repr(b"".join(piece(m, t) for t in got).decode("utf-8", "replace"))[:110])
    write(out, "greedy.json.gz", {"eos": m.control[m.eos], "cases": cases})


def piece(m, t):
    if m.types[t] != 1:
        return m.tokens[t].encode()
    back = {r: b for b, r in enumerate(m.bpe.runes)}
    return bytes(back[r] for r in m.tokens[t])


def make_tokens(m, out):
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    d = m.folder()
    tok = AutoTokenizer.from_pretrained(d, gguf_file="model.gguf")
    shutil.rmtree(d)
    back = tok.backend_tokenizer
    # The conversion lacks the splitting of digits that the file's rule asks for.
    back.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    gone = {b for b in range(256) if m.bpe.runes[b] not in m.bpe.ids}
    cases, differ, valid, explained = [], [], 0, 0
    for data in corpus.strings():
        ids = m.bpe.encode(data)
        try:
            text = data.decode("utf-8")
            case = {"s": text}
            valid += 1
            if not any(t in text for t in m.control) and back.encode(text, add_special_tokens=False).ids != ids:
                differ.append(len(cases))
                explained += any(b in gone for b in data)
        except UnicodeDecodeError:
            case = {"b": base64.b64encode(data).decode()}
        case["ids"] = ids
        cases.append(case)
    print("  ", len(cases), "strings,", valid, "valid UTF-8; transformers differs on", len(differ), "of which", explained, "hold a byte without a token")
    if explained != len(differ):
        for i in differ:
            if not any(b in gone for b in cases[i]["s"].encode()):
                print("   unexplained:", i, repr(cases[i]["s"]))
    write(out, "tokens.json.gz", {"missing": sorted(gone), "transformersDiffers": differ, "cases": cases})


def make_pieces(m, out):
    texts = corpus.tricky()
    value = {"texts": texts, "lengths": {}}
    for name in bpe.PATTERNS:
        value["lengths"][name] = [[len(p.encode()) for p in bpe.split(name, t)] for t in texts]
    write(out, "pieces.json.gz", value)


def make_chats(m, out):
    cases = []
    for c in chats.PLAIN:
        cases.append({"template": "", "chat": c, **chats.render(m.template, c, m.bos, m.eos)})
    for name, text in chats.TEMPLATES.items():
        for c in chats.PLAIN + chats.TOOLS:
            cases.append({"template": name, "chat": c, **chats.render(text, c, "<s>", "</s>")})
    write(out, "chats.json.gz", {"templates": {"": m.template, **chats.TEMPLATES}, "cases": cases})


def make_essay(m, out, window=512):
    ids = m.encode(essay())
    nll = []
    for at in range(0, len(ids) - window + 1, window):
        part = ids[at : at + window]
        row = m.logits(part)[:-1].astype(np.float64)
        row -= row.max(-1, keepdims=True)
        logp = row[np.arange(window - 1), part[1:]] - np.log(np.exp(row).sum(-1))
        nll.append(float(-logp.mean()))
    value = {
        "window": window,
        "tokens": ids,
        "windows": [round(float(np.exp(x)), 5) for x in nll],
        "perplexity": round(float(np.exp(np.mean(nll))), 5),
    }
    print("  ", len(ids), "tokens,", len(nll), "windows, perplexity", value["perplexity"])
    write(out, "essay.json.gz", value)


PARTS = {"tokens": make_tokens, "pieces": make_pieces, "chats": make_chats, "essay": make_essay, "logits": make_logits, "greedy": make_greedy}


def main():
    if len(sys.argv) < 3 or any(p not in PARTS for p in sys.argv[3:]):
        raise SystemExit(__doc__)
    m = Model(sys.argv[1])
    for part in sys.argv[3:] or PARTS:
        PARTS[part](m, sys.argv[2])


if __name__ == "__main__":
    main()
