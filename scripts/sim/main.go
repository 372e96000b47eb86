// Command sim builds the simulated CUDA driver and prints the shell assignments with which programs load it.
// scripts/with-sim is for people.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"tandem/gpu/sim"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// run prints the assignments. The file that args name becomes a machine in order.
func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: sim BOX-FILE")
	}
	library, err := sim.Library()
	if err != nil {
		return err
	}
	box, err := sim.NewBox(args[0])
	if err != nil {
		return err
	}
	fmt.Printf("LD_LIBRARY_PATH=%q${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\nCUSIM_CONTROL=%q\n", filepath.Dir(library), box.Path())
	return box.Close()
}
