package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tandem/daemon/config"
)

func (p *Program) configCmd() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check, show or write a configuration", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() }}
	var sets []string
	path := func(args []string) string {
		if len(args) > 0 {
			return args[0]
		}
		return p.Env("TANDEM_CONFIG")
	}
	check := &cobra.Command{
		Use: "check [FILE]", Short: "Say what is wrong with a configuration; nothing if all is well",
		Long: "Say what is wrong with a configuration, a line for each mistake, with its place.\n\nExit codes: 0 nothing is wrong, 78 something is.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(path(args), sets)
			if err == nil {
				_, err = cfg.Resolve(config.ThisMachine())
			}
			if err != nil {
				return fail(ExitConfig, err)
			}
			for _, w := range cfg.Warnings(config.ThisMachine()) {
				fmt.Fprintln(p.Stderr, "warning:", w)
			}
			return nil
		},
	}
	show := &cobra.Command{
		Use: "show [FILE]", Short: "Show every effective value, where it came from and where it is enforced",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(path(args), sets)
			if err == nil {
				cfg, err = cfg.Resolve(config.ThisMachine())
			}
			if err != nil {
				return fail(ExitConfig, err)
			}
			t := tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)
			for _, s := range cfg.Settings() {
				fmt.Fprintf(t, "%s\t= %s\t# %s; enforced in %s\n", s.Key, s.Value, s.Origin, s.Where)
			}
			return t.Flush()
		},
	}
	for _, sub := range []*cobra.Command{check, show} {
		sub.Flags().StringArrayVar(&sets, "set", nil, "set one key: key=value; may be repeated")
	}
	init := &cobra.Command{
		Use: "init", Short: "Print a commented configuration with every key at its default",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := fmt.Fprint(p.Stdout, config.Example())
			return err
		},
	}
	c.AddCommand(check, show, init)
	return c
}
