// Package jinja renders chat templates: the part of the Jinja language that they
// use, with the meaning and the whitespace rules that model authors rely on
// (trim_blocks, lstrip_blocks, loop controls, an ordered tojson, values that
// templates cannot change). Inheritance, imports and escaping for HTML are left
// out; the filter safe does nothing.
//
// It exists because a chat template needs two things that general engines do not
// give. A rendered text must tell the template's own characters from those that
// came in with a request, or a client could write control tokens: here each
// character of a Text carries that mark through every operation. And neither a
// hostile template nor hostile messages may take the process down: every step and
// every character made is charged to a budget, and nesting is limited both when
// parsing and when rendering, so a rendering ends in bounded time and memory.
//
// A Template is immutable and may be rendered by many goroutines at once.
package jinja

import (
	"errors"
	"fmt"
	"time"
)

// MaxSource is the longest template, in bytes, that Parse takes.
const MaxSource = 1 << 20

// maxNesting limits blocks within blocks and brackets within brackets of a
// template's source, calls within calls while it runs, and lists within lists of
// the values it prints.
const maxNesting = 150

// SyntaxError says where a template cannot be understood.
type SyntaxError struct {
	Name    string
	Line    int
	Message string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("template %s: line %d: %s", e.Name, e.Line, e.Message)
}

// RaisedError is what a template says by raise_exception: the request is one that
// the model's authors did not foresee.
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return e.Message }

// RuntimeError says that an operation of the template was not possible with the
// values given.
type RuntimeError struct {
	Name    string
	Line    int
	Message string
}

func (e *RuntimeError) Error() string {
	return fmt.Sprintf("template %s: line %d: %s", e.Name, e.Line, e.Message)
}

// ErrBudget is wrapped by the error of a rendering that took too much work.
var ErrBudget = errors.New("rendering takes more work than is allowed")

// Template is a parsed template.
type Template struct {
	name string
	body []node
}

// Parse reads a template. The name is for errors, which are *SyntaxError.
func Parse(name, source string) (t *Template, err error) {
	if len(source) > MaxSource {
		return nil, &SyntaxError{name, 1, fmt.Sprintf("the template has %d bytes, at most %d are supported", len(source), MaxSource)}
	}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*SyntaxError)
			if !ok {
				panic(r)
			}
			e.Name = name
			t, err = nil, e
		}
	}()
	tokens := lex(source)
	p := &parser{tokens: tokens}
	return &Template{name: name, body: p.template()}, nil
}

// Env is what a rendering gets besides its variables.
type Env struct {
	// Budget is the work allowed: one for each step of the template and for each
	// character made, moved or searched. A character takes four bytes of memory.
	Budget int
	// Now is the time for strftime_now; the zero time stands for the present.
	Now time.Time
}

// Render executes the template. Errors are *RaisedError, *RuntimeError, or wrap
// ErrBudget.
func (t *Template) Render(vars map[string]Value, env Env) (out Text, err error) {
	e := &evaluator{budget: env.Budget, now: env.Now}
	if e.now.IsZero() {
		e.now = time.Now()
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *RuntimeError:
			r.Name, r.Line = t.name, e.line
			out, err = nil, r
		case *RaisedError:
			out, err = nil, r
		case budgetSpent:
			out, err = nil, fmt.Errorf("template %s: line %d: %w", t.name, e.line, ErrBudget)
		default:
			panic(r)
		}
	}()
	globals := &scope{vars: make(map[string]Value, len(builtins)+len(vars))}
	for name, v := range builtins {
		globals.vars[name] = v
	}
	for name, v := range vars {
		globals.vars[name] = v
	}
	e.run(t.body, &scope{parent: globals})
	return e.out, nil
}

type budgetSpent struct{}
