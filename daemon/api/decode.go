package api

import (
	"strconv"

	"tandem/daemon/api/jsonin"
	"tandem/model/sample"
	"tandem/model/token"
)

// Limits on what a request may hold beside its prompt.
const (
	maxStops     = token.MaxStops
	maxStopBytes = token.MaxStopBytes
	maxBiases    = 1 << 10
	maxMessages  = 1 << 16
)

// decodeBody reads one JSON object and hands each of its fields that is not null
// to field, which reads it. A field of null is as good as none.
func decodeBody(body []byte, field func(d *jsonin.Decoder, key string) error) error {
	d, err := jsonin.New(body)
	if err != nil {
		return err
	}
	if d.Next() == jsonin.None && d.End() == nil {
		return invalid("", "the body is empty: want a JSON object")
	}
	if err := object(d, "a JSON object", func(key string) error { return field(d, key) }); err != nil {
		return err
	}
	return d.End()
}

// object reads an object as Decoder.Object does, but skips fields of null.
func object(d *jsonin.Decoder, what string, field func(key string) error) error {
	return d.Object(what, func(key string) error {
		if null, err := d.Null(); null || err != nil {
			return err
		}
		return field(key)
	})
}

// common reads a field that means the same on both OpenAI routes. It reports
// false, and has read nothing, if there is no such field.
func (h *handler) common(a *ask, d *jsonin.Decoder, key string) (known bool, err error) {
	switch key {
	case "model":
		a.model, err = d.String("a string")
	case "max_tokens":
		var n int
		if n, err = positive(d); !a.newest {
			a.maxTokens = n
		}
	case "max_completion_tokens":
		a.maxTokens, err = positive(d)
		a.newest = true
	case "temperature":
		a.params.Temperature, err = between(d, "a number from 0 to 2", 0, 2)
	case "top_p":
		a.params.TopP, err = between(d, "a number above 0, at most 1", 0, 1)
		if err == nil && a.params.TopP == 0 {
			err = d.Errorf("want a number above 0, at most 1, got 0")
		}
	case "top_k":
		var k int64
		k, err = d.Range("a whole number from 0, or -1 for all", -1, 1<<31-1)
		a.params.TopK = int(max(k, 0))
	case "min_p":
		a.params.MinP, err = between(d, "a number from 0 to 1", 0, 1)
	case "presence_penalty":
		a.params.Presence, err = between(d, "a number from -2 to 2", -2, 2)
	case "frequency_penalty":
		a.params.Frequency, err = between(d, "a number from -2 to 2", -2, 2)
	case "repetition_penalty":
		a.params.Repetition, err = between(d, "a number above 0, at most 2", 0, 2)
		if err == nil && a.params.Repetition == 0 {
			err = d.Errorf("want a number above 0, at most 2, got 0")
		}
	case "seed":
		var s int64
		s, err = d.Int("a whole number of at most 64 bits")
		a.params.Seed, a.seeded = uint64(s), true
	case "logit_bias":
		a.params.Bias, err = h.biases(d)
	case "stop":
		a.stops, err = stops(d)
	case "stop_token_ids":
		a.stopTokens, err = h.tokenIDs(d, maxStops)
	case "ignore_eos":
		a.ignoreEOS, err = d.Bool()
	case "stream":
		a.stream, err = d.Bool()
	case "stream_options":
		err = object(d, "an object", func(key string) error {
			if key != "include_usage" {
				a.ignore("stream_options." + known1(key, "include_obfuscation", "continuous_usage_stats"))
				return d.Skip()
			}
			var err error
			a.includeUsage, err = d.Bool()
			return err
		})
	case "prompt_cache_key":
		var s string
		if s, err = d.String("a string"); err == nil && clean(s) != "" {
			a.session = s
		}
	case "n", "best_of":
		var n int64
		if n, err = d.Range("a whole number from 1", 1, 1<<31-1); err == nil && n > 1 {
			err = unsupported(key, "%s: more than one answer to a request is not supported yet; want 1, got %d", key, n)
		}
	case "echo", "suffix", "tools", "functions", "function_call", "audio", "web_search_options",
		"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
		"grammar", "json_schema", "continue_final_message", "use_beam_search", "min_tokens":
		err = mustBeEmpty(d)
	case "tool_choice":
		if d.Next() == jsonin.String {
			var s string
			if s, err = d.String("a string"); err == nil && s != "none" && s != "auto" {
				err = invalid(key, "tool_choice: %q needs tools, and there are none", clipped(s))
			}
		} else if err = d.Skip(); err == nil {
			err = invalid(key, "tool_choice: names a tool, and there are none")
		}
	case "response_format":
		err = responseFormat(d)
	default:
		return false, nil
	}
	return true, err
}

// ignore notes a field that has no effect.
func (a *ask) ignore(field string) {
	if a.ignored == nil {
		a.ignored = map[string]struct{}{}
	}
	a.ignored[field] = struct{}{}
}

