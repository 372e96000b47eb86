package observe

import "strings"

// Catalog is the text of every event with a message identifier, in the form of
// the journal's message catalogue: what happened, what the daemon already did,
// what to do next. `journalctl -x` shows it.
//
// The format is that of systemd's catalog files: "-- ID", headers, an empty
// line, text in which @FIELD@ stands for a field of the entry.
func Catalog() string {
	var b strings.Builder
	b.WriteString("# Made from the table of events; \"journalctl -x\" shows these texts.\n")
	for _, k := range Kinds() {
		d := &defs[k]
		if d.id == "" {
			continue
		}
		b.WriteString("\n-- " + d.id + "\nSubject: " + d.subject + "\nDefined-By: tandem\nDocumentation: man:tandem(8)\n")
		for _, text := range []string{d.what, d.did, d.doNow} {
			b.WriteString("\n" + fold(text, 78) + "\n")
		}
	}
	return b.String()
}

// fold breaks text into lines of at most width bytes where it can.
func fold(text string, width int) string {
	var b strings.Builder
	col := 0
	for i, w := range strings.Fields(text) {
		switch {
		case i == 0:
		case col+1+len(w) > width:
			b.WriteByte('\n')
			col = 0
		default:
			b.WriteByte(' ')
			col++
		}
		b.WriteString(w)
		col += len(w)
	}
	return b.String()
}
