package sample

// History counts the tokens of one sequence. It belongs to the goroutine that
// runs the sequence.
type History struct {
	index map[int32]int32 // token → its place in seen
	seen  []occurrence
}

type occurrence struct {
	token    int32
	produced int32 // times, after the prompt
}

// NewHistory begins with a prompt.
func NewHistory(prompt []int32) *History {
	h := &History{index: make(map[int32]int32)}
	for _, t := range prompt {
		h.place(t)
	}
	return h
}

// Accept counts a token that was produced.
func (h *History) Accept(token int32) { h.seen[h.place(token)].produced++ }

func (h *History) place(token int32) int32 {
	i, ok := h.index[token]
	if !ok {
		i = int32(len(h.seen))
		h.index[token] = i
		h.seen = append(h.seen, occurrence{token: token})
	}
	return i
}