// unknown skips a field that no dialect of ours has.
func (a *ask) unknown(d *jsonin.Decoder, key string) error {
	a.ignore(known1(key, "user", "metadata", "store", "service_tier", "safety_identifier", "reasoning_effort",
		"parallel_tool_calls", "verbosity", "prediction", "modalities", "prompt_cache_retention",
		"chat_template_kwargs", "thinking", "cache_prompt", "top_a", "typical_p", "priority"))
	return d.Skip()
}

// known1 is key if it is one of names, else "other": what clients make up must
// not become a label.
func known1(key string, names ...string) string {
	for _, n := range names {
		if key == n {
			return key
		}
	}
	return "other"
}

func positive(d *jsonin.Decoder) (int, error) {
	n, err := d.Range("a whole number from 1", 1, 1<<31-1)
	return int(n), err
}

// between reads a number from lo to hi.
func between(d *jsonin.Decoder, what string, lo, hi float64) (float64, error) {
	at := *d // to point at the number again
	v, err := d.Float(what)
	if err == nil && !(lo <= v && v <= hi) {
		return 0, at.Want(what)
	}
	return v, err
}

func (h *handler) biases(d *jsonin.Decoder) (bs []sample.Bias, err error) {
	err = d.Object("an object from token ids to numbers", func(key string) error {
		id, err := strconv.ParseUint(key, 10, 31)
		if err != nil || int(id) >= h.Text.Vocab() {
			return d.Errorf("want a token id from 0 to %d as the key", h.Text.Vocab()-1)
		}
		v, err := between(d, "a number from -100 to 100", -100, 100)
		if err != nil {
			return err
		}
		if len(bs) >= maxBiases {
			return invalid("logit_bias", "logit_bias: want at most %d entries", maxBiases)
		}
		bs = append(bs, sample.Bias{Token: int32(id), Value: float32(v)})
		return nil
	})
	return bs, err
}

func stops(d *jsonin.Decoder) (ss []string, err error) {
	const what = "a string or an array of strings"
	one := func() error {
		s, err := d.String("a string")
		switch {
		case err != nil:
			return err
		case s == "":
			return d.Errorf("want text, got an empty string")
		case len(s) > maxStopBytes:
			return d.Errorf("want at most %d bytes, got %d", maxStopBytes, len(s))
		}
		ss = append(ss, s)
		return nil
	}
	switch d.Next() {
	case jsonin.String:
		return ss, one()
	case jsonin.Array:
		err = d.Array(what, func(i int) error {
			if i >= maxStops {
				return invalid("stop", "stop: want at most %d strings", maxStops)
			}
			return one()
		})
		return ss, err
	}
	return nil, d.Want(what)
}

// tokenIDs reads an array of at most limit token ids of the model.
func (h *handler) tokenIDs(d *jsonin.Decoder, limit int) (ids []int32, err error) {
	err = d.Array("an array of token ids", func(i int) error {
		if i >= limit {
			return d.Errorf("want at most %d token ids", limit)
		}
		id, err := h.tokenID(d)
		ids = append(ids, id)
		return err
	})
	return ids, err
}

func (h *handler) tokenID(d *jsonin.Decoder) (int32, error) {
	id, err := d.Range(h.wantToken, 0, int64(h.Text.Vocab()-1))
	return int32(id), err
}

// mustBeEmpty reads a field that is not supported and lets pass what asks for
// nothing: false, 0, "", [] and {}.
func mustBeEmpty(d *jsonin.Decoder) error {
	empty, err := isEmpty(d)
	if err == nil && !empty {
		err = unsupported(d.Path(), "%s: not supported yet; leave it out", d.Path())
	}
	return err
}

// isEmpty reads a value and says whether it is false, 0, "", [] or {}.
func isEmpty(d *jsonin.Decoder) (bool, error) {
	empty := true
	some := func() error { empty = false; return d.Skip() }
	switch d.Next() {
	case jsonin.Bool:
		v, err := d.Bool()
		return !v, err
	case jsonin.Number:
		v, err := d.Float("a number")
		return v == 0, err
	case jsonin.String:
		v, err := d.String("a string")
		return v == "", err
	case jsonin.Array:
		err := d.Array("an array", func(int) error { return some() })
		return empty, err
	case jsonin.Object:
		err := d.Object("an object", func(string) error { return some() })
		return empty, err
	case jsonin.Null:
		return true, d.Skip()
	}
	return false, d.Skip() // which says what is wrong
}

func responseFormat(d *jsonin.Decoder) error {
	typ, given := "", false
	err := object(d, "an object with a type", func(key string) (err error) {
		if key != "type" {
			return d.Skip()
		}
		typ, err = d.String("a string")
		given = true
		return err
	})
	switch {
	case err != nil:
		return err
	case !given:
		return d.Errorf("want a type")
	case typ != "text":
		return unsupported("response_format", `response_format: only the type "text" is supported yet, got %q`, clipped(typ))
	}
	return nil
}

// clipped shortens what a client sent to what fits an error message.
func clipped(s string) string {
	const limit = 64
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}
