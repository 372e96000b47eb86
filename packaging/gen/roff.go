package main

import (
	"fmt"
	"strings"
	"time"
)

// roff writes a manual page with the macros of man(7).
type roff struct{ b strings.Builder }

// newPage begins a page: its name, its section and what it is about.
func newPage(name string, section int, about string, date time.Time) *roff {
	r := &roff{}
	fmt.Fprintf(&r.b, ".TH %s %d %s tandem\n", name, section, date.Format("2006-01-02"))
	r.macro("SH", "NAME")
	r.line(text(name) + ` \- ` + text(about))
	return r
}

// macro writes a request with quoted arguments.
func (r *roff) macro(name string, args ...string) {
	r.b.WriteString("." + name)
	for _, a := range args {
		r.b.WriteString(` "` + strings.ReplaceAll(text(a), `"`, `\(dq`) + `"`)
	}
	r.b.WriteByte('\n')
}

// line writes a line of text that is escaped already.
func (r *roff) line(s string) {
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		r.b.WriteString(`\&`)
	}
	r.b.WriteString(s + "\n")
}

// section begins a section.
func (r *roff) section(title string) { r.macro("SH", title) }

// sub begins a subsection.
func (r *roff) sub(title string) { r.macro("SS", title) }

// paragraphs writes plain text; an empty line ends a paragraph.
func (r *roff) paragraphs(s string) {
	for i, p := range strings.Split(strings.TrimSpace(s), "\n\n") {
		if i > 0 {
			r.b.WriteString(".PP\n")
		}
		r.prose(p)
	}
}

// prose writes one paragraph.
func (r *roff) prose(p string) {
	for l := range strings.Lines(p) {
		r.line(marked(strings.TrimSpace(l)))
	}
}

// item writes a term in bold with its explanation, indented. An explanation may
// have several paragraphs.
func (r *roff) item(term, explanation string) {
	r.b.WriteString(".TP\n")
	r.line(`\fB` + text(term) + `\fR`)
	for i, p := range strings.Split(strings.TrimSpace(explanation), "\n\n") {
		if i > 0 {
			r.b.WriteString(".IP\n")
		}
		r.prose(p)
	}
}

// example writes lines as they are.
func (r *roff) example(lines string) {
	r.b.WriteString(".PP\n.RS 4\n.nf\n")
	for l := range strings.Lines(lines) {
		r.line(text(strings.TrimRight(l, "\n")))
	}
	r.b.WriteString(".fi\n.RE\n")
}

func (r *roff) bytes() []byte { return []byte(r.b.String()) }

// text escapes what roff would not take literally.
func text(s string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", `\(ga`, "'", `\(aq`, "^", `\(ha`, "~", `\(ti`, "…", "...", "×", `\(mu`, "–", `\(en`).Replace(s)
}

// marked is text in which `code` becomes bold.
func marked(s string) string {
	var b strings.Builder
	for i, part := range strings.Split(s, "`") {
		if i%2 == 1 {
			b.WriteString(`\fB` + text(part) + `\fR`)
		} else {
			b.WriteString(text(part))
		}
	}
	return b.String()
}
