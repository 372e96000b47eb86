package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tandem/daemon/config"
)

// chat is `tandem chat`: a line in, an answer out, on the endpoint that clients use.
type chat struct {
	url, key string
	http     *http.Client
	body     map[string]any
	turns    []turn
}

type turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (p *Program) chatCmd() *cobra.Command {
	var base, key, system string
	var maxTokens int
	var temperature float64
	c := &cobra.Command{
		Use: "chat [QUESTION]", Short: "Talk to the running endpoint",
		Long: "Talk to the running endpoint. With a question, print the answer and exit; without,\nread a line at a time. /new forgets the conversation, /quit or end of file leaves.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(p.Env("TANDEM_CONFIG"), nil)
			if err != nil {
				cfg = config.Defaults()
			}
			if base == "" {
				base = cfg.Server.Listen
			}
			if key == "" {
				key = p.Env("OPENAI_API_KEY")
			}
			ch := newChat(base, key)
			ch.body = map[string]any{"stream": true}
			if cmd.Flags().Changed("max-tokens") {
				ch.body["max_tokens"] = maxTokens
			}
			if cmd.Flags().Changed("temperature") {
				ch.body["temperature"] = temperature
			}
			if system != "" {
				ch.turns = append(ch.turns, turn{"system", system})
			}
			if len(args) > 0 {
				if err := ch.say(cmd.Context(), strings.Join(args, " "), p.Stdout); err != nil {
					return fail(ExitFailed, err)
				}
				return nil
			}
			return ch.talk(cmd.Context(), p, system)
		},
	}
	c.Flags().StringVar(&base, "url", "", "endpoint, as host:port, http://… or unix:/path (default: server.listen)")
	c.Flags().StringVar(&key, "key", "", "API key (default: $OPENAI_API_KEY)")
	c.Flags().StringVar(&system, "system", "", "system message")
	c.Flags().IntVar(&maxTokens, "max-tokens", 0, "longest answer")
	c.Flags().Float64Var(&temperature, "temperature", 0, "0 for the most likely answer")
	return c
}

func newChat(base, key string) *chat {
	ch := &chat{key: key, http: &http.Client{}}
	if path, ok := strings.CutPrefix(base, "unix:"); ok {
		ch.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}}
		base = "http://tandem"
	}
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	ch.url = strings.TrimSuffix(base, "/")
	return ch
}

func (ch *chat) talk(ctx context.Context, p *Program, system string) error {
	prompt := ""
	if f, ok := p.Stdin.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			prompt = "> "
		}
	}
	in := bufio.NewScanner(p.Stdin)
	in.Buffer(nil, 1<<20)
	for fmt.Fprint(p.Stdout, prompt); in.Scan(); fmt.Fprint(p.Stdout, prompt) {
		line := strings.TrimSpace(in.Text())
		switch line {
		case "":
			continue
		case "/quit":
			return nil
		case "/new":
			ch.turns = nil
			if system != "" {
				ch.turns = []turn{{"system", system}}
			}
			continue
		}
		if err := ch.say(ctx, line, p.Stdout); err != nil {
			fmt.Fprintln(p.Stderr, "tandem:", err)
			ch.turns = ch.turns[:len(ch.turns)-1] // the question can be asked again
		}
	}
	return in.Err()
}

// say sends a question and prints the answer as it comes.
func (ch *chat) say(ctx context.Context, text string, w io.Writer) error {
	ch.turns = append(ch.turns, turn{"user", text})
	ch.body["messages"] = ch.turns
	b, err := json.Marshal(ch.body)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		answer, retry, err := ch.once(ctx, b, w)
		if err == nil {
			ch.turns = append(ch.turns, turn{"assistant", answer})
			return nil
		}
		if retry <= 0 || attempt >= 5 {
			return err
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// once makes one request; retry is how long to wait before another, 0 if that is
// of no use.
func (ch *chat) once(ctx context.Context, body []byte, w io.Writer) (answer string, retry time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, "POST", ch.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if ch.key != "" {
		req.Header.Set("Authorization", "Bearer "+ch.key)
	}
	resp, err := ch.http.Do(req)
	if err != nil {
		return "", 0, fmt.Errorf("%w; is `tandem serve` running there?", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if s := resp.Header.Get("Retry-After"); s != "" {
			if d, e := time.ParseDuration(s + "s"); e == nil {
				retry = d
			}
		}
		return "", retry, fmt.Errorf("%s: %s", resp.Status, errorText(b))
	}
	var full strings.Builder
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			fmt.Fprintln(w)
			return full.String(), 0, nil
		}
		var ev struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Error *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return "", 0, fmt.Errorf("an event that is not JSON: %w", err)
		}
		if ev.Error != nil {
			fmt.Fprintln(w)
			return "", 0, fmt.Errorf("%s", ev.Error.Message)
		}
		for _, c := range ev.Choices {
			full.WriteString(c.Delta.Content)
			fmt.Fprint(w, c.Delta.Content)
		}
	}
	if err := lines.Err(); err != nil {
		return "", 0, err
	}
	return "", 0, fmt.Errorf("the answer ended before it was complete")
}

func errorText(b []byte) string {
	var e struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(b, &e) == nil && e.Error.Message != "" {
		return e.Error.Message
	}
	return strings.TrimSpace(string(b))
}
