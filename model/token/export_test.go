package token

import "fmt"

// Split gives the byte lengths of the words into which a pre-tokenizer cuts text.
func Split(name, text string) ([]int, error) {
	s, ok := splitters[name]
	if !ok {
		return nil, fmt.Errorf("no pre-tokenizer %q", name)
	}
	var out []int
	for at := 0; at < len(text); {
		end := s.next(text, at)
		out = append(out, end-at)
		at = end
	}
	return out, nil
}
