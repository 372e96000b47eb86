package api_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"tandem/daemon/api"
	"tandem/daemon/api/apitest"
	"tandem/daemon/request"
	"tandem/model/token"
)

const goodChat = `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":4}`

// A wrong field is a 400 that names it and says what is wanted.
func TestWrongFieldsAreNamed(t *testing.T) {
	e := says("x")
	h := api.New(options(e))
	long := strings.Repeat("s", token.MaxStopBytes+1)
	many := strings.TrimSuffix(strings.Repeat(`"a",`, token.MaxStops+1), ",")
	for _, c := range []struct{ fields, param, says string }{
		{`"temperature":"hot"`, "temperature", `temperature: want a number from 0 to 2, got "hot"`},
		{`"temperature":-1`, "temperature", "temperature: want a number from 0 to 2, got -1"},
		{`"temperature":2.01`, "temperature", "got 2.01"},
		{`"temperature":1e999`, "temperature", "got 1e999"},
		{`"temperature":{}`, "temperature", "got an object"},
		{`"top_p":0`, "top_p", "above 0"},
		{`"top_p":7`, "top_p", "got 7"},
		{`"top_k":-2`, "top_k", "got -2"},
		{`"top_k":1.5`, "top_k", "got 1.5"},
		{`"min_p":2`, "min_p", "from 0 to 1"},
		{`"max_tokens":-5`, "max_tokens", "want a whole number from 1, got -5"},
		{`"max_tokens":0`, "max_tokens", "got 0"},
		{`"max_tokens":1e99`, "max_tokens", "got 1e99"},
		{`"max_tokens":"many"`, "max_tokens", `got "many"`},
		{`"max_tokens":18446744073709551615`, "max_tokens", "got 18446744073709551615"},
		{`"max_completion_tokens":true`, "max_completion_tokens", "got true"},
		{`"n":0`, "n", "got 0"},
		{`"n":1e6`, "n", "not supported yet"},
		{`"n":2`, "n", "not supported yet"},
		{`"stop":5`, "stop", "want a string or an array of strings, got 5"},
		{`"stop":["a",5]`, "stop[1]", "got 5"},
		{`"stop":""`, "stop", "empty string"},
		{`"stop":[` + many + `]`, "stop", fmt.Sprintf("at most %d", token.MaxStops)},
		{`"stop":"` + long + `"`, "stop", fmt.Sprintf("at most %d bytes", token.MaxStopBytes)},
		{`"stop_token_ids":[9999]`, "stop_token_ids[0]", "token id"},
		{`"seed":"x"`, "seed", `got "x"`},
		{`"seed":1.5`, "seed", "got 1.5"},
		{`"logit_bias":{"x":1}`, "logit_bias.x", "token id from 0 to 257"},
		{`"logit_bias":{"258":1}`, "logit_bias.258", "token id"},
		{`"logit_bias":{"1":"y"}`, "logit_bias.1", `got "y"`},
		{`"logit_bias":{"1":101}`, "logit_bias.1", "-100 to 100"},
		{`"logit_bias":[]`, "logit_bias", "got an array"},
		{`"stream":"yes"`, "stream", `want true or false, got "yes"`},
		{`"stream_options":true`, "stream_options", "got true"},
		{`"stream_options":{"include_usage":1}`, "stream_options.include_usage", "got 1"},
		{`"presence_penalty":1e9`, "presence_penalty", "-2 to 2"},
		{`"frequency_penalty":[]`, "frequency_penalty", "got an array"},
		{`"repetition_penalty":0`, "repetition_penalty", "above 0"},
		{`"ignore_eos":0`, "ignore_eos", "got 0"},
		{`"model":5`, "model", "want a string, got 5"},
		{`"messages":null`, "messages", "missing"},
		{`"messages":"x"`, "messages", `got "x"`},
		{`"messages":[]`, "messages", "at least one"},
		{`"messages":[{}]`, "messages[0]", "role is missing"},
		{`"messages":[7]`, "messages[0]", "got 7"},
		{`"messages":[{"role":"user"}]`, "messages[0]", "content is missing"},
		{`"messages":[{"role":"user","content":null}]`, "messages[0]", "content is missing"},
		{`"messages":[{"role":"user","content":7}]`, "messages[0].content", "got 7"},
		{`"messages":[{"role":"user","content":"a"},{"role":"alien","content":"x"}]`, "messages[1].role", `got "alien"`},
		{`"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}]`, "messages[0].content[1]", `got "image_url"`},
		{`"messages":[{"role":"user","content":[{"type":"text"}]}]`, "messages[0].content[0]", "text is missing"},
		{`"messages":[{"role":"user","content":["a"]}]`, "messages[0].content[0]", `got "a"`},
		{`"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c"}]}]`, "messages[0].tool_calls", "not supported"},
		{`"messages":[{"role":"user","content":"` + apitest.Refuse + `"}]`, "messages", "chat template cannot render"},
		{`"tools":[{"type":"function","function":{"name":"f"}}]`, "tools", "not supported"},
		{`"tool_choice":"required"`, "tool_choice", "there are none"},
		{`"tool_choice":{"type":"function","function":{"name":"f"}}`, "tool_choice", "there are none"},
		{`"response_format":{"type":"json_object"}`, "response_format", "json_object"},
		{`"response_format":{}`, "response_format", "want a type"},
		{`"response_format":"json"`, "response_format", "want an object"},
		{`"logprobs":true`, "logprobs", "not supported"},
		{`"top_logprobs":3`, "top_logprobs", "not supported"},
		{`"guided_json":{"type":"object"}`, "guided_json", "not supported"},
	} {
		body := strings.TrimSuffix(goodChat, "}") + "," + c.fields + "}"
		if strings.HasPrefix(c.fields, `"messages"`) {
			body = "{" + c.fields + "}"
		}
		w := ask(h, "POST", chatPath, body)
		o := errorOf(t, w.Body.Bytes())
		if w.Code != 400 || o.Param == nil || *o.Param != c.param || !strings.Contains(o.Message, c.says) || o.Type != "invalid_request_error" {
			t.Errorf("%s: %d %s", c.fields, w.Code, w.Body)
		}
		if len(w.Body.Bytes()) > 600 {
			t.Errorf("%s: an error of %d bytes", c.fields, w.Body.Len())
		}
	}
	for _, c := range []struct{ fields, param string }{{`"echo":true`, "echo"}, {`"suffix":"x"`, "suffix"}, {`"best_of":2`, "best_of"}, {`"logprobs":0`, "logprobs"}, {`"logprobs":5`, "logprobs"}} {
		w := ask(h, "POST", compPath, `{"prompt":"a",`+c.fields+`}`)
		if o := errorOf(t, w.Body.Bytes()); w.Code != 400 || *o.Param != c.param || o.Code != "unsupported_parameter" {
			t.Errorf("%s: %d %s", c.fields, w.Code, w.Body)
		}
	}
	if len(e.Streams()) > 0 {
		t.Error("a wrong request was submitted")
	}
}

