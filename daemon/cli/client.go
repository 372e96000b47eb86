package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tandem/daemon/config"
)

// client speaks to the admin socket.
type client struct {
	http *http.Client
	path string
}

// errNoDaemon says that no socket answered.
var errNoDaemon = errors.New("no daemon found")

// connect finds the daemon: --socket, else where a daemon with our configuration
// and environment would be, in turn.
func (p *Program) connect(cmd *cobra.Command) (*client, error) {
	paths := []string{}
	if s, _ := cmd.Flags().GetString("socket"); s != "" {
		paths = append(paths, s)
	} else {
		cfg, err := config.Load(p.Env("TANDEM_CONFIG"), nil)
		if err != nil {
			cfg = config.Defaults()
		}
		paths = cfg.AdminSockets(p.Env)
	}
	var tried []string
	for _, path := range paths {
		c, err := net.DialTimeout("unix", path, 2*time.Second)
		if err == nil {
			c.Close()
			dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", path)
			}
			return &client{path: path, http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DialContext: dial}}}, nil
		}
		why := "nothing there"
		switch {
		case errors.Is(err, os.ErrPermission):
			why = "no permission"
		case !errors.Is(err, os.ErrNotExist):
			why = "nobody answers"
		}
		tried = append(tried, fmt.Sprintf("%s: %s", path, why))
	}
	return nil, fmt.Errorf("%w; looked at\n  %s\nstart one with `tandem serve`, or name its socket with --socket", errNoDaemon, strings.Join(tried, "\n  "))
}

// call asks and decodes the answer into out.
func (c *client) call(ctx context.Context, method, path string, form url.Values, out any) error {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://tandem"+path, body)
	if err != nil {
		return err
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	if resp.StatusCode != http.StatusOK {
		var e struct{ Error string }
		if json.Unmarshal(b, &e) == nil && e.Error != "" {
			return errors.New(e.Error)
		}
		return fmt.Errorf("%s: %s", c.path, resp.Status)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// span prints a time span as people read it.
func span(seconds float64) string {
	d := time.Duration(seconds * 1e9)
	switch {
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
