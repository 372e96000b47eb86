package api

import "tandem/daemon/api/jsonin"

// decodeCompletion reads the body of POST /v1/completions.
func (h *handler) decodeCompletion(body []byte) (*ask, error) {
	a := &ask{params: *h.Model.Sampling}
	err := decodeBody(body, func(d *jsonin.Decoder, key string) error {
		switch key {
		case "prompt":
			return h.promptField(a, d)
		case "logprobs":
			// 0 asks for the logprobs of the chosen tokens, so it is not empty.
			if d.Next() == jsonin.Number {
				return unsupported(key, "logprobs: not supported yet; leave it out")
			}
			return mustBeEmpty(d)
		}
		if known, err := h.common(a, d, key); known {
			return err
		}
		return a.unknown(d, key)
	})
	switch {
	case err != nil:
		return nil, err
	case a.text == nil && a.tokens == nil:
		return nil, invalid("prompt", "prompt: missing; want a string or an array of token ids")
	}
	return a, nil
}

// promptField reads a string, an array of one string, an array of token ids, or
// an array of one such array.
func (h *handler) promptField(a *ask, d *jsonin.Decoder) error {
	const what = "a string or an array of token ids"
	a.text, a.tokens = nil, nil
	several := unsupported("prompt", "prompt: several prompts in one request are not supported yet; send a request for each")
	str := func() error {
		s, err := d.String("a string")
		a.text = &s
		return err
	}
	switch d.Next() {
	case jsonin.String:
		return str()
	case jsonin.Array:
	default:
		return d.Want(what)
	}
	var ids *promptTokens // of the outer array
	err := d.Array(what, func(i int) error {
		switch kind := d.Next(); {
		case kind == jsonin.Number && (i == 0 || ids != nil):
			if i == 0 {
				ids = &promptTokens{}
			}
			return h.promptToken(ids, d)
		case i > 0 && ids == nil:
			return several
		case kind == jsonin.String && i == 0:
			return str()
		case kind == jsonin.Array && i == 0:
			a.tokens = &promptTokens{}
			return d.Array("an array of token ids", func(int) error { return h.promptToken(a.tokens, d) })
		case ids != nil:
			return d.Want("a token id")
		}
		return d.Want(what)
	})
	switch {
	case err != nil:
		return err
	case ids != nil:
		a.tokens = ids
	case a.text == nil && a.tokens == nil:
		return d.Errorf("want a prompt, got an empty array")
	}
	return nil
}

func (h *handler) promptToken(p *promptTokens, d *jsonin.Decoder) error {
	id, err := h.tokenID(d)
	if err != nil {
		return err
	}
	p.count++
	if len(p.ids) < h.Model.Context {
		p.ids = append(p.ids, id)
	}
	return nil
}