func TestFieldsThatAskForNothingPass(t *testing.T) {
	h := api.New(options(says("x")))
	w := ask(h, "POST", chatPath, strings.TrimSuffix(goodChat, "}")+`,"tools":[],"tool_choice":"none","functions":[],"logprobs":false,"top_logprobs":0,"n":1,"stop":[],`+
		`"stream_options":{"include_usage":true},"response_format":{"type":"text"},"temperature":null,"messages":[{"role":"assistant"},{"role":"tool","content":null}]}`)
	if w.Code != 200 {
		t.Error(w.Body)
	}
	w = ask(h, "POST", compPath, `{"prompt":"a","echo":false,"suffix":"","best_of":1,"logprobs":null,"n":1}`)
	if w.Code != 200 {
		t.Error(w.Body)
	}
}

type fieldCounter struct {
	api.Recorder
	ignored map[string]int
}

func (c fieldCounter) Ignored(f string) { c.ignored[f]++ }

func TestIgnoredFieldsAreCountedUnderFixedNames(t *testing.T) {
	o := options(says("x"))
	c := fieldCounter{noRecorder{}, map[string]int{}}
	o.Recorder = c
	w := ask(api.New(o), "POST", chatPath, strings.TrimSuffix(goodChat, "}")+`,"user":"u","reasoning_effort":"high","metadata":{"a":"b"},"x1":1,"x2":[{}],"messages":[{"role":"user","content":"a","reasoning_content":"r","zz":1}]}`)
	want := map[string]int{"user": 1, "reasoning_effort": 1, "metadata": 1, "other": 1, "messages.reasoning_content": 1, "messages.other": 1}
	if w.Code != 200 || fmt.Sprint(c.ignored) != fmt.Sprint(want) {
		t.Errorf("%d %v", w.Code, c.ignored)
	}
}

