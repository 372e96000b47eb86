package cli

import (
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tandem/daemon/admin"
	"tandem/daemon/core"
)

func (p *Program) statusCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", Short: "Show the generation, its workers, the queue and the page pools",
		Long: "Show the generation, its workers, the queue and the page pools.\n\nExit codes: 0 requests complete, 1 they do not, or no daemon was found.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := p.connect(cmd)
			if err != nil {
				return fail(ExitFailed, err)
			}
			var s admin.Status
			if err := cl.call(cmd.Context(), "GET", "/status", nil, &s); err != nil {
				return fail(ExitFailed, err)
			}
			if asJSON {
				return printJSON(p.Stdout, s)
			}
			showStatus(p.Stdout, &s)
			if !s.Ready {
				return fail(ExitFailed, nil)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}

func showStatus(w io.Writer, s *admin.Status) {
	state := "ready"
	if !s.Ready {
		state = "NOT READY: " + s.Reason
	}
	fmt.Fprintf(w, "%s\n", s.Build)
	fmt.Fprintf(w, "state       %s, since %s\n", state, s.ReadySince.Format("15:04:05"))
	fmt.Fprintf(w, "daemon      process %d, up %s\n", s.PID, span(s.UptimeSeconds))
	fmt.Fprintf(w, "generation  %d, %s", s.Generation, s.State)
	if len(s.Ranks) > 0 {
		fmt.Fprintf(w, " for %s", span(s.GenerationAge))
	}
	fmt.Fprintln(w)
	if s.LastEndText != "" {
		fmt.Fprintf(w, "last end    %s (%d generations ended since the daemon started)\n", s.LastEndText, s.Ended)
	}
	if !s.LastServed.IsZero() {
		fmt.Fprintf(w, "last token  %s ago\n", span(s.At.Sub(s.LastServed).Seconds()))
	}
	fmt.Fprintf(w, "requests    %d running of %d, %d queued of %d\n", s.Running, s.MaxRunning, s.Queued, s.MaxQueued)
	for _, st := range s.States {
		if st.Count > 0 {
			fmt.Fprintf(w, "            %d %s, the oldest for %s\n", st.Count, st.State, span(st.Oldest))
		}
	}
	if len(s.Ranks) > 0 {
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "ROLE\tRANK\tPID\tDEVICE\tSTATE\tALIVE\tPROGRESS\tSAID\tBACKEND")
		for _, r := range s.Ranks {
			said := ""
			if r.Said != "" {
				said = fmt.Sprintf("%s %s ago", r.Said, span(r.SaidAge))
			}
			fmt.Fprintf(t, "%s\t%d.%d\t%d\t%s\t%s\t%s ago\t%s ago\t%s\t%s\n", r.Role, r.Replica, r.Rank, r.PID, r.Device, r.State, span(r.PulseAge), span(r.ProgressAge), said, r.Backend)
		}
		t.Flush()
	}
	if len(s.Pools) > 0 {
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "POOL\tPAGES\tFREE\tIN USE\t")
		for _, pl := range s.Pools {
			var use []string
			for st, n := range pl.States {
				if n > 0 && st != "free" {
					use = append(use, fmt.Sprintf("%d %s", n, st))
				}
			}
			slices.Sort(use)
			if len(use) == 0 {
				use = []string{"none"}
			}
			if pl.Drift != 0 {
				use = append(use, fmt.Sprintf("DRIFT %d", pl.Drift))
			}
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\t\n", pl.Name, pl.Total, pl.States["free"], strings.Join(use, ", "))
		}
		t.Flush()
	}
}

