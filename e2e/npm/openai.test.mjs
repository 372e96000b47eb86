// Drives the endpoint that TANDEM_URL names with the official SDK for Node. What
// holds for every model is checked always; what needs the fake endpoint
// (e2e/fakeserver) only where it answers.
import assert from "node:assert/strict";
import { before, describe, test } from "node:test";
import OpenAI from "openai";

const base = (process.env.TANDEM_URL ?? "").replace(/\/$/, "");
const skip = base ? false : "no TANDEM_URL: it names a running endpoint, as http://127.0.0.1:8000";

const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
let model = "";

const ask = (content, more = {}) => ({
  model,
  messages: [{ role: "developer", content: "Answer in one sentence." }, { role: "user", content: [{ type: "text", text: content }] }],
  max_tokens: 24,
  temperature: 0,
  ...more,
});

// collect reads a stream to its end.
async function collect(stream) {
  const got = { text: "", finish: null, usage: null, chunks: 0 };
  for await (const chunk of stream) {
    if (got.chunks++ === 0) assert.equal(chunk.choices[0].delta.role, "assistant", "the first chunk has the role");
    for (const choice of chunk.choices) {
      assert.equal(choice.index, 0);
      assert.equal(got.finish, null, "nothing comes after the finish reason");
      got.text += choice.delta.content ?? "";
      got.finish = choice.finish_reason;
    }
    got.usage = chunk.usage ?? got.usage;
  }
  return got;
}

async function rejection(promise) {
  try {
    await promise;
  } catch (e) {
    return e;
  }
  assert.fail("it succeeded");
}

describe("any model", { skip }, () => {
  before(async () => {
    model = (await client.models.list()).data[0].id;
  });

  test("a chat answers, and its stream says the same", async () => {
    const r = await client.chat.completions.create(ask("What is the capital of France?"));
    const text = r.choices[0].message.content;
    assert.ok(text);
    assert.match(r.choices[0].finish_reason, /^(stop|length)$/);
    const s = await collect(await client.chat.completions.create(ask("What is the capital of France?", { stream: true, stream_options: { include_usage: true } })));
    assert.equal(s.text, text);
    assert.equal(s.finish, r.choices[0].finish_reason);
    assert.equal(s.usage.completion_tokens, r.usage.completion_tokens);
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert.equal(r.usage.prompt_tokens_details.cached_tokens >= 0, true);
  });

  test("without include_usage there is no usage", async () => {
    const s = await collect(await client.chat.completions.create(ask("Hello", { stream: true })));
    assert.equal(s.usage, null);
  });

  test("the SDK's own helper puts the stream together", async () => {
    const r = await client.chat.completions.stream(ask("Hello", { stream: true })).finalChatCompletion();
    assert.equal(r.choices[0].message.role, "assistant");
    assert.ok(r.choices[0].finish_reason);
  });

  test("a completion of text and of its tokens is the same", async () => {
    const answer = await fetch(`${base}/tokenize`, { method: "POST", body: JSON.stringify({ content: "Once upon a time", add_special: true }) });
    const { tokens } = await answer.json();
    const params = { model, max_tokens: 8, temperature: 0 };
    const a = await client.completions.create({ ...params, prompt: "Once upon a time" });
    const b = await client.completions.create({ ...params, prompt: tokens });
    assert.ok(a.choices[0].text);
    assert.equal(b.choices[0].text, a.choices[0].text);
    assert.equal(b.usage.prompt_tokens, tokens.length);
    let text = "";
    for await (const c of await client.completions.create({ ...params, prompt: [tokens], stream: true })) text += c.choices[0]?.text ?? "";
    assert.equal(text, a.choices[0].text);
  });

  test("errors are of the SDK's classes and have their fields", async () => {
    for (const stream of [false, true]) {
      let e = await rejection(client.chat.completions.create(ask("hi", { temperature: "hot", stream })));
      assert.ok(e instanceof OpenAI.BadRequestError);
      assert.equal(e.status, 400);
      assert.equal(e.param, "temperature");
      assert.equal(e.code, "invalid_request");
      assert.equal(e.type, "invalid_request_error");
      assert.match(e.message, /want a number from 0 to 2, got "hot"/);
      assert.ok(e.requestID);

      e = await rejection(client.chat.completions.create(ask("many words ".repeat(60000), { stream })));
      assert.ok(e instanceof OpenAI.BadRequestError);
      assert.equal(e.code, "context_length_exceeded");
      assert.match(e.message, /maximum context length is \d+ tokens/);

      e = await rejection(client.chat.completions.create(ask("hi", { model: "no-such-model", stream })));
      assert.ok(e instanceof OpenAI.NotFoundError);
      assert.equal(e.code, "model_not_found");
    }
  });

  test("leaving in the middle is no harm", async () => {
    for (let i = 0; i < 3; i++) {
      const s = await client.chat.completions.create(ask("Count to one thousand.", { stream: true, max_tokens: 200 }));
      for await (const _ of s) break; // which aborts the request
      assert.ok(s.controller.signal.aborted);
    }
    assert.ok((await client.chat.completions.create(ask("hi"))).choices[0].finish_reason);
  });

  test("answers carry the client's request id", async () => {
    const { response } = await client.chat.completions.create(ask("hi"), { headers: { "X-Request-Id": "npm-1" } }).withResponse();
    assert.equal(response.headers.get("x-request-id"), "npm-1");
    assert.match(response.headers.get("tandem-generation"), /^\d+$/);
  });
});

