package config

import (
	"fmt"
	"strings"
)

// exampleWidth bounds the lines of the example file.
const exampleWidth = 118

// WorkingExample is a short file that is worth having: it stands on top of Example.
const WorkingExample = `[server]
listen = "127.0.0.1:8000"

[model]
path = "smollm2-135m"

[limits]
max_requests = 32
`

// Example is a file with every key commented out at its default, with its
// meaning, unit, limits and the place that enforces it: what `tandem config init`
// writes. As it stands it changes nothing.
func Example() string {
	var b strings.Builder
	comment := func(indent, text string) {
		for _, l := range wrap(text, exampleWidth-2-len(indent)) {
			b.WriteString(strings.TrimRight("# "+indent+l, " ") + "\n")
		}
	}
	comment("", "Configuration of tandem. Every key is here, commented out at its default; the file as it stands changes nothing. "+
		"Remove the # in front of a key to set it. \"tandem config check FILE\" finds mistakes; \"tandem config show\" tells every "+
		"effective value and where it came from; --set key=value on the command line overrides the file.")
	b.WriteString("#\n")
	comment("", "Durations and sizes are strings with units: \"30s\", \"1h30m\", \"512MiB\". A relative path is relative to the folder of this file.")
	b.WriteString("#\n# A whole file can be as short as this:\n#\n")
	for l := range strings.Lines(WorkingExample) {
		b.WriteString(strings.TrimRight("#     "+l, " \n") + "\n")
	}
	for _, s := range keys.sections {
		fmt.Fprintf(&b, "\n[%s]\n", s.name)
		comment("", s.doc)
		for _, k := range keys.keys {
			if k.Section != s.name {
				continue
			}
			b.WriteString("\n")
			comment("", k.Doc)
			var facts []string
			if k.Unit != "" {
				facts = append(facts, "Unit: "+k.Unit+".")
			}
			if k.Allowed != "" {
				facts = append(facts, "Allowed: "+k.Allowed+".")
			}
			facts = append(facts, "Enforced by "+k.Where+".")
			comment("", strings.Join(facts, " "))
			fmt.Fprintf(&b, "#%s = %s\n", k.Leaf, k.Default)
		}
	}
	return b.String()
}

// wrap breaks text into lines of at most width bytes.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(text) {
		if line != "" && len(line)+1+len(w) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return append(lines, line)
}