func TestBodiesThatAreNoRequest(t *testing.T) {
	h := api.New(options(says("x")))
	for body, says := range map[string]string{
		"":                           "the body is empty",
		"  \n":                       "the body is empty",
		"{":                          "invalid JSON at byte 1",
		"[]":                         "want a JSON object, got an array",
		"null":                       "want a JSON object, got null",
		`"x"`:                        `want a JSON object, got "x"`,
		"{}":                         "messages: missing",
		"\xff\xfe":                   "not valid UTF-8 at byte 0",
		goodChat + "x":               fmt.Sprintf("invalid JSON at byte %d", len(goodChat)),
		strings.Repeat("[", 100000):  "want a JSON object",
		strings.Repeat(`{"a":`, 5e4): "nested deeper",
		`{"messages":[{"role":"user","content":"\ud8"}]}`: "hexadecimal",
	} {
		w := ask(h, "POST", chatPath, body)
		if o := errorOf(t, w.Body.Bytes()); w.Code != 400 || !strings.Contains(o.Message, says) {
			t.Errorf("%.40q: %d %s", body, w.Code, w.Body)
		}
	}
}

// checkAnswer holds for every answer to every body: an answer or a refusal that
// says why, and never a fault of ours.
func checkAnswer(t *testing.T, w interface {
	Result() *http.Response
}, body []byte) {
	t.Helper()
	r := w.Result()
	if r.StatusCode >= 500 || r.StatusCode < 200 {
		t.Fatalf("%q: %d", body, r.StatusCode)
	}
	if r.Header.Get("X-Request-Id") == "" || r.Header.Get("Tandem-Generation") == "" {
		t.Fatalf("%q: %v", body, r.Header)
	}
	b := readAll(t, r.Body)
	if !utf8.ValidString(b) {
		t.Fatalf("%q: %q", body, b)
	}
	switch {
	case r.StatusCode >= 400:
		errorOf(t, []byte(b))
	case r.Header.Get("Content-Type") == "text/event-stream":
		spoken(t, b)
	case !json.Valid([]byte(b)):
		t.Fatalf("%q: %q", body, b)
	}
}

// Thousands of bodies, most of them nearly right.
func TestNoBodyIsAFaultOfOurs(t *testing.T) {
	e := says("x y")
	h := api.New(options(e))
	seeds := []string{
		goodChat,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"\u00e9\ud83d\ude00"}]}],"stream":true,"stream_options":{"include_usage":true},"stop":["a","b"],"logit_bias":{"1":-1.5e0}}`,
		`{"prompt":[1,2,3],"n":1,"seed":-1,"temperature":0.5,"echo":false}`,
		`{"tokens":[1,2,3],"content":"x","add_special":true}`,
	}
	paths := []string{chatPath, compPath, "/tokenize", "/detokenize"}
	rnd := rand.New(rand.NewPCG(5, 5))
	codes := map[int]int{}
	for i := range 8000 {
		b := []byte(seeds[i%len(seeds)])
		for range 1 + rnd.IntN(4) {
			j := rnd.IntN(len(b))
			switch rnd.IntN(4) {
			case 0:
				b[j] = byte(rnd.UintN(256))
			case 1:
				b = append(b[:j], b[j+1:]...) // one less
			case 2:
				b[j] = `{}[]",:0-.eE\tnu `[rnd.IntN(17)]
			case 3:
				k := j + rnd.IntN(min(20, len(b)-j)) // a piece twice
				b = append(b[:k:k], b[j:]...)
			}
			if len(b) == 0 {
				break
			}
		}
		w := ask(h, "POST", paths[i/len(seeds)%len(paths)], string(b))
		codes[w.Code]++
		checkAnswer(t, w, b)
	}
	if codes[200] < 100 || codes[400] < 1000 {
		t.Errorf("the bodies are too wrong or too right to mean much: %v", codes)
	}
	kept(t, e)
}

func FuzzHandler(f *testing.F) {
	for i, s := range []string{
		goodChat, `{"prompt":[1]}`, `{"messages":[{"role":"tool","content":[{"type":"text","text":"x"}]}],"stream":true,"stop":"x"}`,
		`{"content":"x","parse_special":true}`, `{"tokens":[256]}`, `{"prompt":["<|end|>"],"logit_bias":{"1":1},"max_completion_tokens":1e2}`,
	} {
		f.Add(uint8(i), "", []byte(s))
	}
	paths := []string{chatPath, compPath, "/tokenize", "/detokenize", "/v1/models", "/v1/models/x", "/", "/nowhere"}
	f.Fuzz(func(t *testing.T, path uint8, id string, body []byte) {
		e := &apitest.Engine{Script: func(request.Spec) []apitest.Step { return apitest.Say("aé", request.FinishLength) }}
		w := ask(api.New(options(e)), "POST", paths[int(path)%len(paths)], string(body), "X-Request-Id", id, "X-Session-Id", id)
		checkAnswer(t, w, body)
		kept(t, e)
		for _, s := range e.Streams() {
			if n := len(s.Spec.Prompt); n == 0 || s.Spec.MaxTokens < 1 || n+s.Spec.MaxTokens > window {
				t.Fatalf("%+v", s.Spec)
			}
		}
	})
}
