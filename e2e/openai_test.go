// Package e2e drives the endpoint with the clients that users have: the official
// SDK here, and another in npm/. Against TANDEM_URL, a running appliance, it
// checks what holds for every model; against package fake, exact answers.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"

	"tandem/daemon/api"
	"tandem/e2e/fake"
)

// limit bounds every test, since the SDK has no time limit of its own.
const limit = 2 * time.Minute

// peer is an endpoint and a client of it.
type peer struct {
	openai.Client
	base  string
	model string
	ctx   context.Context
}

func dial(t *testing.T, base string) *peer {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	p := &peer{
		Client: openai.NewClient(option.WithBaseURL(base+"/v1/"), option.WithAPIKey("none"), option.WithMaxRetries(0)),
		base:   base,
		ctx:    ctx,
	}
	list, err := p.Models.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Data) == 0 {
		t.Fatal("no model")
	}
	p.model = list.Data[0].ID
	return p
}

// faked is a fake endpoint in this process.
func faked(t *testing.T) (*peer, *fake.Server) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := fake.New()
	s := api.NewServer(f, nil)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		for i, st := range f.Engine.Streams() {
			if c := st.Calls(); c.Closes != 1 || len(c.Wrong) > 0 {
				t.Errorf("stream %d: %+v", i, c)
			}
		}
	})
	return dial(t, "http://"+l.Addr().String()), f
}

func (p *peer) chat(content string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:       p.model,
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Answer in one sentence."), openai.UserMessage(content)},
		MaxTokens:   param.NewOpt[int64](24),
		Temperature: param.NewOpt(0.0),
	}
}

// streamed runs a chat as a stream and puts it together with the SDK's own means.
func (p *peer) streamed(t *testing.T, params openai.ChatCompletionNewParams) (openai.ChatCompletionAccumulator, error) {
	t.Helper()
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)}
	s := p.Chat.Completions.NewStreaming(p.ctx, params)
	defer s.Close()
	var acc openai.ChatCompletionAccumulator
	for i := 0; s.Next(); i++ {
		c := s.Current()
		if i == 0 && (len(c.Choices) != 1 || c.Choices[0].Delta.Role != "assistant") {
			t.Errorf("the first chunk has no role: %s", c.RawJSON())
		}
		if !acc.AddChunk(c) {
			t.Errorf("the SDK cannot add %s", c.RawJSON())
		}
	}
	return acc, s.Err()
}

func TestLiveEndpoint(t *testing.T) {
	base := strings.TrimSuffix(os.Getenv("TANDEM_URL"), "/")
	if base == "" {
		t.Skip("no TANDEM_URL: it names a running appliance, as http://127.0.0.1:8000")
	}
	everywhere(t, func(t *testing.T) *peer { return dial(t, base) })
}

func TestFakeEndpoint(t *testing.T) {
	everywhere(t, func(t *testing.T) *peer { p, _ := faked(t); return p })
}

