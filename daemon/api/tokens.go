package api

import (
	"net/http"
	"strconv"

	"tandem/daemon/api/jsonin"
)

// tokenizeAsk is the body of POST /tokenize: content or prompt, or messages.
type tokenizeAsk struct {
	ask
	addSpecial, parseSpecial bool
}

func (h *handler) decodeTokenize(body []byte) (*tokenizeAsk, error) {
	a := &tokenizeAsk{}
	given := ""
	err := decodeBody(body, func(d *jsonin.Decoder, key string) (err error) {
		switch key {
		case "content", "prompt", "messages":
			if given != "" && given != key {
				return invalid(key, "%s: want only one of content, prompt and messages; %s is there as well", key, given)
			}
			given = key
			if key == "messages" {
				return a.messages(d)
			}
			var s string
			s, err = d.String("a string")
			a.text = &s
		case "model":
			a.model, err = d.String("a string")
		case "add_special":
			a.addSpecial, err = d.Bool()
		case "parse_special":
			a.parseSpecial, err = d.Bool()
		default:
			err = a.unknown(d, key)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case given == "":
		return nil, invalid("content", "content: missing; want content or prompt (a string) or messages")
	case given == "messages" && len(a.chat) == 0:
		return nil, invalid("messages", "messages: want at least one message")
	}
	return a, nil
}

// tokenize serves POST /tokenize.
func (x *exchange) tokenize() {
	a, err := read(x, x.h.decodeTokenize)
	if err != nil {
		x.fail(err)
		return
	}
	for f := range a.ignored {
		x.h.Recorder.Ignored(f)
	}
	if a.model != "" && !x.h.serves(a.model) {
		x.fail(unknownModel(a.model, x.h.Model.Name))
		return
	}
	var ids []int32
	if a.text != nil {
		ids = x.h.Text.Encode(*a.text, a.addSpecial, a.parseSpecial)
	} else if ids, err = x.h.Text.Render(a.chat); err != nil {
		x.fail(refused(err))
		return
	}
	b := append(make([]byte, 0, 64+7*len(ids)), `{"tokens":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	b = append(b, `],"count":`...)
	b = strconv.AppendInt(b, int64(len(ids)), 10)
	b = append(b, `,"max_model_len":`...)
	b = strconv.AppendInt(b, int64(x.h.Model.Context), 10)
	x.end(x.json(http.StatusOK, append(b, "}\n"...)))
}

// detokenize serves POST /detokenize.
func (x *exchange) detokenize() {
	given := false
	ids, err := read(x, func(body []byte) (ids []int32, err error) {
		err = decodeBody(body, func(d *jsonin.Decoder, key string) (err error) {
			if key != "tokens" {
				return d.Skip()
			}
			given = true
			ids, err = x.h.tokenIDs(d, len(body))
			return err
		})
		return ids, err
	})
	if err == nil && !given {
		err = invalid("tokens", "tokens: missing; want an array of token ids")
	}
	if err != nil {
		x.fail(err)
		return
	}
	x.reply(http.StatusOK, struct {
		Content string `json:"content"`
	}{x.h.Text.Decode(ids)})
}
