// Package cli is the command line: `tandem serve` and the commands that speak to a
// running daemon. It owns flags, tables and exit codes; what serve and worker do
// is given to it by the program.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"tandem/daemon/observe"
	"tandem/model"
	"tandem/model/family"
)

// Exit codes, for scripts.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
	ExitConfig = 78 // EX_CONFIG of sysexits.h: the unit keeps its sockets
)

// Program is what the commands need of the program that they are linked into.
type Program struct {
	Serve  func(ctx context.Context, o ServeOptions) int
	Worker func() int
	// Needs is what a model takes on the backend that would serve it: bytes of
	// weights, and the layout of its KV cache.
	Needs  func(*family.Model) (weights int64, layout model.Layout, err error)
	Build  observe.BuildInfo
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Env    func(string) string
}

// ServeOptions are the flags of serve.
type ServeOptions struct {
	Config string   // path, "" for none
	Set    []string // key=value
}

// exit carries an exit code through cobra.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func fail(code int, err error) error { return &exit{code, err} }

// Run runs one command line and returns the exit code.
func (p *Program) Run(ctx context.Context, args []string) int {
	root := p.root()
	root.SetArgs(args)
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitDone
	}
	var e *exit
	if !errors.As(err, &e) {
		fmt.Fprintf(p.Stderr, "tandem: %v\n", err)
		return ExitUsage
	}
	if e.err != nil {
		fmt.Fprintf(p.Stderr, "tandem: %v\n", e.err)
	}
	return e.code
}

func (p *Program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "tandem",
		Short: "Serve a language model with separate prefill and decode workers",
		Long: "tandem serves one language model on this machine through an OpenAI-compatible\nendpoint. One daemon supervises a prefill group and a decode group of worker\n" +
			"processes; requests survive the death of any of them.",
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().String("socket", "", "admin socket of the daemon to talk to (default: where the daemon puts it)")
	root.AddCommand(p.serveCmd(), p.statusCmd(), p.requestsCmd(), p.restartCmd(), p.drainCmd(), p.configCmd(), p.modelCmd(), p.chatCmd(), p.versionCmd(), p.workerCmd())
	return root
}

// Command is the whole tree, for generators of man pages and completions.
func Command() *cobra.Command { return (&Program{Env: os.Getenv}).root() }

func (p *Program) serveCmd() *cobra.Command {
	var o ServeOptions
	c := &cobra.Command{
		Use: "serve", Short: "Run the daemon, in the foreground",
		Long: "Run the daemon, in the foreground. It logs to the journal when systemd started it,\nto standard error otherwise. SIGTERM and SIGINT stop it: it takes no new requests,\n" +
			"finishes those it has, and ends; a second signal ends it at once.\n\nExit codes: 0 stopped as told, 1 failed, 2 wrong usage, 78 the configuration is wrong.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("config") {
				o.Config = p.Env("TANDEM_CONFIG")
			}
			if code := p.Serve(cmd.Context(), o); code != 0 {
				return fail(code, nil)
			}
			return nil
		},
	}
	c.Flags().StringVarP(&o.Config, "config", "c", "", "configuration file (default: $TANDEM_CONFIG, else built-in defaults)")
	c.Flags().StringArrayVar(&o.Set, "set", nil, "set one key: key=value, the value in TOML or a bare word; may be repeated")
	return c
}

func (p *Program) workerCmd() *cobra.Command {
	return &cobra.Command{
		Use: "worker", Short: "Internal: one rank, started by serve",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if code := p.Worker(); code != 0 {
				return fail(code, nil)
			}
			return nil
		},
	}
}

func (p *Program) versionCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "version", Short: "Say what this binary was built from, and whether that was committed",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if asJSON {
				return printJSON(p.Stdout, p.Build)
			}
			fmt.Fprintln(p.Stdout, p.Build)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return c
}