// everywhere checks what is true of any model.
func everywhere(t *testing.T, connect func(*testing.T) *peer) {
	t.Run("a chat answers, and its stream says the same", func(t *testing.T) {
		p := connect(t)
		r, err := p.Chat.Completions.New(p.ctx, p.chat("What is the capital of France?"))
		if err != nil {
			t.Fatal(err)
		}
		text, why := r.Choices[0].Message.Content, r.Choices[0].FinishReason
		if text == "" || why != "stop" && why != "length" || r.Model != p.model || r.Usage.CompletionTokens < 1 || r.Usage.CompletionTokens > 24 ||
			r.Usage.TotalTokens != r.Usage.PromptTokens+r.Usage.CompletionTokens {
			t.Errorf("%s", r.RawJSON())
		}
		acc, err := p.streamed(t, p.chat("What is the capital of France?"))
		if err != nil {
			t.Fatal(err)
		}
		c := acc.Choices[0]
		if c.Message.Content != text || c.FinishReason != why || acc.Usage.TotalTokens != r.Usage.TotalTokens {
			t.Errorf("stream %q (%s), answer %q (%s)", c.Message.Content, c.FinishReason, text, why)
		}
	})

	t.Run("a completion of text and of its tokens is the same", func(t *testing.T) {
		p := connect(t)
		tokens := tokenize(t, p, "Once upon a time")
		params := openai.CompletionNewParams{
			Model: openai.CompletionNewParamsModel(p.model), MaxTokens: param.NewOpt[int64](8), Temperature: param.NewOpt(0.0),
			Prompt: openai.CompletionNewParamsPromptUnion{OfString: param.NewOpt("Once upon a time")},
		}
		a, err := p.Completions.New(p.ctx, params)
		if err != nil {
			t.Fatal(err)
		}
		params.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: tokens}
		b, err := p.Completions.New(p.ctx, params)
		if err != nil {
			t.Fatal(err)
		}
		if a.Choices[0].Text == "" || a.Choices[0].Text != b.Choices[0].Text || b.Usage.PromptTokens != int64(len(tokens)) {
			t.Errorf("%s and %s", a.RawJSON(), b.RawJSON())
		}
		text := ""
		s := p.Completions.NewStreaming(p.ctx, params)
		defer s.Close()
		for s.Next() {
			for _, c := range s.Current().Choices {
				text += c.Text
			}
		}
		if s.Err() != nil || text != a.Choices[0].Text {
			t.Errorf("stream %q, answer %q, %v", text, a.Choices[0].Text, s.Err())
		}
	})

	t.Run("a stop string ends the answer before itself", func(t *testing.T) {
		p := connect(t)
		params := p.chat("What is the capital of France?")
		r, err := p.Chat.Completions.New(p.ctx, params)
		if err != nil {
			t.Fatal(err)
		}
		text := r.Choices[0].Message.Content
		if len(text) < 8 {
			t.Fatalf("too little to stop in: %q", text)
		}
		stop := text[3:7]
		params.Stop = openai.ChatCompletionNewParamsStopUnion{OfStringArray: []string{stop}}
		acc, err := p.streamed(t, params)
		if err != nil {
			t.Fatal(err)
		}
		want, _, _ := strings.Cut(text, stop)
		if c := acc.Choices[0]; c.Message.Content != want || c.FinishReason != "stop" {
			t.Errorf("%q (%s), want %q", c.Message.Content, c.FinishReason, want)
		}
	})

	t.Run("errors have their fields", func(t *testing.T) {
		p := connect(t)
		long := p.chat(strings.Repeat("many words ", 60000))
		hot := p.chat("hi")
		hot.Temperature = param.NewOpt(9.0)
		other := p.chat("hi")
		other.Model = "no-such-model"
		tools := p.chat("hi")
		tools.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONObject: &shared.ResponseFormatJSONObjectParam{}}
		for _, c := range []struct {
			params      openai.ChatCompletionNewParams
			status      int
			code, param string
		}{
			{long, 400, "context_length_exceeded", "messages"}, {hot, 400, "invalid_request", "temperature"},
			{other, 404, "model_not_found", "model"}, {tools, 400, "unsupported_parameter", "response_format"},
		} {
			_, err := p.Chat.Completions.New(p.ctx, c.params)
			check(t, err, c.status, c.code, c.param)
			_, err = p.streamed(t, c.params) // before any byte of a stream
			check(t, err, c.status, c.code, c.param)
		}
		var e *openai.Error
		if _, err := p.Chat.Completions.New(p.ctx, long); !errors.As(err, &e) || !strings.Contains(e.Message, "maximum context length is ") {
			t.Errorf("%v", err)
		}
	})

	t.Run("a client that leaves in the middle is no harm", func(t *testing.T) {
		p := connect(t)
		params := p.chat("Count to one thousand.")
		params.MaxTokens = param.NewOpt[int64](200)
		for range 3 {
			ctx, leave := context.WithCancel(p.ctx)
			s := p.Chat.Completions.NewStreaming(ctx, params)
			if !s.Next() {
				t.Fatal(s.Err())
			}
			leave()
			for s.Next() {
			}
			s.Close()
		}
		if _, err := p.Chat.Completions.New(p.ctx, p.chat("hi")); err != nil {
			t.Error(err)
		}
	})

	t.Run("answers carry the client's request id and the generation", func(t *testing.T) {
		p := connect(t)
		var r *http.Response
		if _, err := p.Chat.Completions.New(p.ctx, p.chat("hi"), option.WithHeader("X-Request-Id", "e2e-1"), option.WithResponseInto(&r)); err != nil {
			t.Fatal(err)
		}
		if r.Header.Get("X-Request-Id") != "e2e-1" || r.Header.Get("Tandem-Generation") == "" {
			t.Errorf("%v", r.Header)
		}
	})

	t.Run("the model is found by its name", func(t *testing.T) {
		p := connect(t)
		m, err := p.Models.Get(p.ctx, p.model)
		if err != nil || m.ID != p.model || m.OwnedBy != "tandem" {
			t.Errorf("%+v, %v", m, err)
		}
		_, err = p.Models.Get(p.ctx, "no-such-model")
		check(t, err, 404, "model_not_found", "model")
	})
}

