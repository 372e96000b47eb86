package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"tandem/daemon/api"
	"tandem/daemon/api/apitest"
	"tandem/daemon/fault"
	"tandem/daemon/request"
	"tandem/model/sample"
)

func TestChatAnswer(t *testing.T) {
	e := says("Hello.")
	w := ask(api.New(options(e)), "POST", chatPath, chatBody("hi"), "X-Request-Id", "mine")
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Request-Id") != "mine" || w.Header().Get("Tandem-Generation") != "7" {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "created")
	prompt := float64(len("?user\nhi??assistant\n"))
	want := map[string]any{
		"id": "chatcmpl-mine", "object": "chat.completion", "model": "tiny",
		"choices": []any{map[string]any{
			"index": 0., "logprobs": nil, "finish_reason": "stop",
			"message": map[string]any{"role": "assistant", "content": "Hello.", "refusal": nil},
		}},
		"usage": map[string]any{
			"prompt_tokens": prompt, "completion_tokens": 6., "total_tokens": prompt + 6,
			"prompt_tokens_details": map[string]any{"cached_tokens": 0.},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	kept(t, e)
	if c := e.Streams()[0].Calls(); c.Flushes == 0 || len(c.Cancels) > 0 {
		t.Errorf("%+v", c)
	}
}

// Every byte of a stream is fixed here, because clients have been seen to break
// on almost any of them.
func TestChatStreamToTheByte(t *testing.T) {
	for _, c := range []struct{ name, options, usage, last string }{
		{"plain", "", "", ""},
		{"with usage", `,"stream_options":{"include_usage":true}`, `,"usage":null`,
			`data: HEAD],"usage":{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n\n"},
	} {
		e := says("Hi")
		w := ask(api.New(options(e)), "POST", chatPath, `{"model":"gpt-4o","stream":true`+c.options+`,"messages":[{"role":"user","content":"hi"}]}`, "X-Request-Id", "r1")
		for k, v := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no", "X-Request-Id": "r1"} {
			if got := w.Header().Get(k); got != v {
				t.Errorf("%s: %s: %q, want %q", c.name, k, got, v)
			}
		}
		body := w.Body.String()
		created := body[strings.Index(body, `"created":`)+len(`"created":`):]
		created = created[:strings.Index(created, ",")]
		if n, err := strconv.ParseInt(created, 10, 64); err != nil || time.Since(time.Unix(n, 0)) > time.Minute {
			t.Errorf("%s: created %q", c.name, created)
		}
		frame := func(delta, finish string) string {
			return `data: HEAD{"index":0,"delta":{` + delta + `},"logprobs":null,"finish_reason":` + finish + `}]` + c.usage + "}\n\n"
		}
		want := frame(`"role":"assistant","content":""`, "null") + frame(`"content":"H"`, "null") + frame(`"content":"i"`, "null") +
			frame("", `"stop"`) + c.last + "data: [DONE]\n\n"
		want = strings.ReplaceAll(want, "HEAD", `{"id":"chatcmpl-r1","object":"chat.completion.chunk","created":`+created+`,"model":"gpt-4o","choices":[`)
		if diff := cmp.Diff(want, body); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		kept(t, e)
	}
}

func TestCompletionStreamToTheByte(t *testing.T) {
	e := says("x")
	w := ask(api.New(options(e)), "POST", compPath, `{"prompt":"a","stream":true,"stream_options":{"include_usage":true}}`, "X-Request-Id", "r1")
	body := w.Body.String()
	i := strings.Index(body, `"created":`)
	head := body[len("data: "):i] + body[i:i+strings.Index(body[i:], `"choices":[`)] + `"choices":[`
	want := "data: " + head + `{"index":0,"text":"x","logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n" +
		"data: " + head + `{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null}` + "\n\n" +
		"data: " + head + `],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n\n" +
		"data: [DONE]\n\n"
	if diff := cmp.Diff(want, body); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(head, `{"id":"cmpl-r1","object":"text_completion",`) {
		t.Error(head)
	}
}

func TestCompletionAnswer(t *testing.T) {
	w := ask(api.New(options(says("x\n"))), "POST", compPath, `{"prompt":"a"}`)
	var got struct {
		ID, Object, Model string
		Choices           []map[string]any
		Usage             map[string]any
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{{"index": 0., "text": "x\n", "logprobs": nil, "finish_reason": "stop"}}
	if diff := cmp.Diff(want, got.Choices); diff != "" || got.Object != "text_completion" || got.Model != "tiny" || got.Usage["total_tokens"] != 4. {
		t.Errorf("%+v %s", got, diff)
	}
}

// steps says text in bursts cut at the given tokens.
func bursts(text string, cuts []int, end request.Output) []apitest.Step {
	ids := apitest.Encode(text)
	var steps []apitest.Step
	at := 0
	for _, c := range append(slices.Clone(cuts), len(ids)) {
		if c > at {
			steps = append(steps, apitest.Step{Out: request.Output{Tokens: ids[at:c]}})
			at = c
		}
	}
	if n := len(steps); n > 0 && len(cuts)%2 == 1 {
		steps[n-1].Out.Finish = end.Finish // the end may come with the last tokens
		return steps
	}
	return append(steps, apitest.Step{Out: end})
}

// However tokens are cut into outputs, and wherever characters and stop strings
// lie across them: a stream says what an answer says, and that is the text
// before the first stop string.
func TestStreamSaysWhatTheAnswerSays(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune("abc \n\"\\é€😀한")), 0, 40, -1).Draw(r, "text")
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("abc é€😀")), 1, 3, -1), 0, 3).Draw(r, "stops")
		cuts := rapid.SliceOfN(rapid.IntRange(1, 80), 0, 8).Draw(r, "cuts")
		cuts = slices.DeleteFunc(cuts, func(c int) bool { return c > len(text) })
		slices.Sort(cuts)

		// The first stop string to be complete ends the text; of those that are
		// complete at once, the one that begins first.
		want, wantTokens, stopped := text, len(text), false
		for n := 1; n <= len(text) && !stopped; n++ {
			for _, s := range stops {
				if i := strings.Index(text[:n], s); i >= 0 && (!stopped || i < len(want)) {
					want, wantTokens, stopped = text[:i], n, true
				}
			}
		}
		finish := request.FinishLength
		why := finish.String()
		if stopped {
			why = "stop"
		}
		list, err := json.Marshal(append([]string{}, stops...))
		if err != nil {
			r.Fatal(err)
		}

		e := &apitest.Engine{Script: func(request.Spec) []apitest.Step {
			return bursts(text, cuts, request.Output{Finish: finish})
		}}
		h := api.New(options(e))
		w := ask(h, "POST", chatPath, chatBody("x", `"stop":`+string(list)))
		var whole struct {
			Choices []struct {
				Message      struct{ Content string }
				FinishReason string `json:"finish_reason"`
			}
			Usage struct {
				CompletionTokens int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &whole); err != nil {
			r.Fatal(err)
		}
		if got := whole.Choices[0]; got.Message.Content != want || got.FinishReason != why || whole.Usage.CompletionTokens != wantTokens {
			r.Fatalf("answer %q, %s, %d tokens; want %q, %s, %d", got.Message.Content, got.FinishReason, whole.Usage.CompletionTokens, want, why, wantTokens)
		}
		w = ask(h, "POST", chatPath, chatBody("x", `"stream":true`, `"stop":`+string(list)))
		if got, f, code := spoken(t, w.Body.String()); got != want || f != why || code != "" {
			r.Fatalf("stream %q, %s, %q; want %q, %s", got, f, code, want, why)
		}
		for _, s := range e.Streams() {
			c := s.Calls()
			if c.Closes != 1 || len(c.Wrong) > 0 || len(c.Cancels) > 0 || c.Stops > 1 || c.Stops == 1 && !stopped {
				r.Fatalf("%+v", c)
			}
		}
	})
}

func TestStreamNeverSplitsACharacter(t *testing.T) {
	text := strings.Repeat("한국어 😀 ", 60)
	e := says(text) // one byte a token
	w := ask(api.New(options(e)), "POST", chatPath, chatBody("x", `"stream":true`))
	data, _ := frames(t, w.Body.String())
	for _, d := range data {
		if !utf8.ValidString(d) || strings.ContainsRune(d, utf8.RuneError) {
			t.Fatalf("%q", d)
		}
	}
	if got, _, _ := spoken(t, w.Body.String()); got != text {
		t.Errorf("%q", got)
	}
}

func TestOutputThatIsNoTextIsStillJSON(t *testing.T) {
	for _, text := range []string{"\xff\xfe\x80", "a\xf0\x9f", "\x00\x01\x7f", "\xed\xa0\x80"} {
		h := api.New(options(says(text)))
		got, _, _ := spoken(t, ask(h, "POST", chatPath, chatBody("x", `"stream":true`)).Body.String())
		var whole struct {
			Choices []struct{ Message struct{ Content string } }
		}
		if err := json.Unmarshal(ask(h, "POST", chatPath, chatBody("x")).Body.Bytes(), &whole); err != nil {
			t.Fatal(err)
		}
		if got != whole.Choices[0].Message.Content || !utf8.ValidString(got) {
			t.Errorf("%q: stream %q, answer %q", text, got, whole.Choices[0].Message.Content)
		}
	}
}

func TestTokensThatCameTogetherAreOneFrame(t *testing.T) {
	e := &apitest.Engine{Script: func(request.Spec) []apitest.Step {
		return []apitest.Step{{Out: apitest.Tokens(apitest.Encode("abc")...)}, {Out: request.Output{Tokens: apitest.Encode("de"), Finish: request.FinishLength}}}
	}}
	data, _ := frames(t, ask(api.New(options(e)), "POST", chatPath, chatBody("x", `"stream":true`)).Body.String())
	// role, "abc", "de", the finish reason, [DONE]
	if len(data) != 5 || !strings.Contains(data[1], `"abc"`) || !strings.Contains(data[2], `"de"`) {
		t.Errorf("%q", data)
	}
}

func TestEmptyAnswerHasItsShape(t *testing.T) {
	h := api.New(options(says("")))
	data, _ := frames(t, ask(h, "POST", chatPath, chatBody("x", `"stream":true`)).Body.String())
	if len(data) != 3 || !strings.Contains(data[0], `"role":"assistant"`) || !strings.Contains(data[1], `"finish_reason":"stop"`) {
		t.Errorf("%q", data)
	}
	if w := ask(h, "POST", chatPath, chatBody("x")); !strings.Contains(w.Body.String(), `"content":""`) {
		t.Error(w.Body)
	}
}

// Every kind of fault has a status, refused, after acceptance, and in a stream.
func TestEveryFaultHasItsAnswer(t *testing.T) {
	want := map[fault.Kind]struct {
		status int
		typ    string
	}{
		fault.Internal: {500, "server_error"}, fault.Invalid: {400, "invalid_request_error"}, fault.ContextLength: {400, "invalid_request_error"},
		fault.UnknownModel: {404, "invalid_request_error"}, fault.QueueFull: {429, "rate_limit_error"}, fault.NotReady: {503, "server_error"},
		fault.Draining: {503, "server_error"}, fault.QueueTimeout: {504, "server_error"}, fault.ReserveTimeout: {504, "server_error"},
		fault.PrefillStall: {504, "server_error"}, fault.HandoffStall: {504, "server_error"}, fault.TransferTimeout: {504, "server_error"},
		fault.VerifyTimeout: {504, "server_error"}, fault.DigestMismatch: {502, "server_error"}, fault.EpochChanged: {502, "server_error"},
		fault.KVExhausted: {503, "server_error"}, fault.FirstToken: {504, "server_error"}, fault.TokenStall: {504, "server_error"},
		fault.RequestDeadline: {504, "server_error"}, fault.Generation: {502, "server_error"}, fault.WorkerLost: {502, "server_error"},
		fault.Protocol: {502, "server_error"}, fault.Cancelled: {499, "invalid_request_error"}, fault.Numerics: {500, "server_error"},
		fault.Unauthorized: {401, "authentication_error"}, fault.NotFound: {404, "invalid_request_error"}, fault.ClientStalled: {408, "invalid_request_error"},
	}
	waits := []fault.Kind{fault.QueueFull, fault.NotReady, fault.Draining, fault.KVExhausted}
	for _, k := range fault.Kinds() {
		t.Run(k.String(), func(t *testing.T) {
			w, listed := want[k]
			if !listed {
				t.Fatal("the table does not say how this kind looks")
			}
			check := func(how string, code int, header http.Header, body []byte) {
				t.Helper()
				e := errorOf(t, body)
				if code != w.status || e.Type != w.typ || e.Code != k.String() || !strings.Contains(e.Message, "told so") {
					t.Errorf("%s: %d %+v; want %d, type %s", how, code, e, w.status, w.typ)
				}
				if got := header.Get("Retry-After"); slices.Contains(waits, k) != (got == "3") || slices.Contains(waits, k) != strings.Contains(e.Message, "try again in 3s") {
					t.Errorf("%s: Retry-After %q, %q", how, got, e.Message)
				}
			}
			refusing := says("")
			refusing.Retry = 2100 * time.Millisecond
			refusing.Refuse = func(request.Spec) error { return fault.New(k, "told so") }
			for _, stream := range []string{`"stream":false`, `"stream":true`} {
				r := ask(api.New(options(refusing)), "POST", chatPath, chatBody("x", stream))
				check("refused, "+stream, r.Code, r.Header(), r.Body.Bytes())
			}
			if len(refusing.Streams()) != 0 {
				t.Error("a refused request has a stream")
			}
			if k == fault.ClientStalled {
				return // nobody to tell; see TestEngineSaysTheClientStalled
			}
			for _, before := range []string{"", "some"} {
				e := &apitest.Engine{Retry: 2100 * time.Millisecond, Script: func(request.Spec) []apitest.Step {
					steps := apitest.Say(before, request.FinishStop)
					steps[len(steps)-1].Out = apitest.Fail(k, "told so")
					return steps
				}}
				h := api.New(options(e))
				r := ask(h, "POST", chatPath, chatBody("x"))
				check("accepted", r.Code, r.Header(), r.Body.Bytes())
				r = ask(h, "POST", chatPath, chatBody("x", `"stream":true`))
				if text, finish, code := spoken(t, r.Body.String()); r.Code != 200 || text != before || finish != "" || code != k.String() {
					t.Errorf("stream: %d %q %q %q", r.Code, text, finish, code)
				}
				kept(t, e)
				for _, s := range e.Streams() {
					if c := s.Calls(); len(c.Cancels) > 0 {
						t.Errorf("cancelled after its end: %v", c.Cancels)
					}
				}
			}
		})
	}
}

func TestRetryAfterIsWholeSecondsFromOneToSixty(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "1", time.Millisecond: "1", time.Second: "1", 1001 * time.Millisecond: "2", time.Hour: "60", -time.Second: "1"} {
		e := says("")
		e.Retry = d
		e.Refuse = func(request.Spec) error { return fault.New(fault.QueueFull, "the queue is full") }
		w := ask(api.New(options(e)), "POST", chatPath, chatBody("x"))
		if got := w.Header().Get("Retry-After"); got != want || !strings.Contains(w.Body.String(), "try again in "+want+"s") {
			t.Errorf("%v: %q, %s", d, got, w.Body)
		}
	}
}

func TestSpecCarriesWhatWasAsked(t *testing.T) {
	e := says("")
	h := api.New(options(e))
	body := `{"model":"org/tiny","messages":[{"role":"developer","content":"S"},{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}]},` +
		`{"role":"assistant","content":null,"tool_calls":[]},{"role":"tool","tool_call_id":"c1","content":"r"}],` +
		`"max_tokens":9,"max_completion_tokens":11,"max_tokens":10,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":-3,` +
		`"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.1,"logit_bias":{"65":-100,"66":1.5},"stop":null,"stop_token_ids":[10],` +
		`"prompt_cache_key":"sess","n":1,"tools":[],"tool_choice":"auto","response_format":{"type":"text"},"logprobs":false,"user":"u"}`
	if w := ask(h, "POST", chatPath, body, "X-Request-Id", "id1"); w.Code != 200 {
		t.Fatal(w.Body)
	}
	got := e.Streams()[0].Spec
	if time.Since(got.Arrived) > time.Minute {
		t.Errorf("arrived %v", got.Arrived)
	}
	got.Arrived = time.Time{}
	prompt, err := apitest.Text{}.Render([]api.Message{{Role: "system", Content: "S"}, {Role: "user", Content: "a\nb"}, {Role: "assistant"}, {Role: "tool", Content: "r"}})
	if err != nil {
		t.Fatal(err)
	}
	want := request.Spec{
		ID: "id1", Prompt: prompt, MaxTokens: 11, Stop: []int32{10, apitest.End}, Session: "sess",
		Params: sample.Params{
			Temperature: 0.5, TopP: 0.9, TopK: 40, MinP: 0.05, Seed: ^uint64(2), Presence: 1, Frequency: -1, Repetition: 1.1,
			Bias: []sample.Bias{{Token: 65, Value: -100}, {Token: 66, Value: 1.5}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDefaultsOfASpec(t *testing.T) {
	e := says("")
	o := options(e)
	h := api.New(o)
	for range 2 {
		ask(h, "POST", chatPath, chatBody("x", `"ignore_eos":true`, `"temperature":null`), "X-Session-Id", "s1")
	}
	a, b := e.Streams()[0].Spec, e.Streams()[1].Spec
	if a.Params.Seed == b.Params.Seed {
		t.Error("two requests without a seed have the same")
	}
	if a.Params.Temperature != 1 || a.MaxTokens != 64 || len(a.Stop) != 0 || a.Session != "s1" || a.ID == b.ID || !strings.HasPrefix(string(a.ID), "req-") {
		t.Errorf("%+v", a)
	}
	o.Model.DefaultOutput, o.Model.MaxOutput = 0, 0
	o.Model.Sampling = &sample.Params{Temperature: 0.2, TopP: 0.9}
	ask(api.New(o), "POST", chatPath, chatBody("x", `"top_p":1`))
	if p := e.Streams()[2].Spec.Params; p.Temperature != 0.2 || p.TopP != 1 {
		t.Errorf("the model's own defaults are lost: %+v", p)
	}
	if got := e.Streams()[2].Spec.MaxTokens; got != window/4 {
		t.Errorf("an answer without any limit may have %d tokens", got)
	}
}

func TestMaxTokensIsFittedAndSaid(t *testing.T) {
	for _, c := range []struct {
		prompt, max, want int
		header            string
	}{
		{100, 50, 50, ""}, {100, 128, 128, ""}, {100, 129, 128, "128"}, {100, 0, 64, ""},
		{window - 10, 10, 10, ""}, {window - 10, 11, 10, "10"}, {window - 10, 0, 10, ""}, {window - 1, 5, 1, "1"},
	} {
		e := says("")
		body := fmt.Sprintf(`{"prompt":[%s],"max_tokens":%d}`, strings.TrimSuffix(strings.Repeat("65,", c.prompt), ","), c.max)
		if c.max == 0 {
			body = strings.Replace(body, `"max_tokens":0`, `"max_tokens":null`, 1)
		}
		w := ask(api.New(options(e)), "POST", compPath, body)
		if w.Code != 200 {
			t.Errorf("%+v: %s", c, w.Body)
			continue
		}
		if got := e.Streams()[0].Spec; got.MaxTokens != c.want || w.Header().Get("Tandem-Max-Tokens") != c.header || len(got.Prompt) != c.prompt {
			t.Errorf("%+v: %d, header %q", c, got.MaxTokens, w.Header().Get("Tandem-Max-Tokens"))
		}
	}
}

// Clients find out that a prompt is too long by these phrases.
func TestPromptTooLong(t *testing.T) {
	e := says("")
	h := api.New(options(e))
	n := window - len("?user\n??assistant\n")
	for _, stream := range []string{`"stream":false`, `"stream":true`} {
		w := ask(h, "POST", chatPath, chatBody(strings.Repeat("x", n), stream))
		o := errorOf(t, w.Body.Bytes())
		if w.Code != 400 || o.Code != "context_length_exceeded" || o.Type != "invalid_request_error" || *o.Param != "messages" {
			t.Errorf("%d %+v", w.Code, o)
		}
		for _, phrase := range []string{"maximum context length is 512 tokens", "exceeds the available context size", "prompt is too long: 512 tokens > 512 maximum"} {
			if !strings.Contains(o.Message, phrase) {
				t.Errorf("%q lacks %q", o.Message, phrase)
			}
		}
	}
	if w := ask(h, "POST", compPath, `{"prompt":[`+strings.Repeat("1,", 9999)+`1]}`); !strings.Contains(w.Body.String(), "prompt is too long: 10000 tokens") {
		t.Error(w.Body)
	}
	if len(e.Streams()) != 0 {
		t.Error("submitted")
	}
	if w := ask(h, "POST", chatPath, chatBody(strings.Repeat("x", n-1))); w.Code != 200 {
		t.Errorf("one token less: %s", w.Body)
	}
}

func TestPromptForms(t *testing.T) {
	e := says("")
	h := api.New(options(e))
	for body, want := range map[string][]int32{
		`"<|start|>A"`: {apitest.Start, apitest.Start, 65}, `["A"]`: {apitest.Start, 65}, `[65,66.0]`: {65, 66}, `[[65,66]]`: {65, 66}, `""`: {apitest.Start},
	} {
		before := len(e.Streams())
		if w := ask(h, "POST", compPath, `{"prompt":`+body+`}`); w.Code != 200 {
			t.Errorf("%s: %s", body, w.Body)
			continue
		}
		if got := e.Streams()[before].Spec.Prompt; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
	for body, says := range map[string]string{
		`["A","B"]`: "several prompts", `[[65],[66]]`: "several prompts", `["A",65]`: "several prompts", `[65,"A"]`: "prompt[1]: want a token id", `[[65,"x"]]`: "prompt[0][1]: want a token id",
		`[]`: "empty array", `[[]]`: "no tokens", `[258]`: "prompt[0]: want a token id from 0 to 257, got 258", `[-1]`: "prompt[0]", `[1.5]`: "prompt[0]", `7`: "prompt: want a string", `[null]`: "prompt[0]", `null`: "missing", `{}`: "prompt: want",
	} {
		w := ask(h, "POST", compPath, `{"prompt":`+body+`}`)
		if o := errorOf(t, w.Body.Bytes()); w.Code != 400 || !strings.Contains(o.Message, says) || o.Param == nil || !strings.HasPrefix(*o.Param, "prompt") {
			t.Errorf("%s: %d %+v", body, w.Code, o)
		}
	}
}

// A control token in a message is text: only the template writes control tokens.
func TestMessagesCannotForgeControlTokens(t *testing.T) {
	e := says("")
	ask(api.New(options(e)), "POST", chatPath, chatBody("<|end|>"))
	n := 0
	for _, id := range e.Streams()[0].Spec.Prompt {
		if id == apitest.End {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d ends of messages in one message", n)
	}
}

func TestLoneSurrogatesLeaveTheRestAlone(t *testing.T) {
	e := says("")
	if w := ask(api.New(options(e)), "POST", chatPath, `{"messages":[{"role":"user","content":"a\ud800b\ud83d\ude00c"}]}`); w.Code != 200 {
		t.Fatal(w.Body)
	}
	if got := (apitest.Text{}).Decode(e.Streams()[0].Spec.Prompt); !strings.Contains(got, "a\ufffdb😀c") {
		t.Errorf("%q", got)
	}
}

func TestTwoLiveRequestsOfOneName(t *testing.T) {
	gate := make(chan struct{})
	inside := make(chan string, 3)
	e := &apitest.Engine{
		Script: func(request.Spec) []apitest.Step {
			return []apitest.Step{{Gate: gate, Out: request.Output{Finish: request.FinishStop}}}
		},
		OnSubmit: func(s *apitest.Stream) { inside <- string(s.Spec.ID) },
	}
	h := api.New(options(e))
	type result struct{ outer, inner string }
	answers := make(chan result, 3)
	for range 3 {
		go func() {
			w := ask(h, "POST", chatPath, chatBody("x"), "X-Request-Id", "same")
			answers <- result{w.Header().Get("X-Request-Id"), w.Header().Get("Tandem-Request")}
		}()
	}
	names := []string{<-inside, <-inside, <-inside}
	slices.Sort(names)
	if !slices.Equal(names, []string{"same", "same-2", "same-3"}) {
		t.Errorf("%q", names)
	}
	close(gate)
	for range 3 {
		if a := <-answers; a.outer != "same" || a.inner == "same" {
			t.Errorf("%+v", a)
		}
	}
	if ask(h, "POST", chatPath, chatBody("x"), "X-Request-Id", "same"); <-inside != "same" {
		t.Error("the name is not free again")
	}
	kept(t, e)
}