func (p *Program) requestsCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "requests", Short: "List live requests; show or cancel one",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := p.connect(cmd)
			if err != nil {
				return fail(ExitFailed, err)
			}
			var rs []core.RequestView
			if err := cl.call(cmd.Context(), "GET", "/requests", nil, &rs); err != nil {
				return fail(ExitFailed, err)
			}
			if asJSON {
				return printJSON(p.Stdout, rs)
			}
			if len(rs) == 0 {
				fmt.Fprintln(p.Stdout, "no live requests")
				return nil
			}
			t := tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "ID\tSTATE\tIN STATE\tLEFT\tAGE\tPROMPT\tOUTPUT\tATTEMPT\tWAITS\tSESSION")
			for _, r := range rs {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%d/%d\t%s\t%s\t%s\n", r.ID, r.State, span(r.AgeInState), span(r.Deadline), span(r.Age), r.Prompt, r.Output, r.MaxTokens,
					r.Attempt, strings.TrimPrefix(r.Waits, "waits "), r.Session)
			}
			return t.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	show := &cobra.Command{
		Use: "show ID", Short: "Show one request's story, also after it ended",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := p.connect(cmd)
			if err != nil {
				return fail(ExitFailed, err)
			}
			var r core.Record
			if err := cl.call(cmd.Context(), "GET", "/requests/"+url.PathEscape(args[0]), nil, &r); err != nil {
				return fail(ExitFailed, err)
			}
			if asJSON {
				return printJSON(p.Stdout, r)
			}
			showRecord(p.Stdout, &r)
			return nil
		},
	}
	show.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cancel := &cobra.Command{
		Use: "cancel ID", Short: "End one request",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.tell(cmd, "/requests/"+url.PathEscape(args[0])+"/cancel", url.Values{}, "cancelled")
		},
	}
	c.AddCommand(show, cancel)
	return c
}

func showRecord(w io.Writer, r *core.Record) {
	if r.Outcome != "" {
		fmt.Fprintf(w, "request %s: ended with %s after %s\n", r.ID, r.Outcome, span(r.Seconds))
	} else if n := r.Now; n != nil {
		fmt.Fprintf(w, "request %s: %s for %s, %s left; %s\n", r.ID, n.State, span(n.AgeInState), span(n.Deadline), n.Waits)
	}
	fmt.Fprintf(w, "arrived   %s", r.Arrived.Format("2006-01-02 15:04:05.000"))
	if r.Session != "" {
		fmt.Fprintf(w, ", session %s", r.Session)
	}
	fmt.Fprintf(w, "\ntokens    %d prompt, %d of at most %d output", r.Prompt, r.Output, r.MaxTokens)
	if r.FirstToken > 0 {
		fmt.Fprintf(w, ", the first after %s", span(r.FirstToken))
	}
	fmt.Fprintf(w, "\nattempts  %d", r.Attempts)
	if r.Src != "" {
		fmt.Fprintf(w, ", the last %s → %s; %d bytes of KV copied", r.Src, r.Dst, r.Moved)
	}
	fmt.Fprint(w, "\nin all   ")
	for _, s := range r.Spent {
		fmt.Fprintf(w, " %s %s", s.State, span(s.Seconds))
	}
	fmt.Fprint(w, "\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "AT\tAFTER\tSTATE\tEVENT\tDETAIL")
	last := 0.0
	for i, n := range r.Events {
		if r.Dropped > 0 && i == len(r.Events)/2 {
			fmt.Fprintf(t, "…\t\t\t%d lines dropped\t\n", r.Dropped)
		}
		fmt.Fprintf(t, "%.4fs\t%s\t%s\t%s\t%s\n", n.At, span(n.At-last), n.State, n.Event, n.Text)
		last = n.At
	}
	t.Flush()
}

func (p *Program) restartCmd() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "restart", Short: "Replace all workers by a new generation, losing no request",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.tell(cmd, "/restart", url.Values{"reason": {reason}}, "a new generation begins; `tandem status` shows it")
		},
	}
	c.Flags().StringVar(&reason, "reason", "no reason given", "why, for the journal")
	return c
}

func (p *Program) drainCmd() *cobra.Command {
	return &cobra.Command{
		Use: "drain", Short: "Take no new requests, finish those there are, and exit",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.tell(cmd, "/drain", url.Values{}, "draining; `tandem requests` shows what is left")
		},
	}
}

// tell asks for a change and says what came of it.
func (p *Program) tell(cmd *cobra.Command, path string, form url.Values, done string) error {
	cl, err := p.connect(cmd)
	if err != nil {
		return fail(ExitFailed, err)
	}
	if err := cl.call(cmd.Context(), "POST", path, form, nil); err != nil {
		return fail(ExitFailed, err)
	}
	fmt.Fprintln(p.Stdout, done)
	return nil
}
