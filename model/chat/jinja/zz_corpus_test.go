package jinja_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"tandem/model/chat/jinja"
)

func TestZZCorpus(t *testing.T) {
	data, _ := os.ReadFile("/tmp/text/corpus55.json")
	var cases []struct {
		Name, Source, Text, Error string
		Chat                      json.RawMessage
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	exact, wrong, errs, bothErr, lenient := 0, 0, 0, 0, 0
	shown := 0
	for _, c := range cases {
		tmpl, err := jinja.Parse(c.Name, c.Source)
		if err != nil {
			t.Errorf("%v", err)
			errs++
			continue
		}
		out, err := tmpl.Render(given(t, c.Chat, "<s>", "</s>"), jinja.Env{Budget: budget, Now: time.Date(2026, 3, 4, 15, 6, 7, 0, time.UTC)})
		var n struct{ Name string }
		json.Unmarshal(c.Chat, &n)
		switch {
		case c.Error != "" && err != nil:
			bothErr++
			if os.Getenv("SHOW") != "" {
				fmt.Println("BOTH", c.Name, n.Name, "|", c.Error, "|", err)
			}
		case c.Error != "":
			lenient++
			fmt.Println("LENIENT", c.Name, n.Name, c.Error)
		case err != nil:
			errs++
			fmt.Println("ERR", c.Name, n.Name, err)
		case out.String() == c.Text:
			exact++
		default:
			wrong++
			g := out.String()
			i := 0
			for i < len(g) && i < len(c.Text) && g[i] == c.Text[i] {
				i++
			}
			if shown < 40 {
				shown++
				fmt.Printf("WRONG %s %s at %d:\n got %q\nwant %q\n", c.Name, n.Name, i, g[max(0, i-30):min(len(g), i+60)], c.Text[max(0, i-30):min(len(c.Text), i+60)])
			}
		}
	}
	fmt.Println("exact", exact, "wrong", wrong, "err", errs, "both", bothErr, "lenient", lenient)
}
