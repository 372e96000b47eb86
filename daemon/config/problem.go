package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one mistake in a configuration.
type Problem struct {
	File    string `json:"file,omitempty"` // "" for --set and for a value nobody wrote
	Line    int    `json:"line,omitempty"` // from 1; 0 if unknown
	Col     int    `json:"col,omitempty"`  // in characters, from 1
	Set     bool   `json:"set,omitempty"`  // it was given as --set
	Section string `json:"section,omitempty"`
	Key     string `json:"key,omitempty"` // without its section
	Message string `json:"message"`
}

// String is the problem on one line: where, which key, what is wrong and what is allowed.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", p.Line, max(p.Col, 1))
		}
		b.WriteString(": ")
	}
	switch {
	case p.Set:
		b.WriteString("--set ")
		if p.Section != "" {
			b.WriteString(p.Section + ".")
		}
		b.WriteString(p.Key + ": ")
	case p.Section != "" && p.Key != "":
		fmt.Fprintf(&b, "[%s] %s: ", p.Section, p.Key)
	case p.Section != "":
		fmt.Fprintf(&b, "[%s]: ", p.Section)
	case p.Key != "":
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Message)
	return oneLine(b.String())
}

// oneLine makes a message safe to print: what it repeats from a file must not
// break lines or steer a terminal.
func oneLine(s string) string {
	clean := func(r rune) rune {
		if r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '·'
		}
		return r
	}
	return strings.Map(clean, s)
}

// Error is everything that is wrong with a configuration, in the order of the file.
type Error struct {
	Problems []Problem
}

// mostProblems bounds what is reported at once.
const mostProblems = 50

// Error is one line a problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// asError sorts problems by place; nil if there are none.
func asError(ps []Problem) error {
	if len(ps) == 0 {
		return nil
	}
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	if more := len(ps) - mostProblems; more > 0 {
		ps = append(ps[:mostProblems:mostProblems], Problem{File: ps[0].File, Message: fmt.Sprintf("… and %d more", more)})
	}
	return &Error{Problems: ps}
}

// rank puts what has a line first and the command line last.
func (p Problem) rank() int {
	switch {
	case p.Set:
		return 2
	case p.Line == 0:
		return 1
	}
	return 0
}

// Origin says where an effective value came from.
type Origin struct {
	File    string // the config file, with the line in it
	Line    int
	Set     bool // the command line's --set
	Machine bool // Resolve chose it for this machine
}

// String is the origin for people.
func (o Origin) String() string {
	switch {
	case o.Set:
		return "--set"
	case o.Machine:
		return "this machine"
	case o.File != "":
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	}
	return "default"
}