describe("the fake endpoint", { skip }, () => {
  let fake = false;
  before(async () => {
    fake = (await client.models.list()).data[0].id === "fake-model";
  });
  const only = (name, f) =>
    test(name, async (t) => {
      if (!fake) return t.skip("TANDEM_URL names a real model");
      await f();
    });

  only("says its text to the letter", async () => {
    const s = await collect(await client.chat.completions.create(ask("hello", { stream: true, max_tokens: undefined, max_completion_tokens: 200 })));
    assert.equal(s.text, 'Hello from the fake: "é", 한국어, 😀.\nThat is all.');
    assert.equal(s.finish, "stop");
  });

  only("keep-alives before the first token do not disturb", async () => {
    const s = await collect(await client.chat.completions.create(ask("wait", { stream: true })));
    assert.equal(s.finish, "length");
  });

  only("a refusal is a RateLimitError that says when to come back", async () => {
    for (const stream of [false, true]) {
      const e = await rejection(client.chat.completions.create(ask("refuse queue_full", { stream })));
      assert.ok(e instanceof OpenAI.RateLimitError);
      assert.equal(e.headers.get("retry-after"), "2");
      assert.equal(e.code, "queue_full");
      assert.match(e.message, /try again in 2s/);
    }
    const e = await rejection(client.chat.completions.create(ask("refuse not_ready")));
    assert.ok(e instanceof OpenAI.InternalServerError);
    assert.equal(e.status, 503);
    assert.equal(e.headers.get("retry-after"), "2");
  });

  only("an error in the middle of a stream is an exception with a code", async () => {
    const s = await client.chat.completions.create(ask("die token_stall", { stream: true }));
    let text = "";
    const e = await rejection(
      (async () => {
        for await (const c of s) text += c.choices[0]?.delta.content ?? "";
      })(),
    );
    assert.equal(text, "Half an ans");
    assert.ok(e instanceof OpenAI.APIError);
    assert.equal(e.code, "token_stall");
  });

  only("aborting cancels the request", async () => {
    const cancelled = async () => Number((await (await fetch(`${base}/metrics`)).text()).split(" ")[1]);
    const start = await cancelled();
    const s = await client.chat.completions.create(ask("hang", { stream: true }));
    let text = "";
    for await (const c of s) {
      text += c.choices[0]?.delta.content ?? "";
      if (text === "I begin") break;
    }
    assert.equal(text, "I begin");
    // The endpoint hears of it through the socket; the test's time limit bounds this.
    while ((await cancelled()) === start);
  });
});
