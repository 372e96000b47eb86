// Command fakeserver serves package fake, for tests of clients that are not
// written in Go. It prints one line with its address and ends when its input does.
//
//	fakeserver [ADDRESS]    127.0.0.1:0 if there is none
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"tandem/daemon/api"
	"tandem/e2e/fake"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fakeserver:", err)
		os.Exit(1)
	}
}

func run() error {
	address := "127.0.0.1:0"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s := api.NewServer(fake.New(), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	fmt.Printf("http://%s\n", l.Addr())
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.Shutdown(ctx) // hung answers are cut: that is what some are for
	return <-served
}
