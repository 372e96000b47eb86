package api_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"tandem/daemon/api"
	"tandem/daemon/api/apitest"
	"tandem/daemon/request"
	"tandem/model/golden"
)

func noChat([]api.Message) ([]int32, error) { return nil, errors.New("no template here") }

// What the demo model's tokenizer cuts into pieces of characters, the endpoint
// puts together again: streamed or not, in bursts or not, the text is the same.
func TestDemoTokensBecomeTheirText(t *testing.T) {
	tok := golden.Tokenizer(t)
	const text = "Grüße, 한국어 and 😀👩‍👩‍👧: \"quoted\"\n\ttabs <|im_end|> 数学 x² ≤ ∞."
	ids := tok.Encode(text, false)
	split := 0
	for _, id := range ids {
		if p := tok.Piece(id, false); strings.ToValidUTF8(string(p), "") != string(p) {
			split++
		}
	}
	if split < 4 {
		t.Fatalf("only %d tokens are parts of characters: this proves nothing", split)
	}
	const stop = "数学 x²"
	before, _, _ := strings.Cut(text, stop)
	for burst := 1; burst <= 5; burst++ {
		e := &apitest.Engine{Script: func(request.Spec) []apitest.Step {
			var steps []apitest.Step
			for piece := range slices.Chunk(ids, burst) {
				steps = append(steps, apitest.Step{Out: request.Output{Tokens: piece}})
			}
			return append(steps, apitest.Step{Out: request.Output{Finish: request.FinishLength}})
		}}
		o := options(e)
		o.Text = api.NewText(tok, noChat)
		o.Model.Context = 8192
		h := api.New(o)
		for extra, want := range map[string]struct{ text, finish string }{
			"": {text, "length"}, `,"stop":["never","` + stop + `"]`: {before, "stop"},
		} {
			w := ask(h, "POST", compPath, `{"prompt":"x"`+extra+`}`)
			var whole struct {
				Choices []struct {
					Text         string
					FinishReason string `json:"finish_reason"`
				}
			}
			if err := json.Unmarshal(w.Body.Bytes(), &whole); err != nil {
				t.Fatal(err)
			}
			if c := whole.Choices[0]; c.Text != want.text || c.FinishReason != want.finish {
				t.Errorf("bursts of %d: answer %q (%s), want %q", burst, c.Text, c.FinishReason, want.text)
			}
			got, finish, _ := spoken(t, ask(h, "POST", compPath, `{"prompt":"x","stream":true`+extra+`}`).Body.String())
			if got != want.text || finish != want.finish {
				t.Errorf("bursts of %d: stream %q (%s), want %q", burst, got, finish, want.text)
			}
		}
		kept(t, e)
	}
}

func TestDemoTokenizerOverHTTP(t *testing.T) {
	tok := golden.Tokenizer(t)
	o := options(says(""))
	o.Text = api.NewText(tok, noChat)
	h := api.New(o)
	cases, _ := golden.Tokens(t)
	for _, c := range cases[:200] {
		body, err := json.Marshal(map[string]string{"content": c.Text})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(body), `\ufffd`) {
			continue // not UTF-8, so JSON cannot carry it
		}
		var got struct {
			Tokens []int32
			Count  int
		}
		if err := json.Unmarshal(ask(h, "POST", "/tokenize", string(body)).Body.Bytes(), &got); err != nil || !slices.Equal(got.Tokens, c.IDs) || got.Count != len(c.IDs) {
			t.Fatalf("%q: %v, %v; want %v", c.Text, got, err, c.IDs)
		}
	}
	// 1 and 2 are the demo model's control tokens.
	for body, want := range map[string]string{
		`{"content":"<|im_start|><|im_end|>","parse_special":true}`: `"tokens":[1,2],"count":2`,
		`{"content":"","add_special":true}`:                         `"tokens":[],"count":0`, // the file says so
	} {
		if w := ask(h, "POST", "/tokenize", body); !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %s", body, w.Body)
		}
	}
	if w := ask(h, "POST", "/tokenize", `{"content":"<|im_end|>"}`); strings.Contains(w.Body.String(), `"count":1,`) {
		t.Errorf("text became a control token: %s", w.Body)
	}
	if w := ask(h, "POST", "/detokenize", `{"tokens":[1,19556,2]}`); !strings.Contains(w.Body.String(), `im_start`) || !strings.Contains(w.Body.String(), "Hello") {
		t.Errorf("%s", w.Body)
	}
	if w := ask(h, "POST", chatPath, chat("x")); w.Code != 400 || !strings.Contains(w.Body.String(), "no template here") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
