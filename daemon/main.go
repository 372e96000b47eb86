// Command tandem serves a language model with separate prefill and decode workers.
package main

import (
	"context"
	"os"

	"tandem/daemon/cli"
	"tandem/daemon/observe"
	"tandem/daemon/worker"
)

func main() {
	build := observe.Build()
	p := &cli.Program{
		Serve:  serve,
		Worker: func() int { return worker.Main(cpuDevice{}, build.Revision) },
		Needs:  needs,
		Build:  build,
		Stdin:  os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: os.Getenv,
	}
	os.Exit(p.Run(context.Background(), os.Args[1:]))
}
