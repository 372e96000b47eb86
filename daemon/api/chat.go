package api

import (
	"strings"

	"tandem/daemon/api/jsonin"
)

// decodeChat reads the body of POST /v1/chat/completions.
func (h *handler) decodeChat(body []byte) (*ask, error) {
	a := &ask{params: *h.Model.Sampling}
	given := false
	err := decodeBody(body, func(d *jsonin.Decoder, key string) error {
		switch key {
		case "messages":
			given = true
			return a.messages(d)
		case "logprobs", "top_logprobs":
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
	case !given:
		return nil, invalid("messages", "messages: missing; want an array of messages")
	case len(a.chat) == 0:
		return nil, invalid("messages", "messages: want at least one message")
	}
	return a, nil
}

func (a *ask) messages(d *jsonin.Decoder) error {
	a.chat = nil
	return d.Array("an array of messages", func(i int) error {
		if i >= maxMessages {
			return invalid("messages", "messages: want at most %d", maxMessages)
		}
		m, err := a.message(d)
		a.chat = append(a.chat, m)
		return err
	})
}

// message reads one message. Where a message of this role may have no content,
// no content is an empty text.
func (a *ask) message(d *jsonin.Decoder) (Message, error) {
	var m Message
	content := false
	err := object(d, "a message object", func(key string) (err error) {
		switch key {
		case "role":
			if m.Role, err = d.String("a string"); err != nil {
				return err
			}
			switch m.Role {
			case "developer":
				m.Role = "system"
			case "system", "user", "assistant", "tool":
			default:
				return d.Errorf(`want "system", "developer", "user", "assistant" or "tool", got %q`, clipped(m.Role))
			}
		case "content":
			m.Content, err = contentText(d)
			content = true
		case "name":
			m.Name, err = d.String("a string")
		case "tool_call_id":
			m.ToolCallID, err = d.String("a string")
		case "tool_calls", "function_call", "audio":
			err = mustBeEmpty(d)
		default:
			a.ignore("messages." + known1(key, "reasoning_content", "reasoning", "refusal", "annotations"))
			err = d.Skip()
		}
		return err
	})
	switch {
	case err != nil:
		return m, err
	case m.Role == "":
		return m, d.Errorf("role is missing")
	case !content && m.Role != "assistant" && m.Role != "tool":
		return m, d.Errorf("content is missing; want a string or an array of text parts")
	}
	return m, nil
}

// contentText reads a string, or an array of text parts, which it joins by line ends.
func contentText(d *jsonin.Decoder) (string, error) {
	const what = "a string or an array of text parts"
	switch d.Next() {
	case jsonin.String:
		return d.String(what)
	case jsonin.Array:
		var parts []string
		err := d.Array(what, func(int) error {
			s, err := textPart(d)
			parts = append(parts, s)
			return err
		})
		return strings.Join(parts, "\n"), err
	}
	return "", d.Want(what)
}

func textPart(d *jsonin.Decoder) (string, error) {
	var typ, text string
	hasText := false
	err := object(d, `an object with type "text"`, func(key string) (err error) {
		switch key {
		case "type":
			typ, err = d.String("a string")
		case "text":
			text, err = d.String("a string")
			hasText = true
		default:
			err = d.Skip()
		}
		return err
	})
	switch {
	case err != nil:
		return "", err
	case typ != "text":
		return "", d.Errorf(`only parts of type "text" are supported, got %q`, clipped(typ))
	case !hasText:
		return "", d.Errorf("text is missing")
	}
	return text, nil
}