// check reads an error as the SDK's users do.
func check(t *testing.T, err error, status int, code, param string) {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) {
		t.Errorf("%v is no API error", err)
		return
	}
	if e.StatusCode != status || e.Code != code || e.Param != param || e.Message == "" || e.Type == "" {
		t.Errorf("%d %s; want %d, %s, %s", e.StatusCode, e.RawJSON(), status, code, param)
	}
}

func tokenize(t *testing.T, p *peer, text string) []int64 {
	t.Helper()
	body, err := json.Marshal(map[string]any{"content": text, "add_special": true})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.Post(p.base+"/tokenize", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var got struct{ Tokens []int64 }
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil || len(got.Tokens) == 0 {
		t.Fatalf("%v, %v", got, err)
	}
	return got.Tokens
}

func TestFakeSaysExactlyThis(t *testing.T) {
	p, _ := faked(t)
	params := p.chat("hello")
	params.MaxTokens = param.Opt[int64]{}
	params.MaxCompletionTokens = param.NewOpt[int64](200)
	acc, err := p.streamed(t, params)
	if err != nil {
		t.Fatal(err)
	}
	if c := acc.Choices[0]; c.Message.Content != fake.Answer || c.FinishReason != "stop" || acc.Usage.CompletionTokens != int64(len(fake.Answer)) {
		t.Errorf("%q (%s), %+v", c.Message.Content, c.FinishReason, acc.Usage)
	}
	params.MaxCompletionTokens = param.NewOpt[int64](5)
	r, err := p.Chat.Completions.New(p.ctx, params)
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Choices[0]; c.Message.Content != "Hello" || c.FinishReason != "length" {
		t.Errorf("%q (%s)", c.Message.Content, c.FinishReason)
	}
}

func TestKeepAlivesDoNotDisturb(t *testing.T) {
	p, _ := faked(t)
	acc, err := p.streamed(t, p.chat(fake.Wait))
	if err != nil || acc.Choices[0].FinishReason == "" {
		t.Errorf("%+v, %v", acc, err)
	}
}

func TestRefusalsSayWhenToComeBack(t *testing.T) {
	p, _ := faked(t)
	for code, status := range map[string]int{"queue_full": 429, "not_ready": 503, "draining": 503, "kv_exhausted": 503} {
		_, err := p.streamed(t, p.chat(fake.Refuse+code))
		check(t, err, status, code, "")
		var e *openai.Error
		if errors.As(err, &e) && (e.Response.Header.Get("Retry-After") != "2" || !strings.Contains(e.Message, "try again in 2s")) {
			t.Errorf("%v %s", e.Response.Header, e.Message)
		}
	}
}

func TestErrorInTheMiddleOfAStream(t *testing.T) {
	p, _ := faked(t)
	for _, code := range []string{"token_stall", "generation_changed", "numerics"} {
		acc, err := p.streamed(t, p.chat(fake.Die+code))
		if err == nil || !strings.Contains(err.Error(), code) || acc.Choices[0].Message.Content != fake.DieText {
			t.Errorf("%s: %v after %+v", code, err, acc.Choices)
		}
		_, err = p.Chat.Completions.New(p.ctx, p.chat(fake.Die+code))
		check(t, err, map[string]int{"token_stall": 504, "generation_changed": 502, "numerics": 500}[code], code, "")
	}
}

// The SDK tries again where that may help, and not where it cannot.
func TestRetries(t *testing.T) {
	p, f := faked(t)
	for code, tries := range map[string]int{"numerics": 1, "request_timeout": 1, "token_stall": 2} {
		before := len(f.Engine.Streams())
		_, err := p.Chat.Completions.New(p.ctx, p.chat(fake.Die+code), option.WithMaxRetries(1))
		if got := len(f.Engine.Streams()) - before; err == nil || got != tries {
			t.Errorf("%s: %d tries, %v", code, got, err)
		}
	}
}

func TestLeavingCancels(t *testing.T) {
	p, f := faked(t)
	ctx, leave := context.WithCancel(p.ctx)
	s := p.Chat.Completions.NewStreaming(ctx, p.chat(fake.Hang))
	text := ""
	for text != fake.HangText && s.Next() {
		for _, c := range s.Current().Choices {
			text += c.Delta.Content
		}
	}
	leave()
	st := f.Engine.Streams()[0]
	select {
	case <-st.Done():
	case <-p.ctx.Done():
		t.Fatal("the request outlives its client")
	}
	if c := st.Calls(); text != fake.HangText || len(c.Cancels) != 1 || c.Cancels[0] != "client gone" {
		t.Errorf("%q, %+v", text, c)
	}
	s.Close()
}
