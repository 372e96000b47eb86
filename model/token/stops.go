package token

import (
	"fmt"
	"unicode/utf8"
)

// Limits on what NewStops accepts.
const (
	MaxStops     = 16
	MaxStopBytes = 1024
)

// Stops looks for stop strings in a text that comes in parts. It gives out what
// cannot be the start of one, so that nobody sees a byte of a stop string, and
// holds back less than the longest has. Of several stop strings the one that is
// complete first ends the text; of those complete at the same byte, the longest.
// So the result does not depend on how the text was divided. It takes time
// proportional to the text, whatever the strings are, and belongs to one goroutine.
type Stops struct {
	nodes []stopNode // the root is the first
	at    int32      // longest beginning of a stop string with which the text so far ends
	held  []byte     // that much of the text, not yet given out
	found int        // index of the stop string that was met, or -1
	sizes []int
}

// stopNode is a state of an Aho-Corasick automaton.
type stopNode struct {
	depth int32 // bytes of the beginning it stands for
	fail  int32 // longest shorter one with which that ends
	stop  int32 // longest stop string with which it ends, or -1
	bytes []byte
	next  []int32
}

func (n *stopNode) child(b byte) int32 {
	for i, c := range n.bytes {
		if c == b {
			return n.next[i]
		}
	}
	return -1
}

// NewStops prepares a search. Each string must be valid UTF-8 and not empty.
// An error names the string by its index.
func NewStops(stops []string) (*Stops, error) {
	if len(stops) > MaxStops {
		return nil, fmt.Errorf("%d stop strings, at most %d are allowed", len(stops), MaxStops)
	}
	s := &Stops{nodes: []stopNode{{stop: -1}}, found: -1}
	for i, text := range stops {
		switch {
		case text == "":
			return nil, fmt.Errorf("stop string %d is empty", i)
		case len(text) > MaxStopBytes:
			return nil, fmt.Errorf("stop string %d has %d bytes, at most %d are allowed", i, len(text), MaxStopBytes)
		case !utf8.ValidString(text):
			return nil, fmt.Errorf("stop string %d is not valid UTF-8", i)
		}
		s.add(text, int32(i))
		s.sizes = append(s.sizes, len(text))
	}
	s.link()
	return s, nil
}

func (s *Stops) add(text string, index int32) {
	at := int32(0)
	for i := range len(text) {
		next := s.nodes[at].child(text[i])
		if next < 0 {
			next = int32(len(s.nodes))
			s.nodes[at].bytes = append(s.nodes[at].bytes, text[i])
			s.nodes[at].next = append(s.nodes[at].next, next)
			s.nodes = append(s.nodes, stopNode{depth: int32(i + 1), stop: -1})
		}
		at = next
	}
	if s.nodes[at].stop < 0 {
		s.nodes[at].stop = index
	}
}

// link sets fail and stop of every node, breadth first.
func (s *Stops) link() {
	queue := append([]int32(nil), s.nodes[0].next...)
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		n := &s.nodes[at]
		if n.stop < 0 {
			n.stop = s.nodes[n.fail].stop
		}
		for i, b := range n.bytes {
			s.nodes[n.next[i]].fail = s.step(n.fail, b)
		}
		queue = append(queue, n.next...)
	}
}

func (s *Stops) step(at int32, b byte) int32 {
	for {
		if next := s.nodes[at].child(b); next >= 0 {
			return next
		}
		if at == 0 {
			return 0
		}
		at = s.nodes[at].fail
	}
}

// Push takes the next part of the text. It gives what may be shown now, and the
// index of the stop string that was met, or -1. From then on it gives nothing.
func (s *Stops) Push(text string) (visible string, stop int) {
	if s.found >= 0 {
		return "", s.found
	}
	for i := range len(text) {
		s.at = s.step(s.at, text[i])
		if stop := s.nodes[s.at].stop; stop >= 0 {
			s.found = int(stop)
			s.held = append(s.held, text[:i+1]...)
			visible = string(s.held[:len(s.held)-s.sizes[stop]])
			s.held = nil
			return visible, s.found
		}
	}
	keep := int(s.nodes[s.at].depth)
	if len(s.held) == 0 && keep == 0 {
		return text, -1
	}
	s.held = append(s.held, text...)
	show := len(s.held) - keep
	visible = string(s.held[:show])
	s.held = s.held[:copy(s.held, s.held[show:])]
	return visible, -1
}

// Held is the number of bytes held back.
func (s *Stops) Held() int { return len(s.held) }

// Flush ends the text and gives what was held back: it was no stop string.
func (s *Stops) Flush() string {
	rest := string(s.held)
	s.held, s.at = nil, 0
	return rest
}
